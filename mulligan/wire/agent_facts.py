"""`open_run`: what is resolved when a run opens, and pinned for its whole life, so that a deploy does not change it.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from mulligan.prices import Price
from mulligan.run_input import TRACEPARENT
from mulligan.schema.optional_field import optional_field
from mulligan.wire.agent_version import AgentVersion
from mulligan.wire.checked_result import (
    MOST_COUNT,
    MOST_INT,
    MOST_SECONDS,
    MOST_USD,
    NAME_BYTES,
    CheckedResult,
    are_between,
)
from mulligan.wire.start_input import StartInput

OPEN_RUN = "open_run"
"""Temporal's activity type. The workflow calls activities by their type, and so never imports code with side effects."""
AGENT_NOT_SERVED = "AgentNotServed"
"""The type of the failure of an activity that was declined: its worker does not serve the agent, and has done nothing. Its
detail is a list of the task queues of other workers, which may serve it."""
INPUT_QUERY = "mulligan_input"
"""The query for the input of a conversation's newest turn, where it was too large for the input of `open_run`."""
DEFINITION_QUERY = "mulligan_definition"
"""The query for the definition that was pinned when the run opened, for a worker whose own code has changed since."""


class ToolDefinition(BaseModel):
    """A tool as the model gets it: `name`, `description`, and `parameters`, a JSON schema; `strict`: as of a tool."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    strict: bool = optional_field(False)


class ProviderToolDefinition(BaseModel):
    """A `tool` that a `provider` (its name, such as `openai`) runs itself: its JSON as the provider's API takes it."""

    provider: str
    tool: dict[str, JsonValue]


class HiddenTool(ToolDefinition):
    """A tool that only a feature calls: no request has it.

    `name`, `description`, `parameters`: as of a ToolDefinition. `result`: the JSON schema of its result, if it is known.
    """

    result: dict[str, JsonValue] | None = optional_field()


class OutputFormat(BaseModel):
    """The schema by which the provider constrains the model's answer: its `name`, `description` and `json_schema`."""

    name: str
    description: str = ""
    json_schema: dict[str, JsonValue]


class Definition(BaseModel):
    """The part of an agent in each request to the provider: `instructions`, `tools` (output tools are tools here), and
    `output`, the format of the answer, or None for text.

    `hidden`: tools that only features call.
    `mcp`: the name of a tool at its MCP server, by the tool's name, where the latter does not end with the former.
    `mcp_schemas`: the JSON schema by which the arguments of a server's tool are validated, by the tool's name, where the
    tool's `parameters`, which the model sees, are simpler.
    `unseen`: the names of the tools that the model does not see before it has found them.
    `stored`: where the whole is in the content storage, if it is too large for history: the tools that are found on demand,
    and those that are hidden, are there only.
    `provider_tools`: the tools that providers run themselves, of all providers.
    `settings`: the agent's `model_settings` when the run opened, without secrets, for people. Calls use those of the worker.
    """

    instructions: str
    tools: list[ToolDefinition]
    hidden: list[HiddenTool] = optional_field([])
    output: OutputFormat | None = optional_field()
    mcp: dict[str, str] = optional_field({})
    mcp_schemas: dict[str, dict[str, JsonValue]] = optional_field({})
    unseen: list[str] = optional_field([])
    stored: str | None = optional_field()
    provider_tools: list[ProviderToolDefinition] = optional_field([])
    settings: dict[str, JsonValue] = optional_field({})

    @property
    def visible_tools(self) -> list[ToolDefinition]:
        """The tools that the model sees from the beginning."""
        hidden = {*self.unseen}
        return [tool for tool in self.tools if tool.name not in hidden]

    def tools_of(self, provider: str) -> list[dict[str, JsonValue]]:
        """The tools that a provider runs itself. `provider`: its name, such as `openai`."""
        return [each.tool for each in self.provider_tools if each.provider == provider]

    def tool(self, name: str) -> ToolDefinition | None:
        """The tool of that `name`, which the model may not see; None if there is none."""
        return next((each for each in (*self.tools, *self.hidden) if each.name == name), None)


class ModelFacts(BaseModel):
    """Which models a run may call. Models are `provider:NAME`; `prices` has those that are known, in USD."""

    model: str
    fallbacks: list[str] = optional_field([])
    """The models that are called after `model`, in this order."""
    fallback_patience: float | None = optional_field()
    """Seconds for which a model is retried where another one follows; None: as long as the last."""
    max_cost: float | None = optional_field()
    prices: dict[str, Price] = optional_field({})


class SubAgentFacts(BaseModel):
    """How the workflow schedules the runs of a sub-agent; all of it is empty for other tools.

    `agent`: the agent that each call is a run of. `max_depth`: how many levels of sub-agents may be below the calling
    agent. `share_budget`: a run gets what is left of the calling run's budget; `max_total_tokens` and `max_cost` (USD)
    are the sub-agent's own limits, which apply as well.
    """

    agent: str | None = optional_field()
    max_depth: int | None = optional_field()
    share_budget: bool = optional_field(False)
    max_total_tokens: int | None = optional_field()
    max_cost: float | None = optional_field()
    output_schema: dict[str, JsonValue] | None = optional_field()
    """The output of its runs, where the caller declares it."""
    checks_output: bool = optional_field(False)
    """Whether the calling agent checks the output of its runs by its own declaration."""
    quarantine: bool = optional_field(False)
    """Whether the calling agent gets nothing but a valid object of what a run has read."""


