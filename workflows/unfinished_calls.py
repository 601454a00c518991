"""The results of the calls of a step that was cut short: calls that have ended keep theirs, the others say what is known.

Providers refuse a conversation in which a call has no result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.values import ErrorInfo, ToolCall, ToolMessage
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.tool_call import tool_message
from mulligan.workflows.people.person_wait import PersonWait

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent


def settle_unfinished_calls(agent: RunningAgent) -> None:
    """Give each call of the open step its one result, also those that a script has made. It changes no other step."""
    results, conversation = results_of_open_step(agent), agent.conversation
    if not results:
        return
    for index, inner in conversation.inner_calls():
        if inner.result is None:
            _settle(agent, index, _unfinished(agent, inner.call, inner.prepared))
    early = {*conversation.early_results}
    for index, result in enumerate(results):
        if result.call_id not in early:
            _settle(agent, index, result)
    conversation.end_step(results)
    agent.waits.abandoned.clear()
    for feature in agent.linked("cut_short"):
        feature.cut_short()


def results_of_open_step(agent: RunningAgent) -> list[ToolMessage]:
    """The results of the open step's calls, in their order, as if it ended now; none if they are messages already."""
    step, conversation = agent.open_step, agent.conversation
    if step is None or not conversation.has_open_answer:
        return []
    early, calls = conversation.early_results, step.answer.message.tool_calls
    return [
        early.get(call.id) or _unfinished(agent, call, prepared)
        for call, prepared in zip(calls, step.answer.prepared, strict=True)
    ]


def _settle(agent: RunningAgent, index: int, result: ToolMessage) -> None:
    conversation, step = agent.conversation, agent.conversation.steps[-1]
    record = step.calls[index] if index < len(step.calls) else step.inner[index - len(step.calls)].record
    if _has_started(agent, result.call_id):
        record.attempts = max(1, record.attempts)
    conversation.record_early_result(index, result)
    conversation.event_log.tool_call_settled(index)


def _has_started(agent: RunningAgent, call_id: str) -> bool:
    return agent.open_step is not None and call_id in agent.open_step.started


def _unfinished(agent: RunningAgent, call: ToolCall, prepared: PreparedCall | None) -> ToolMessage:
    """The result of a call without one: what its inspection has found, or whether it has begun to run."""
    if prepared is not None and prepared.text is not None:
        return tool_message(call, prepared.text, prepared.error)
    if _has_started(agent, call.id):
        kind = "tool_lost"
        text = (
            f"The call of `{call.name}` was cut off: the run ended before its result was known. It may or may not have "
            "done its work; find out before you make it again."
        )
    else:
        kind = "denied"
        reason = "nobody had decided on it when the run ended" if _is_undecided(agent, call) else "the run ended first"
        text = f"`{call.name}` was not run: {reason}. Call it again if it is needed."
    return tool_message(call, text, ErrorInfo(kind=kind, message=text))


def _is_undecided(agent: RunningAgent, call: ToolCall) -> bool:
    """Whether a person was asked about the call, and has not decided."""
    asked = [*agent.waits.of(PersonWait), *agent.waits.abandoned]
    return any(wait.key == call.id and not wait.is_over for wait in asked)
