"""Calls of sub-agents: each is a child workflow with a history of its own, and waiting for it costs no worker anything."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import (
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
)

from mulligan.errors import InvalidRunInputError, error_of
from mulligan.observe.trace_ids import parent_of_step
from mulligan.run_input import RunInput
from mulligan.values import RunResult, SubRun, Usage
from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.sub_run import AGENT_WORKFLOW, CALL_MEMO, RECORD_SUB_RUN, RecordSubRun, SubRunOutcome
from mulligan.wire.tool_call import CallTool, ToolOutcome
from mulligan.wire.updates import STOP
from mulligan.workflows import dispatch
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.turn import Turn

__all__ = ["SubAgents"]

LONGEST_ID = 255
"""Bytes of a workflow's id: what Temporal's tables in PostgreSQL and MySQL hold."""
MOST_STARTS = 3
"""Ids that are tried for one call: after a reset, a run of the first one may be about to end."""
_ENDS: Mapping[type[BaseException], str] = {
    CancelledError: "cancelled",
    TimeoutError: "timed_out",
    TerminatedError: "terminated",
}


@dataclass
class _Call:
    """A call, from its beginning until it is told."""

    order: CallTool
    facts: ToolFacts
    turn: Turn
    kept: CallRecord
    sharing: int
    started: float = field(default_factory=workflow.time)
    run: SubRun = field(init=False)
    handle: workflow.ChildWorkflowHandle[Any, Any] | None = None
    task: asyncio.Task[ToolOutcome] | None = None
    is_cancelled: bool = False
    text: str = ""
    reason: str = ""
    failure: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.run = SubRun(id="", agent=self.facts.agent or "", status="not_started")


class SubAgents:
    """The runs of sub-agents that one agent of a workflow waits for."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._open: dict[str, _Call] = {}

    async def call(self, order: CallTool, facts: ToolFacts, turn: Turn, kept: CallRecord, sharing: int) -> ToolOutcome:
        """What comes of a call. `kept` shows its run; `sharing`: how many calls the rest of the budget is divided among."""
        call = _Call(order, facts, turn, kept, sharing)
        self._open[order.call.id] = call
        call.task = asyncio.create_task(self._settled(call))
        try:
            # It goes on when this is cancelled, which may be twice: until its run has ended, and its span is closed.
            return await asyncio.shield(call.task)
        except asyncio.CancelledError:
            call.is_cancelled = True
            if call.handle is not None:
                call.handle.cancel()
            raise

    async def ended(self) -> None:
        """Wait until no run is open any more."""
        await asyncio.gather(*(call.task for call in self._open.values() if call.task), return_exceptions=True)

    async def _settled(self, call: _Call) -> ToolOutcome:
        try:
            await self._run(call)
            return await _told(call)
        finally:
            del self._open[call.order.call.id]

    async def _run(self, call: _Call) -> None:
        depth = depth_left(call.turn, call.facts)
        if call.is_cancelled:
            return
        if depth <= 0:
            call.run.status = "too_deep"
            return
        prompt = call.order.arguments.get("prompt") if isinstance(call.order.arguments, dict) else None
        if not isinstance(prompt, str):
            # Its worker, of another version, took the tool for an ordinary one.
            call.reason = "its input is no prompt"
            return
        budget = share_of(call.turn, call.facts, call.sharing) if call.facts.share_budget else {}
        if budget is None:
            call.reason = "nothing is left of this run's budget for it"
            return
        try:
            call.handle = await _start(call, prompt, depth - 1, budget)
        except WorkflowAlreadyStartedError as error:
            call.reason = f"a run of the id {error.workflow_id!r} is open already"
            return
        if call.is_cancelled:
            call.handle.cancel()
        stopping = asyncio.create_task(self._stop_as_well(call.handle))
        try:
            _completed(call, await call.handle)
        except ChildWorkflowError as error:
            _failed(call, error)
        except asyncio.CancelledError:
            call.run.status = "cancelled"
        finally:
            stopping.cancel()

    async def _stop_as_well(self, handle: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """When the calling run is stopped, its sub-agents are: each lets its calls finish, and gives what there is."""
        await workflow.wait_condition(lambda: self._inbox.stop is not None)
        stop = self._inbox.stop
        try:
            await handle.signal(STOP, stop.model_dump(mode="json", include={"reason", "by"}) if stop else None)
        except FailureError:
            return  # it has ended meanwhile


def depth_left(turn: Turn, facts: ToolFacts) -> int:
    """How many levels of sub-agents may still be below a run: by its input, and by what its agent was declared with."""
    declared = facts.max_depth or 0
    return declared if turn.input.max_depth is None else min(turn.input.max_depth, declared)


def share_of(turn: Turn, facts: ToolFacts, sharing: int) -> dict[str, Any] | None:
    """What a run may spend of what is left of the turn's budget, as fields of its input; None where that is nothing.

    Each of the calls that share gets as much, whenever it begins: however they end, all together keep to the budget.
    """
    share: dict[str, Any] = {}
    if turn.max_total_tokens is not None:
        left = (turn.max_total_tokens - turn.result.usage.total_tokens) // max(1, sharing)
        share["max_total_tokens"] = min(left, left if facts.max_total_tokens is None else facts.max_total_tokens)
    if turn.max_cost is not None:
        rest = (turn.max_cost - turn.spent) / max(1, sharing)
        share["max_cost"] = min(rest, rest if facts.max_cost is None else facts.max_cost)
    return share if all(limit > 0 for limit in share.values()) else None


def child_id(parent: str, call_id: str, conversation: str, times: int = 1) -> str:
    """The workflow id of a call's run: the same whenever the call is replayed, another for every other call.

    A call's id is unique in its conversation alone, so one that is not the workflow's first is named; with a dot, which no
    call's id has in it.
    """
    name = ".".join(
        [call_id, *([conversation] if conversation != "0" else []), *([f"again{times}"] if times > 1 else [])]
    )
    whole = f"{parent}/{name}"
    if len(whole.encode()) <= LONGEST_ID:
        return whole
    return f"{hashlib.sha256(parent.encode()).hexdigest()[:32]}/{name}"


async def _start(
    call: _Call, prompt: str, depth: int, budget: Mapping[str, Any]
) -> workflow.ChildWorkflowHandle[Any, Any]:
    order, where, run = call.order, call.order.where, call.run
    given = RunInput(
        agent=run.agent,
        prompt=prompt,
        metadata=order.metadata,
        traceparent=parent_of_step(where.trace, order.step),
        max_depth=depth,
        **budget,
    )
    times = 0
    while True:
        times += 1
        run.id = child_id(workflow.info().workflow_id, order.call.id, where.conversation, times)
        try:
            handle = await workflow.start_child_workflow(
                AGENT_WORKFLOW,
                given.model_dump(mode="json", exclude_defaults=True),
                id=run.id,
                task_queue=call.facts.task_queue,
                execution_timeout=timedelta(seconds=call.facts.timeout) if call.facts.timeout else None,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                # A run that is terminated, or times out, leaves no sub-agents behind that work for nobody.
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                memo={"agent": run.agent, CALL_MEMO: order.call.id},
                static_summary=run.agent[:60],
            )
        except WorkflowAlreadyStartedError:
            if times == MOST_STARTS:
                raise
            continue
        run.status, run.run_id = "running", handle.first_execution_run_id or ""
        call.kept.run = run
        return handle


def _completed(call: _Call, given: Any) -> None:
    """The run has ended with a result: what it says is the call's, what it took is the turn's as well."""
    try:
        result = RunResult.model_validate(given)
    except ValidationError:
        call.run.status, call.reason = "failed", "its result is none of an agent's run"
        return
    run = call.run
    run.status, run.steps, run.usage, run.cost = result.status, result.steps, result.usage, result.cost
    call.turn.spend(result.usage, result.cost)
    said = result.output
    call.text = said if isinstance(said, str) else "" if said is None else json.dumps(said, ensure_ascii=False)


def _failed(call: _Call, error: ChildWorkflowError) -> None:
    cause = error.cause or error
    typed = error_of(cause)
    call.run.status = _ENDS.get(type(cause), "failed")
    call.failure = typed.to_json() if typed else None
    took = typed.took if typed else None
    # What it took counts for the limits of this run: not where an older worker has gone on without it.
    if took is not None and workflow.patched("took"):
        call.run.steps, call.run.usage, call.run.cost = took.steps, took.usage, took.cost
        call.turn.spend(took.usage, took.cost)
    elif not isinstance(typed, InvalidRunInputError):
        call.turn.spend(Usage(), None)  # it has spent something, and says no longer how much
    if call.run.status == "failed":
        call.reason = f"{type(typed or cause).__name__}: {getattr(typed or cause, 'message', '') or cause}"


async def _told(call: _Call) -> ToolOutcome:
    order = call.order
    done: SubRunOutcome = await dispatch.record(
        RECORD_SUB_RUN,
        RecordSubRun(
            where=order.where,
            call=order.call,
            step=order.step,
            started=call.started,
            repaired_by=order.repaired_by,
            arguments=order.arguments,
            run=call.run,
            text=call.text,
            reason=call.reason,
            failure=call.failure,
            limit=call.facts.timeout,
            decision=order.decision,
            cancelled=call.is_cancelled,
        ),
        SubRunOutcome,
    )
    text = call.text if done.as_given else done.text
    return ToolOutcome(text=text, error=done.error, failure=done.failure, attempts=done.attempts)
