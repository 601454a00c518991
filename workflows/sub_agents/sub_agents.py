"""Runs calls of sub-agents. Each is a child workflow with a history of its own; waiting for it uses no worker."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)

from mulligan.errors import InvalidRunInputError, error_of
from mulligan.observe.trace_ids import parent_of_step
from mulligan.values import RunResult, SubRun, Usage
from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.run_context import AGENT_WORKFLOW, CALL_MEMO
from mulligan.wire.run_status import status_of_cause
from mulligan.wire.start_input import Carried, StartInput
from mulligan.wire.start_memo import start_options
from mulligan.wire.sub_agents import RECORD_SUB_RUN, RecordSubRun, SubRunOutcome
from mulligan.wire.tool_call import CallTool, ToolOutcome
from mulligan.wire.updates import STOP
from mulligan.workflows import limits
from mulligan.workflows.activity_result import can_be_added, read_result
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.feature import Feature
from mulligan.workflows.people.person_wait import FIRST_AGENT_KEY
from mulligan.workflows.scheduling import RECORD
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.turn import Turn

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent


@dataclass(kw_only=True)
class _SubAgentCall:
    """A call of a sub-agent, from its start until its result is recorded.

    `record` shows the run. `sharing`: how many calls of the step share the rest of the budget. `text` is the run's output;
    `reason` and `failure` say why there is none.
    """

    request: CallTool
    handed_down: Mapping[str, Any]
    facts: ToolFacts
    turn: Turn
    record: CallRecord
    sharing: int
    started: float = field(default_factory=workflow.time)
    run: SubRun = field(init=False)
    handle: workflow.ChildWorkflowHandle[Any, Any] | None = None
    task: asyncio.Task[ToolOutcome] | None = None
    is_cancelled: bool = False
    text: str = ""
    reason: str = ""
    failure: dict[str, Any] | None = None
    untrusted: bool = False
    """Whether the run has read results that others may have written, as far as is known."""
    reserved: int = 0
    """How many runs the call may use, its own included."""

    def __post_init__(self) -> None:
        self.run = SubRun(id="", agent=self.facts.agent or "", status="not_started")

    def cancel(self) -> None:
        """Cancel the run: at once if it has started, or else as soon as it has."""
        self.is_cancelled = True
        if self.handle is not None:
            self.handle.cancel()


class SubAgents(Feature):
    """The runs of sub-agents that one agent of a workflow waits for. Its state: the runs that each call may use."""

    schedules: ClassVar = {RECORD_SUB_RUN: RECORD}

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._open: dict[str, _SubAgentCall] = {}
        self._runs_per_call = 1
        """How many runs each call of the newest step may use."""

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether one of the agent's tools is an agent."""
        return any(each.agent is not None for each in turn.facts.tools.values())

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """Divide the runs that the turn may still start among the calls of sub-agents that begin together."""
        turn = self.agent.turn
        if any(call.is_carried for call in calls):
            return
        left = turn.max_sub_runs - turn.result.sub_runs
        starting = sum(call.prepared.text is None and _is_sub_agent(call) for call in calls)
        self._runs_per_call = max(1, left // max(1, starting))

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run a sub-agent, and return the result of its call."""
        if call.facts is None or not _is_sub_agent(call):
            return await then(call)
        assert call.request is not None
        # The calls of the step that share the rest of the budget, whether they have started or not.
        sharing = sum(each.facts.share_budget for each in self.agent.calls if each.facts is not None)
        running = _SubAgentCall(
            request=call.request,
            handed_down=call.handed_down,
            facts=call.facts,
            turn=self.agent.turn,
            record=call.record,
            sharing=sharing,
        )
        self._open[call.call.id] = running
        with self.agent.running(call):
            running.task = asyncio.create_task(self._run_and_record(running))
            assert self.agent.step_calls is not None
            self.agent.step_calls.tasks.append(running.task)
            try:
                # A cancellation, which may come twice, does not end the task: it ends when the run has, and its span is
                # closed.
                return await asyncio.shield(running.task)
            except asyncio.CancelledError:
                running.cancel()
                raise

    def dump(self) -> int | None:
        """The runs that each call of an open step may use."""
        return self._runs_per_call if self.agent.open_step is not None else None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._runs_per_call = state

    async def _run_and_record(self, call: _SubAgentCall) -> ToolOutcome:
        try:
            await self._run(call)
            return await self._record(call)
        finally:
            del self._open[call.request.call.id]

    async def _run(self, call: _SubAgentCall) -> None:
        """Start the run and wait for its end. If it cannot be started, the call's status or reason says why."""
        depth = remaining_depth(call.turn, call.facts)
        if call.is_cancelled:
            return
        if depth <= 0:
            call.run.status = "too_deep"
            return
        if not self._reserve_runs(call):
            call.run.status = "too_many"
            return
        try:
            await self._run_within_limits(call, depth)
        finally:
            if call.handle is None:
                _return_unused_runs(call, used=0)

    def _reserve_runs(self, call: _SubAgentCall) -> bool:
        """Count the runs that the call may use as used; what it does not use is returned when it ends.

        So all runs of a tree together keep to the limit of its root, however many of them are open at once.
        """
        left = call.turn.max_sub_runs - call.turn.result.sub_runs
        call.reserved = max(0, min(self._runs_per_call, left))
        call.turn.result.sub_runs += call.reserved
        return call.reserved > 0

    async def _run_within_limits(self, call: _SubAgentCall, depth: int) -> None:
        arguments = call.request.arguments
        prompt = arguments.get("prompt") if isinstance(arguments, dict) else None
        if not isinstance(prompt, str):
            # A worker of another version has validated the call by the schema of an ordinary tool.
            call.reason = "its arguments have no prompt"
            return
        budget = budget_share(call.turn, call.facts, call.sharing) if call.facts.share_budget else {}
        if budget is None:
            call.reason = "this run has no budget left for it"
            return
        try:
            run_input = _input_of(call, prompt, depth - 1, budget).with_fields(**call.handed_down)
        except ValidationError as error:
            # A worker of another version has declared the sub-agent, or has divided the budget.
            fault = error.errors(include_url=False)[0]
            call.reason = f"its input is invalid ({'.'.join(map(str, fault['loc']))}: {fault['msg']})"
            return
        try:
            call.handle = await _start(call, run_input)
        except WorkflowAlreadyStartedError as error:
            call.reason = f"a run of the id {error.workflow_id!r} is already open"
            return
        if call.is_cancelled:
            call.handle.cancel()
        stopping = asyncio.create_task(self._forward_stop(call.handle))
        try:
            _take_result(call, await call.handle)
        except ChildWorkflowError as error:
            _take_failure(call, error)
        except asyncio.CancelledError:
            call.run.status = "cancelled"
        finally:
            stopping.cancel()

    async def _forward_stop(self, handle: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """When the calling run is stopped, stop the sub-agent's: it lets its calls finish, and returns what it has."""
        await workflow.wait_condition(lambda: self.agent.is_stopped)
        stop = self.agent.inbox.stop
        try:
            await handle.signal(STOP, stop.model_dump(mode="json", include={"reason", "by"}) if stop else None)
        except FailureError:
            return  # it has ended in the meantime

    async def _record(self, call: _SubAgentCall) -> ToolOutcome:
        """Write the call's span, and return its result: the run's output, or the feedback for the model."""
        request = call.request
        record = RecordSubRun.like(
            request,
            started=call.started,
            run=call.run,
            text=call.text,
            reason=call.reason,
            failure=call.failure,
            limit=call.facts.timeout,
            cancelled=call.is_cancelled,
            untrusted=call.untrusted,
            checks_output=call.facts.checks_output,
            quarantine=call.facts.quarantine,
        )
        summary = f"{request.call.name}: {call.run.status}"
        recorded = await self.agent.activity(RECORD_SUB_RUN, record, SubRunOutcome, summary=summary)
        if recorded.is_text_unchanged:
            recorded.text = call.text
        return recorded


def _is_sub_agent(call: StepCall) -> bool:
    return call.facts is not None and call.facts.agent is not None


def remaining_depth(turn: Turn, facts: ToolFacts) -> int:
    """How many levels of sub-agents may be below this run: the smaller of its input's limit and its agent's."""
    declared = facts.max_depth or 0
    return declared if turn.input.max_depth is None else min(turn.input.max_depth, declared)


def budget_share(turn: Turn, facts: ToolFacts, sharing: int) -> dict[str, Any] | None:
    """The limits of a run that shares the turn's budget, as fields of its input; None if nothing is left of the budget.

    The rest of the budget is divided by the number of calls that share it, whether they have started or not. However
    they end, all of them together keep to the budget.
    """
    share: dict[str, Any] = {}
    if turn.max_total_tokens is not None:
        tokens = (turn.max_total_tokens - turn.result.usage.total_tokens) // max(1, sharing)
        share["max_total_tokens"] = min(tokens, tokens if facts.max_total_tokens is None else facts.max_total_tokens)
    if turn.max_cost is not None:
        cost = (turn.max_cost - turn.spent) / max(1, sharing)
        share["max_cost"] = min(cost, cost if facts.max_cost is None else facts.max_cost)
    return share if all(limit > 0 for limit in share.values()) else None


def child_workflow_id(parent: str, call_id: str, conversation: str, attempt: int = 1) -> str:
    """The workflow id of a call's run: the same at each replay of the call, and different for every other call.

    A call's id is unique in its conversation only. If that is not the workflow's first, its key is added after a dot,
    which is in no call's id. `attempt`: counts the ids that are tried for one call.
    """
    name = ".".join(
        [
            call_id,
            *([conversation] if conversation != FIRST_AGENT_KEY else []),
            *([f"again{attempt}"] if attempt > 1 else []),
        ]
    )
    readable = f"{parent}/{name}"
    if len(readable.encode()) <= limits.WORKFLOW_ID_BYTES:
        return readable
    return f"{hashlib.sha256(parent.encode()).hexdigest()[:32]}/{name}"


def _input_of(call: _SubAgentCall, prompt: str, depth: int, budget: Mapping[str, Any]) -> StartInput:
    """The input of the call's run.

    Raises:
        ValidationError: a run does not accept the sub-agent's name, or a limit of its run.
    """
    request = call.request
    return StartInput(
        agent=call.run.agent,
        prompt=prompt,
        metadata=request.metadata,
        traceparent=parent_of_step(request.where.trace, request.step),
        max_depth=depth,
        max_sub_runs=call.reserved - 1,
        tenant=call.turn.input.tenant,
        user=call.turn.input.user,
        client_metadata=call.turn.input.client_metadata,
        priority=call.turn.input.priority,
        carried=Carried(output_schema=call.facts.output_schema),
        **budget,
    )


async def _start(call: _SubAgentCall, run_input: StartInput) -> workflow.ChildWorkflowHandle[Any, Any]:
    """Start the run, by the first of its ids that is free.

    Raises:
        WorkflowAlreadyStartedError: none of the ids is free.
    """
    request, context, run = call.request, call.request.where, call.run
    attempt = 0
    while True:
        attempt += 1
        run.id = child_workflow_id(workflow.info().workflow_id, request.call.id, context.conversation, attempt)
        try:
            handle = await workflow.start_child_workflow(
                AGENT_WORKFLOW,
                run_input.model_dump(mode="json", exclude_defaults=True),
                id=run.id,
                result_type=RawValue,
                task_queue=call.facts.task_queue,
                execution_timeout=timedelta(seconds=call.facts.timeout) if call.facts.timeout else None,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                # If this run is terminated or times out, no sub-agent continues to work without it.
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                **start_options(run_input, **{CALL_MEMO: request.call.id}),
            )
        except WorkflowAlreadyStartedError:
            if attempt == limits.CHILD_ID_ATTEMPTS:
                raise
            continue
        call.untrusted = call.facts.untrusted
        run.status, run.run_id = "running", handle.first_execution_run_id or ""
        call.record.run = run
        return handle


def _take_result(call: _SubAgentCall, raw: RawValue | None) -> None:
    """The run has returned a result: its output is the call's text, and its usage is added to the turn's."""
    try:
        result = read_result(AGENT_WORKFLOW, raw, RunResult)
    except ActivityError:
        call.run.status, call.reason = "failed", "its result is not the result of an agent's run"
        return
    run, call.untrusted = call.run, call.facts.untrusted if call.facts.quarantine else result.trust is not None
    run.status, run.steps, run.usage, run.cost = result.status, result.steps, result.usage, result.cost
    call.turn.add_usage(result.usage, result.cost, result.counted)
    _return_unused_runs(call, used=1 + result.sub_runs)
    if isinstance(result.output, str):
        call.text = result.output
    elif result.output is not None:
        call.text = json.dumps(result.output, ensure_ascii=False)


def _return_unused_runs(call: _SubAgentCall, *, used: int) -> None:
    call.turn.result.sub_runs -= max(0, call.reserved - used)


def _take_failure(call: _SubAgentCall, error: ChildWorkflowError) -> None:
    """The run has failed: the call's failure says why, and what is known of the run's usage is added to the turn's."""
    cause = error.cause or error
    typed = error_of(cause)
    call.run.status = status_of_cause(cause)
    call.failure = typed.to_json() if typed else None
    consumed = typed.consumption if typed else None
    if consumed is not None and not can_be_added(consumed):
        consumed = None
    if consumed is not None:
        call.run.steps, call.run.usage, call.run.cost = consumed.steps, consumed.usage, consumed.cost
        call.turn.add_usage(consumed.usage, consumed.cost, consumed.counted)
        _return_unused_runs(call, used=1 + consumed.sub_runs)
    elif isinstance(typed, InvalidRunInputError):
        _return_unused_runs(call, used=1)
    else:
        call.turn.add_usage(Usage(), None)  # it has used something, but how much is unknown
    if call.run.status == "failed":
        call.reason = f"{type(typed or cause).__name__}: {getattr(typed or cause, 'message', '') or cause}"
