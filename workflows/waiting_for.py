"""What a turn waits for at this moment, for the query `progress`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from temporalio import workflow

from mulligan.values import ToolCall, WaitingFor
from mulligan.wire.tenant_budget import OverBudgetDetails
from mulligan.wire.updates import clock, iso
from mulligan.workflows.background.open_response import OpenResponse
from mulligan.workflows.batch.batch_wait import BatchWait
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.deferred.deferred_calls import DeferredCall
from mulligan.workflows.people.pending_decisions import PendingDecision
from mulligan.workflows.turn import Turn

__all__ = [
    "RunningCall",
    "waiting_for",
    "waiting_for_agent",
    "waiting_for_budget",
    "waiting_for_opening",
    "waiting_for_summary",
]


@dataclass(frozen=True, kw_only=True)
class RunningCall:
    """A tool call that is running. `since`: seconds since the epoch."""

    call: ToolCall
    record: CallRecord
    since: float = field(default_factory=workflow.time)


def waiting_for(
    *,
    pending: Sequence[PendingDecision],
    running: Sequence[RunningCall],
    deferred: Sequence[DeferredCall],
    conversation: Conversation,
    turn: Turn,
    key: str,
    elsewhere: OpenResponse | BatchWait | None = None,
) -> WaitingFor | None:
    """The first of: a tool, a person, a result from elsewhere, a point in time, the model. None: the turn works.

    Args:
        pending: The calls that wait for a person.
        running: The calls that run.
        deferred: The calls that wait for a result from elsewhere, or for a point in time.
        conversation: The agent's; its event log knows whether the model is being called.
        turn: The open turn.
        key: The agent's key in its workflow.
        elsewhere: The background response, or the wait for a batch, of the open model call.
    """
    if running:
        return _for_tool(running)
    if pending:
        return _for_person(pending, key)
    if deferred:
        return _for_deferred(deferred)
    model_call = conversation.event_log.writing
    if model_call is not None:
        what = f"waiting for `{turn.model}` (step {model_call.step})"
        if isinstance(elsewhere, OpenResponse) and elsewhere.id is not None:
            what += f": background response {elsewhere.id}, {elsewhere.status},"
            return _wait("model", model_call.at / 1000, what)
        if isinstance(elsewhere, BatchWait) and elsewhere.key is not None:
            return _wait("model", elsewhere.since, f"{what} in a batch, request {elsewhere.key},")
        return _wait("model", model_call.at / 1000, what, retried_for=_patience(turn, conversation))
    return None


def _patience(turn: Turn, conversation: Conversation) -> float:
    """For how many seconds the open model call is retried: a model that has another one after it may have fewer."""
    facts = turn.facts
    is_last = conversation.event_log.fallbacks == len(turn.models) - 1
    if is_last or facts.fallback_patience is None:
        return facts.model_patience
    return min(facts.fallback_patience, facts.model_patience)


def waiting_for_summary(model: str, since: float) -> WaitingFor:
    """The wait for a model that summarizes the conversation's older messages."""
    return _wait("model", since, f"waiting for `{model}`, which summarizes older messages,")


def waiting_for_budget(refused: OverBudgetDetails, since: float) -> WaitingFor:
    """The wait for a budget that is not spent."""
    what = (
        f"waiting, as tenant `{refused.tenant}` has spent {refused.usd:.2f} of its {refused.budget:.2f} USD of the day,"
    )
    return _wait("timer", since, what, "; it asks again until then", until=refused.until)


def waiting_for_opening(agent: str, since: float) -> WaitingFor:
    """The wait for a worker that opens the turn."""
    return _wait("worker", since, f"waiting for a worker that opens the run of agent `{agent}`")


def waiting_for_agent(agent: str, since: float) -> WaitingFor:
    """The wait for a worker that serves the agent, in the middle of a turn."""
    return _wait("worker", since, f"waiting for a worker that serves agent `{agent}`")


def _for_tool(running: Sequence[RunningCall]) -> WaitingFor:
    oldest = min(running, key=lambda each: each.since)
    run = oldest.record.run
    name = f"`{oldest.call.name}`" + (f" (run {run.id})" if run is not None and run.id else "")
    others = ", ".join(f"`{each.call.name}`" for each in running if each is not oldest)
    return _wait("tool", oldest.since, f"running {name}", f"; also running: {others}" if others else "")


def _for_person(pending: Sequence[PendingDecision], key: str) -> WaitingFor:
    oldest = min(pending, key=lambda each: each.since)
    is_question = oldest.kind == "question"
    what = f"an answer to `{oldest.call.name}`" if is_question else f"approval of `{oldest.call.name}`"
    run_id = shlex.quote(workflow.info().workflow_id)
    command = f"mulligan {'answer' if is_question else 'approve'} {run_id} {shlex.quote(oldest.call.id)}"
    if key != "0":
        command += f" --conversation {key}"
    if is_question:
        command += ' "…"'
    more = f" (and {len(pending) - 1} more: mulligan pending {run_id})" if len(pending) > 1 else ""
    return _wait("person", oldest.since, f"waiting for {what}", f": {command}{more}")


def _for_deferred(deferred: Sequence[DeferredCall]) -> WaitingFor:
    callbacks = [each for each in deferred if not each.is_timer]
    if not callbacks:
        first = min(deferred, key=lambda each: each.until or 0)
        what = f"`{first.call.name}` waits until {iso(first.until or 0)}"
        return _wait("timer", first.since or 0, what, until=first.until)
    oldest = min(callbacks, key=lambda each: each.since or 0)
    more = f" (and {len(callbacks) - 1} more)" if len(callbacks) > 1 else ""
    command = (
        f"mulligan complete {shlex.quote(workflow.info().workflow_id)} {shlex.quote(oldest.call.id)} --result JSON"
    )
    what = f"waiting for the result of `{oldest.call.name}`"
    return _wait("callback", oldest.since or 0, what, f": {command}{more}", until=oldest.until)


def _wait(
    kind: Literal["person", "tool", "model", "worker", "callback", "timer"],
    since: float,
    what: str,
    more: str = "",
    *,
    retried_for: float | None = None,
    until: float | None = None,
) -> WaitingFor:
    detail = f"{what} since {clock(since)}{more}"
    return WaitingFor(
        kind=kind, since=iso(since), detail=detail, retried_for=retried_for, until=None if until is None else iso(until)
    )
