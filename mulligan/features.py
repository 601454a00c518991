"""The features of Mulligan, in one list."""

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
)
"""The names of the features. Each has a folder of this name where it has a part: in `workflows/`, in `activities/`. They
stand around a step, a model call and a tool call in this order: the first is the outermost."""
