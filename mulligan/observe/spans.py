"""Each span that Mulligan writes, defined once: its name, kind, parent, id, attributes, and what it says of a failure.

Workers write spans by these definitions (`telemetry.py`), and `mulligan show --trace` draws what no Jaeger has by the same
ones (`mulligan/trace_view/run_spans.py`): what is None here is unknown there, and its attribute is left out. Content, which
is opt-in, is added by `telemetry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from opentelemetry.trace import Link, SpanContext, SpanKind, get_current_span

from mulligan.content import Media
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.trace_ids import (
    STEPS_IN_A_GROUP,
    context_of_caller,
    derive,
    group_key,
    parent_of_step,
    trace_id_of_run,
)
from mulligan.schema.cut_text import cut_text
from mulligan.schema.well_formed import well_formed
from mulligan.values import Decision, ToolCall, Usage
from mulligan.wire.agent_facts import OpenRun
from mulligan.wire.agent_version import AgentVersion
from mulligan.wire.run_end import TurnEnd
from mulligan.wire.start_input import Origin, StartInput

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = dict[str, AttributeValue]

MOST_CONTENTS = 20
"""Images and files that a span lists."""
MAX_TEXT_CHARS = 4_096
"""Characters of an error's text, or of content, on a span: backends drop or cut what is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanDefinition:
    """A span without its times. `parent`: the W3C traceparent of its parent, "" for the root of a trace."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    parent: str
    trace_id: int
    span_id: int
    attributes: Attributes
    links: Sequence[Link] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFailure:
    """What a span with status ERROR says, beside its definition.

    `kind` is its `error.type`, `text` the description of its status. `exception` is the type that its `exception` event
    names; without one there is no event.
    """

    kind: str
    text: str
    exception: str = ""
    attributes: Attributes = field(default_factory=dict)

    @property
    def all_attributes(self) -> Attributes:
        """`attributes` and `error.type`."""
        return {**self.attributes, semconv.ERROR_TYPE: self.kind}

    @property
    def event(self) -> Mapping[str, str]:
        """The attributes of the `exception` event; empty if there is no event."""
        if not self.exception:
            return {}
        return {semconv.EXCEPTION_TYPE: self.exception, semconv.EXCEPTION_MESSAGE: self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTurn:
    """A run, or a turn of a `DurableAgent`. `parent`: the caller's traceparent. `call_id`: of the call that started it."""

    agent: str
    workflow_id: str
    run_id: str
    first_run_id: str
    conversation: str
    turn: int = 1
    parent: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    call_id: str | None = None
    origin: Origin | None = None
    version: AgentVersion | None = None

    @classmethod
    def opened_by(cls, request: OpenRun, run_input: StartInput, **known: Any) -> TracedTurn:
        """The run, or turn, that `open_run` opens. `known`: the fields that the activity knows."""
        of_request = {name: getattr(request, name) for name in _OF_REQUEST}
        return cls(**of_request, **known, metadata=run_input.metadata, origin=run_input.carried.origin)


_OF_REQUEST = ("agent", "first_run_id", "conversation", "turn", "parent", "call_id")


