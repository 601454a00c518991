"""The features of agents: their names in one list, and how each is declared (`Agent(features=[…])`)."""

FEATURES = (
    "once",
    "approvals",
    "deferred",
    "server_questions",
    "sub_agents",
    "budgets",
    "compaction",
    "fallback",
    "background",
    "batch",
    "calls_in_text",
)
"""The names of the features. A feature has a folder or a file of its name where it has a part: here, in `workflows/` and in
`activities/`. They stand around a step, a model call and a tool call in this order: the first is the outermost."""