class ToolFacts(SubAgentFacts):
    """How the workflow schedules a tool. Times are seconds.

    `queue_timeout`: how long a call may wait until a worker starts it. `mcp`: the tool's name at its MCP server, as in
    Definition. `may_ask_person`: whether its MCP server may ask people in the middle of a call.
    """

    timeout: float
    queue_timeout: float | None = optional_field()
    attempts: int = 1
    task_queue: str | None = optional_field()
    local: bool = False
    mcp: str | None = optional_field()
    may_ask_person: bool = optional_field(False)
    makes_calls: bool = optional_field(False)
    """Whether its calls do nothing but by calls that they make themselves."""
    feature: str | None = optional_field()
    """The name of the feature that adds the tool."""
    asks: bool = optional_field(False)
    """Whether its calls may wait for a person before they run."""
    features: dict[str, JsonValue] = optional_field({})
    """What its options of features are scheduled by, by the names of these."""
    role: str | None = optional_field()
    """The role that whoever decides on its calls must have."""
    untrusted: bool = optional_field(False)
    """Whether others may have written its results; of a sub-agent, whether it has such tools."""


class AgentFacts(ModelFacts):
    """How the workflow schedules a run. Times are seconds."""

    max_steps: int
    max_repeats: int | None = optional_field()
    """In how many consecutive steps a call may fail; None: no limit."""
    max_total_tokens: int | None = optional_field()
    max_sub_runs: int
    """How many runs of sub-agents may be started below the run."""
    model_timeout: float
    model_patience: float
    model_attempts: int | None = optional_field()
    features: dict[str, dict[str, JsonValue]] = optional_field({})
    """What the features that the agent is declared with are scheduled by, by their names."""
    tools: dict[str, ToolFacts]
    definition: Definition
    digest: str
    structured: bool = optional_field(False)
    instructions_chars: int | None = optional_field()
    """How many characters of the definition's instructions are the agent's own, where others follow; None: all."""
    version: AgentVersion | None = optional_field()
    """The version of the agent's file, if the agent is one."""
    guarded: bool = optional_field(False)
    tools_by_function: bool = optional_field(False)
    """Whether a function has returned the agent's tools for this run."""
    carry_bytes: int | None = optional_field()
    """How many bytes continue-as-new may carry, where there is external storage; None: one of Temporal's payloads."""
    model_task_queue: str | None = optional_field()
    """The task queue of model calls, where these have limits of their own; None: the run's."""
    search_attributes: list[str] = optional_field([])
    """Those that the run sets, because the server has them (mulligan/wire/search_attributes.py)."""

    def with_limits_of(self, run: AgentFacts, max_depth: int) -> AgentFacts:
        """The facts of an agent that takes the conversation of a run over: the limits stay the run's.

        `run`: the facts of the agent that has the conversation. `max_depth`: of the run's sub-agents.
        """
        names = ("max_steps", "max_repeats", "max_total_tokens", "max_sub_runs", "max_cost")
        kept = {name: getattr(run, name) for name in (*names, "carry_bytes", "search_attributes")}
        tools = {
            name: tool if tool.agent is None else tool.model_copy(update={"max_depth": max_depth})
            for name, tool in self.tools.items()
        }
        return self.model_copy(update={**kept, "tools": tools, "prices": {**run.prices, **self.prices}})


class OpenRun(BaseModel):
    """Input of `open_run`: resolve an agent and open its trace. `input` is None where it is too large to be sent twice."""

    agent: str
    conversation: str
    turn: int
    input: StartInput | None
    first_run_id: str
    parent: str | None = None
    call_id: str | None = optional_field()
    longest_message: int | None = optional_field()
    """Bytes of the longest new message as JSON, where only external storage can hold it."""


class OpenedRun(CheckedResult):
    """Result of `open_run`. `trace` is the W3C traceparent of the run's `invoke_agent` span."""

    facts: AgentFacts
    trace: str

    def fault(self) -> str | None:
        """Why the opened run cannot be used: without a trace, or with facts by which nothing can be scheduled."""
        return fault_of_facts(self.facts) if TRACEPARENT.fullmatch(self.trace) else "it has no trace"


def fault_of_facts(facts: AgentFacts) -> str | None:
    """Why nothing can be scheduled by the facts; None if it can."""
    tools = facts.tools.values()
    # These are compared only; the others go to Temporal, or are counted down to.
    large = [facts.max_total_tokens, facts.carry_bytes, *(tool.max_total_tokens for tool in tools)]
    small = [facts.max_steps, facts.max_repeats, facts.max_sub_runs, facts.model_attempts]
    small += [count for tool in tools for count in (tool.attempts, tool.max_depth)]
    seconds = [facts.model_timeout, facts.model_patience, facts.fallback_patience]
    seconds += [each for tool in tools for each in (tool.timeout, tool.queue_timeout)]
    queues = [facts.model_task_queue, *(tool.task_queue for tool in tools)]
    if not are_between(0, MOST_COUNT, large) or not are_between(0, MOST_INT, small):
        return "a limit is no count"
    if not are_between(0, MOST_SECONDS, seconds):
        return "a time is no number of seconds"
    if not are_between(0, MOST_USD, [facts.max_cost, *(tool.max_cost for tool in tools)]):
        return "a limit is no number of USD"
    if not all(queue is None or 0 < len(queue.encode()) <= NAME_BYTES for queue in queues):
        return "a task queue has no name, or one that is too long"
    return None