class CallsModel(Protocol):
    """The input of an activity that calls a model, `provider:NAME`, in a step."""

    model: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAttempt:
    """One attempt of a model call.

    Attributes:
        model: Its name, as the provider knows it.
        provider: The provider's name in OpenTelemetry's conventions.
        step: The step of the run.
        attempt: Counted from 1.
        repaired_call: The id of the tool call whose arguments this model repairs; "" if it is not a repair.
        compacted_messages: How many messages it sums up; 0 if it is not a compaction.
        fallback: How many models failed before in this step.
    """

    model: str
    provider: str | None = None
    step: int
    attempt: int
    repaired_call: str = ""
    compacted_messages: int = 0
    fallback: int = 0

    @classmethod
    def of(cls, request: CallsModel, attempt: int, **fields: Any) -> ChatAttempt:
        """An attempt of the model call of an activity. `fields`: those that not every activity's input has."""
        return cls(model=ModelName.parse(request.model).name, step=request.step, attempt=attempt, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallAttempt:
    """One attempt of a tool call, or a mistake in a call. `sub_run`: the workflow id of the sub-agent's run.

    `handed_to`: the agent that the call has handed the conversation over to. `recorded`: whether no tool ran, as the call
    has the result of an equal call of another run. `untrusted`: whether others may have written the result.
    """

    call: ToolCall
    step: int
    attempt: int
    repaired_by: Sequence[str] = ()
    mcp_server: str | None = None
    decision: Decision | None = None
    sub_run: str = ""
    handed_to: str = ""
    recorded: bool = False
    untrusted: bool = False


def invoke_agent(run: TracedTurn) -> SpanDefinition:
    """`invoke_agent AGENT`: the root of a run. It joins the caller's trace, if there is one."""
    caller = get_current_span(context_of_caller(run.parent)).get_span_context()
    own_trace = trace_id_of_run(run.workflow_id, run.first_run_id)
    return SpanDefinition(
        name=f"{semconv.INVOKE_AGENT} {run.agent}",
        parent=_traceparent(caller) if caller.is_valid else "",
        trace_id=caller.trace_id if caller.is_valid else int(own_trace, 16),
        span_id=derive(64, "run", run.workflow_id, run.first_run_id, run.conversation, run.turn),
        attributes={
            semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
            semconv.AGENT_NAME: run.agent,
            semconv.CONVERSATION_ID: run.workflow_id,
            semconv.WORKFLOW_ID: run.workflow_id,
            semconv.RUN_ID: run.run_id,
            **({semconv.TOOL_CALL_ID: run.call_id} if run.call_id else {}),
            **_origin(run),
            **(_version(run.version) if run.version else {}),
            **{f"{semconv.METADATA}{key}": value for key, value in run.metadata.items()},
        },
        links=_links_to(run.origin),
    )


def _version(version: AgentVersion) -> Attributes:
    label: Attributes = {semconv.LABEL: version.label} if version.label else {}
    share: Attributes = {semconv.LABEL_SHARE: version.share} if version.share else {}
    return {semconv.AGENT_VERSION: version.digest, **label, **share}


def agent_steps(trace: str, step: int) -> SpanDefinition:
    """`agent.steps`: the parent of the hundred steps that begin with `step`."""
    attributes: Attributes = {semconv.STEP: step, semconv.LAST_STEP: step + STEPS_IN_A_GROUP - 1}
    return _child(semconv.AGENT_STEPS, trace, group_key(step), attributes)


_TOTALS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")


def agent_finish(trace: str, end: TurnEnd, workflow_type: str) -> SpanDefinition:
    """`agent.finish`: how a run ended."""
    attributes: Attributes = {
        semconv.WORKFLOW_TYPE: workflow_type,
        semconv.STATUS: end.status,
        semconv.STEPS: end.steps,
        semconv.RECOVERED_FAILURES: end.recovered_failures,
        **({semconv.COST: end.cost} if end.cost is not None else {}),
        **{f"{semconv.RUN_USAGE}{name}": getattr(end.usage, name) for name in _TOTALS},
    }
    return _child(semconv.AGENT_FINISH, trace, ("finish", end.turn), attributes)


def agent_evaluation(workflow_id: str, first_run_id: str, trace_id: str, function: str) -> SpanDefinition:
    """`agent.evaluation`: a score function has rated a run. Its event has what it returned."""
    root = derive(64, "run", workflow_id, first_run_id, "0", 1)
    attributes: Attributes = {semconv.WORKFLOW_ID: workflow_id, semconv.EVALUATED_BY: function}
    return _child(semconv.AGENT_EVALUATION, f"00-{trace_id}-{root:016x}-01", ("evaluation", function), attributes)


def finish_failure(error_type: str) -> SpanFailure:
    """What `agent.finish` says of a run that failed."""
    return SpanFailure(kind=error_type, text=error_type)


def chat(trace: str, attempt: ChatAttempt) -> SpanDefinition:
    """`chat MODEL`: an attempt of a model call."""
    purpose: Attributes = {semconv.REPAIRED_CALL: attempt.repaired_call} if attempt.repaired_call else {}
    if attempt.compacted_messages:
        purpose[semconv.COMPACTION] = attempt.compacted_messages
    elif attempt.fallback:
        purpose[semconv.FALLBACK] = attempt.fallback
    # A compaction precedes the step whose model call opens the group of steps, so its parent is the run itself.
    parent = trace if attempt.compacted_messages else parent_of_step(trace, attempt.step)
    attributes: Attributes = {
        semconv.OPERATION_NAME: semconv.CHAT,
        **({semconv.PROVIDER_NAME: attempt.provider} if attempt.provider is not None else {}),
        semconv.REQUEST_MODEL: attempt.model,
        **purpose,
        semconv.STEP: attempt.step,
        semconv.ATTEMPT: attempt.attempt,
    }
    key = ("chat", attempt.step, attempt.attempt, *purpose, *purpose.values())
    return _child(f"{semconv.CHAT} {attempt.model}", parent, key, attributes, kind=SpanKind.CLIENT)


def chat_response(*, response_id: str, model: str, finish_reason: str, usage: Usage) -> Attributes:
    """The attributes of `chat` that the provider's response adds."""
    return {
        semconv.FINISH_REASONS: [finish_reason],
        **({semconv.RESPONSE_ID: cut(response_id)} if response_id else {}),
        **({semconv.RESPONSE_MODEL: cut(model)} if model else {}),
        **_usage(usage),
    }


def hosted_work(calls: Sequence[str], reason: str) -> Attributes:
    """The attributes of `chat` for what the provider did itself, and for why it refused or withheld the answer."""
    hosted: Attributes = {semconv.HOSTED_CALLS: [cut(call) for call in calls]} if calls else {}
    return {**hosted, semconv.REFUSAL_REASON: cut(reason)} if reason else hosted


def tool_call(trace: str, attempt: ToolCallAttempt) -> SpanDefinition:
    """`ai.toolCall`: an attempt of a tool call, or a mistake in one."""
    call, server = attempt.call, attempt.mcp_server
    attributes: Attributes = {
        semconv.AI_NAME: cut(call.name),
        semconv.AI_ID: call.id,
        semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
        semconv.TOOL_NAME: cut(call.name),
        semconv.TOOL_CALL_ID: call.id,
        semconv.TOOL_TYPE: "function",
        semconv.STEP: attempt.step,
        semconv.ATTEMPT: attempt.attempt,
        semconv.RECOVERED: False,
        semconv.REPAIRS: list(attempt.repaired_by),
        **({semconv.MCP_METHOD: semconv.TOOLS_CALL, semconv.MCP_SERVER: server} if server else {}),
        **({semconv.SUB_RUN: attempt.sub_run} if attempt.sub_run else {}),
        **({semconv.HANDED_TO: cut(attempt.handed_to)} if attempt.handed_to else {}),
        **({semconv.RECORDED: True} if attempt.recorded else {}),
        **({semconv.TRUST: "untrusted"} if attempt.untrusted else {}),
        **(_decision(attempt.decision) if attempt.decision is not None else {}),
    }
    key = ("tool", call.id, attempt.step, attempt.attempt)
    return _child(semconv.TOOL_CALL, _parent_of_call(trace, call, attempt.step), key, attributes)


def _parent_of_call(trace: str, call: ToolCall, step: int) -> str:
    """The parent of a call's span: the step's, or for call `CALL.n` the span of the script that makes it."""
    parent, (script, is_inner, _) = parent_of_step(trace, step), call.id.rpartition(".")
    if not is_inner:
        return parent
    version, trace_id, _, flags = parent.split("-")
    return f"{version}-{trace_id}-{derive(64, parent, 'tool', script, step, 1):016x}-{flags}"


def content_attributes(media: Sequence[Media]) -> Attributes:
    """What a span says of images, files and audio, of at most `MOST_CONTENTS`: their types, sizes and digests, no bytes."""
    described = media[:MOST_CONTENTS]
    return {semconv.CONTENT: [_content(part) for part in described]} if described else {}


def _content(part: Media) -> str:
    size = part.byte_count
    return cut(" ".join(filter(None, (part.media_type, "" if size is None else str(size), part.digest or part.url))))


def tool_call_failure(kind: str, text: str, *, recovered: bool, exception: str = "") -> SpanFailure:
    """What `ai.toolCall` says of a failure. `recovered`: whether `text` was returned to the model."""
    text = cut(text)
    attributes: Attributes = {semconv.RECOVERED: recovered, semconv.AI_ERROR: text}
    return SpanFailure(kind=kind, text=text, exception=exception, attributes=attributes)


def agent_request(trace: str, call: ToolCall, *, step: int, kind: str, question: int = 0) -> SpanDefinition:
    """`agent.request`: a call begins to wait for a person. `kind`: `approval` or `question`.

    `question`: the number of the question, from 1, if the call's MCP server asks it.
    """
    return _beside_call(semconv.AGENT_REQUEST, trace, call, step, {semconv.DECISION_KIND: kind}, question)


def agent_decision(trace: str, call: ToolCall, *, step: int, decision: Decision, question: int = 0) -> SpanDefinition:
    """`agent.decision`: what was decided on a call that waited for a person. `question`: as for `agent_request`."""
    attributes: Attributes = {semconv.DECISION_KIND: decision.kind, **_decision(decision)}
    return _beside_call(semconv.AGENT_DECISION, trace, call, step, attributes, question)


def agent_undo(trace: str, call: ToolCall, *, step: int, attempt: int, number: int) -> SpanDefinition:
    """`agent.undo`: an attempt to undo a call, in the trace of its run. `number`: of the undo among those of the run."""
    return _beside_call(semconv.AGENT_UNDO, trace, call, step, {semconv.ATTEMPT: attempt}, 1_000 * number + attempt)


def of_feature(trace: str, name: str, key: Sequence[object], attributes: Attributes) -> SpanDefinition:
    """A span that a feature of somebody's own writes. `key` tells it apart from the others of its name."""
    return _child(name, trace, (name, *key), attributes)


def decision_time(decision: Decision) -> float:
    """When it was decided: seconds since the epoch."""
    return datetime.fromisoformat(decision.at).timestamp()


def cut(text: str) -> str:
    """Return the text, well-formed and shortened to the maximum of a span."""
    return cut_text(str(well_formed(text)), MAX_TEXT_CHARS)


def _child(
    name: str,
    parent: str,
    id_key: tuple[object, ...],
    attributes: Attributes,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
) -> SpanDefinition:
    """A span below another one of the run. Its id is derived from its parent and `id_key`."""
    return SpanDefinition(
        name=name,
        kind=kind,
        parent=parent,
        trace_id=int(parent.split("-")[1], 16),
        span_id=derive(64, parent, *id_key),
        attributes=attributes,
    )


def _beside_call(
    name: str, trace: str, call: ToolCall, step: int, attributes: Attributes, number: int = 0
) -> SpanDefinition:
    """A span about a call that is a sibling of the call's own span. `number` tells several of a name apart."""
    about_call: Attributes = {semconv.TOOL_NAME: cut(call.name), semconv.TOOL_CALL_ID: call.id, semconv.STEP: step}
    parent, key = _parent_of_call(trace, call, step), (name, call.id, step, *[number][: number > 0])
    return _child(name, parent, key, {**about_call, **attributes})


def _decision(decision: Decision) -> Attributes:
    """What was decided, when and by whom. Its reason is content, which only a worker adds, and only by opt-in."""
    return {
        semconv.DECISION: decision.decision,
        semconv.DECIDED_AT: decision.at,
        **({semconv.DECIDED_BY: decision.by} if decision.by else {}),
        **({semconv.EDITED: True} if decision.edited else {}),
        **({semconv.EDITED_BY: decision.edited_by} if decision.edited_by else {}),
        **({semconv.RULE: decision.rule.name} if decision.rule else {}),
    }


def _usage(usage: Usage) -> Attributes:
    return {
        semconv.INPUT_TOKENS: usage.input_tokens,
        semconv.OUTPUT_TOKENS: usage.output_tokens,
        semconv.CACHED_INPUT_TOKENS: usage.cached_input_tokens,
        semconv.REASONING_TOKENS: usage.reasoning_tokens,
    }


def _origin(run: TracedTurn) -> Attributes:
    """The attributes that name the run from which a run was resumed or forked."""
    if (origin := run.origin) is None:
        return {}
    workflow, run_id = {
        "resume": (semconv.RESUMED_WORKFLOW, semconv.RESUMED_RUN),
        "fork": (semconv.FORKED_WORKFLOW, semconv.FORKED_RUN),
    }[origin.kind]
    step: Attributes = {semconv.FORKED_STEP: origin.step} if origin.kind == "fork" else {}
    return {workflow: origin.workflow_id, run_id: origin.run_id, **step}


def _links_to(origin: Origin | None) -> list[Link]:
    """The link to the `invoke_agent` of that run."""
    before = get_current_span(context_of_caller(origin.traceparent if origin else None))
    return [Link(before.get_span_context())] if before.get_span_context().is_valid else []


def _traceparent(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 1:02x}"
