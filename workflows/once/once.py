"""Decides for each call of a step whether its tool's `once` excludes it, and waits for equal calls without a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from temporalio import workflow

from mulligan.once import Once as Scope
from mulligan.once import OnceCall, call_digest
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.start_input import StartInput
from mulligan.wire.tool_call import ToolOutcome, idempotency_key
from mulligan.workflows.feature import Feature
from mulligan.workflows.once.once_calls import OnceCalls
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.waits import Wait

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent

_MAY_HAVE_RUN = frozenset({"tool_lost", "tool_timeout", "denied", "cancelled"})
"""The kinds of error after which nobody knows what a call has done. One that has begun is `denied` where it was stopped."""
_NOT_APPROVED = {"deny": "a person denied it", "timeout": "nobody decided on it in time"}


@dataclass
class _OpenCall:
    """A call without a result. `record`: as soon as it is executed.

    `digests`: first of the arguments that it is executed with, then of the model's, if a person has edited them.
    """

    digests: list[str]
    once: Scope
    record: OnceCall | None = None


@dataclass(kw_only=True, eq=False)
class EqualCallWait(Wait):
    """A wait for the result of an equal call. It is not shown: people see what that call waits for."""

    name: ClassVar[str] = "equal_call"
    is_carried_over: ClassVar[bool] = False


class Once(Feature):
    """The calls of an agent's tools with `once`: those of the newest step by their index, and earlier ones."""

    option_type = Scope

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._calls = OnceCalls(agent.conversation)
        self._open: dict[int, _OpenCall] = {}
        self._not_approved: dict[str, str] = {}
        """Why calls of this step were not run that people were asked about, by digest."""

    def begin_turn(self, run_input: StartInput) -> StartInput:
        """Take over the calls of the run that a turn resumes. Returns the turn's input without them."""
        return self._calls.begin_turn(run_input, self.agent.status)

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """Note which of the calls have tools with `once`."""
        if all(call.of is None for call in calls):
            self._open, self._not_approved = {}, {}
        results = self.agent.conversation.early_results
        for call in calls:
            if not call.is_carried and call.index == 0:
                self._calls.begin_step()
            once: Scope | None = call.pinned.get(self.feature)
            if once is None or call.prepared.text is not None:
                continue
            call.is_request_written = False
            if call.call.id in results:
                self._note_if_not_approved(call, self._digests(call))
                continue
            record = self._calls.unfinished(call.call.id) if call.is_carried else None
            self._open[call.index] = _OpenCall(self._digests(call), once, record)

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """Wait for equal calls that have no result. Returns the result of a call that is excluded."""
        # A call that people are asked about already was compared before.
        if call.index not in self._open or self._is_approved(call) or self.agent.waits.is_carried(call.call.id):
            return None
        return await self._excluded(call)

    async def before_run(self, call: StepCall) -> ToolOutcome | None:
        """Compare a call that a person has approved again: its arguments may be edited, and an equal call may have run."""
        if call.index not in self._open or not self._is_approved(call):
            return None
        return await self._excluded(call)

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Note that a call is executed.

        It has the idempotency key of an earlier call that was executed with the same arguments and may have done its work.
        """
        if (this := self._open.get(call.index)) is not None:
            assert call.request is not None
            call.request.first_key = self._first_key(call, this)
        return await then(call)

    @staticmethod
    def _is_approved(call: StepCall) -> bool:
        return call.record.decision is not None and call.record.decision.decision == "approve"

    async def _excluded(self, call: StepCall) -> ToolOutcome | None:
        """The result of a call that is excluded; None if it may run.

        A request to stop ends the wait for an equal call, unless a person has approved the call: then it counts as running.
        """
        agent, this, is_approved = self.agent, self._open[call.index], self._is_approved(call)
        since, this.digests = workflow.time(), self._digests(call)
        while (blocker := self._blocker(call.index)) is not None:
            with agent.waits.entered(EqualCallWait(key=call.call.id)) as wait:
                await agent.waits.until(wait, partial(self._is_settled_or_stopped, blocker, is_approved=is_approved))
            if blocker in self._open:
                return None
        if (before := self._calls.succeeded(this.digests)) is not None:
            return await self._exclude(call, since, *self._of_success(call.call.name, before))
        reasons = [self._not_approved[each] for each in this.digests if each in self._not_approved]
        if reasons and not is_approved:
            text = (
                f"You made this call of `{call.call.name}` more than once in one step. The first was not run, "
                f"because {reasons[0]}, so this one was not run either."
            )
            return await self._exclude(call, since, text, "")
        return None

    def _is_settled_or_stopped(self, index: int, *, is_approved: bool) -> bool:
        return index not in self._open or (self.agent.is_stopped and not is_approved)

    def _first_key(self, call: StepCall, this: _OpenCall) -> str | None:
        info, agent = workflow.info(), self.agent
        own = idempotency_key(info.namespace, info.workflow_id, agent.context, call.call.id, call.digest)
        if this.record is None:
            before = self._calls.uncertain(this.digests[0])
            this.record = self._add(call, this, key=before.key if before else own)
        return None if this.record.key == own else this.record.key

    def settled(self, call: StepCall, outcome: ToolOutcome) -> None:
        """Note the result of a call: calls that wait for it go on."""
        this = self._open.pop(call.index, None)
        if this is None:
            return
        if outcome.error is None and outcome.failure is None:
            record = this.record or self._add(call, this, key=None)
            record.key = None
        elif this.record is not None:
            if outcome.error is None or outcome.error.kind not in _MAY_HAVE_RUN:
                self._calls.remove(this.record)
        else:
            self._note_if_not_approved(call, self._digests(call))

    def for_resume(self, state: ResumeState) -> None:
        """The calls that a run which resumes this one, or is forked from it, compares its calls with."""
        if state.fork is None:
            state.input.carried.once = self._calls.for_resume(self.agent.status)
        else:
            step = state.fork.step
            state.input.carried.once = self._calls.for_fork(step, self.agent.conversation.calls_since(step))

    def dump(self) -> list[dict[str, Any]] | None:
        """The calls, as JSON."""
        return self._calls.dump() or None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._calls.load(state)

    def _note_if_not_approved(self, call: StepCall, digests: Iterable[str]) -> None:
        decision = call.record.decision
        if decision is not None and decision.decision in _NOT_APPROVED:
            self._not_approved |= dict.fromkeys(digests, _NOT_APPROVED[decision.decision])

    def _add(self, call: StepCall, this: _OpenCall, *, key: str | None) -> OnceCall:
        record = OnceCall(call_id=call.call.id, digests=this.digests, once=this.once, key=key)
        self._calls.add(record)
        return record

    def _digests(self, call: StepCall) -> list[str]:
        """Digests of the arguments with which a call is executed, and of the model's where a person has edited them."""
        return list(dict.fromkeys(call_digest(call.call.name, each) for each in call.record.digests))

    def _blocker(self, index: int) -> int | None:
        """The last open call that equals a call: an earlier call, or a call that is executed already."""
        digests = self._open[index].digests
        equal = [
            other
            for other, each in self._open.items()
            if (other < index or (other > index and each.record is not None))
            and not set(digests).isdisjoint(each.digests)
        ]
        return equal[-1] if equal else None

    def _of_success(self, name: str, before: OnceCall) -> tuple[str, str]:
        """The feedback on a call that equals `before`, which has succeeded; and its part that quotes the result."""
        text, is_cut = self._calls.excerpt(before)
        message = (
            f"You made this call of `{name}` before, with the same arguments, and it succeeded. It was not run again."
        )
        if text is None:
            return f"{message} Its result is no longer available.", ""
        return message, f"Its result {'begins with' if is_cut else 'was'}:\n{text}"

    async def _exclude(self, call: StepCall, since: float, message: str, detail: str) -> ToolOutcome:
        """Record that a call is not run, and apply the policy for mistakes of the model."""
        return await self.agent.record_failed(
            call,
            "not run again",
            call=call.written_call,
            kind="duplicate_call",
            message=message,
            detail=detail,
            started=since,
            on_invalid_tool_input=self.agent.turn.input.on_invalid_tool_input,
        )
