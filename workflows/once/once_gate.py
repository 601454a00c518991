"""Decides for each call of a step whether its tool's `once` excludes it, and waits for equal calls without a result."""

from __future__ import annotations

from dataclasses import dataclass, field

from temporalio import workflow

from mulligan.once import Once, OnceCall, call_digest, default_values
from mulligan.values import ToolCall
from mulligan.wire.model_call import ModelAnswer
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import RECORD_FAILED_CALL, FailedCall, ToolOutcome, digest_of_call, idempotency_key
from mulligan.workflows import dispatch
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.once.once_calls import OnceCalls
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.turn import Turn

__all__ = ["OnceGate"]

_MAY_HAVE_RUN = frozenset({"tool_lost", "tool_timeout", "denied", "cancelled"})
"""The kinds of error after which nobody knows what a call has done. One that has begun is `denied` where it was stopped."""
_NOT_APPROVED = {"deny": "a person denied it", "timeout": "nobody decided on it in time"}


@dataclass
class _OpenCall:
    """A call without a result. `record`: as soon as it is executed; `waits_for`: the index of an equal call.

    `digests`: first of the arguments that it is executed with, then of the model's, if a person has edited them.
    """

    digests: list[str]
    once: Once
    record: OnceCall | None = None
    waits_for: int | None = None


@dataclass(kw_only=True)
class OnceGate:
    """The calls of the newest step whose tools have `once`. Calls are named by their index in the step.

    `calls`: those that they are compared with. `answer`: the model's. `is_carried`: whether the step began in an earlier
    workflow run.
    """

    calls: OnceCalls
    turn: Turn
    context: RunContext
    conversation: Conversation
    inbox: Inbox
    route: AgentRoute
    answer: ModelAnswer
    is_carried: bool
    _open: dict[int, _OpenCall] = field(default_factory=dict)
    _not_approved: dict[str, str] = field(default_factory=dict)
    """Why calls of this step were not run that people were asked about, by digest."""

    def __post_init__(self) -> None:
        if not self.is_carried:
            self.calls.begin_step()
        tools, results = self.turn.facts.tools, self.conversation.early_results
        for index, (call, prepared) in enumerate(
            zip(self.answer.message.tool_calls, self.answer.prepared, strict=True)
        ):
            facts = tools.get(call.name)
            if facts is None or not facts.once or prepared.text is not None:
                continue
            if call.id in results:
                self._note_if_not_approved(index, self._digests(index))
                continue
            record = self.calls.unfinished(call.id) if self.is_carried else None
            self._open[index] = _OpenCall(self._digests(index), facts.once, record)

    @property
    def waiting(self) -> int:
        """How many calls wait for another call of the step."""
        return sum(each.waits_for in self._open for each in self._open.values())

    def repeats(self, index: int) -> bool:
        """Whether a call waits for another one before it can begin."""
        return index in self._open and self._blocker(index) is not None

    async def before_call(self, index: int, *, is_approved: bool = False) -> ToolOutcome | None:
        """Wait for equal calls that have no result. Returns the result of a call that is excluded, None if it may run.

        A request to stop ends the wait, unless a person `is_approved` the call: then it counts as a running call.
        """
        this = self._open.get(index)
        if this is None:
            return None
        since, this.digests = workflow.time(), self._digests(index)

        def is_over() -> bool:
            return this.waits_for not in self._open or (self.inbox.stop is not None and not is_approved)

        while (blocker := self._blocker(index)) is not None:
            this.waits_for = blocker
            await workflow.wait_condition(is_over)
            if blocker in self._open:
                return None
        if (before := self.calls.succeeded(this.digests)) is not None:
            return await self._exclude(index, since, *self._of_success(self._call(index).name, before))
        reasons = [self._not_approved[each] for each in this.digests if each in self._not_approved]
        if reasons and not is_approved:
            text = (
                f"You made this call of `{self._call(index).name}` more than once in one step. The first was not run, "
                f"because {reasons[0]}, so this one was not run either."
            )
            return await self._exclude(index, since, text, "")
        return None

    def started(self, index: int) -> str | None:
        """Note that a call is executed.

        Returns the idempotency key of an earlier call that was executed with the same arguments and may have done its work;
        None if the call has a key of its own.
        """
        this = self._open.get(index)
        if this is None:
            return None
        call, info = self._call(index), workflow.info()
        own = idempotency_key(info.namespace, info.workflow_id, self.context, call.id, digest_of_call(call))
        if this.record is None:
            before = self.calls.uncertain(this.digests[0])
            this.record = self._add(call, this, key=before.key if before else own)
        return None if this.record.key == own else this.record.key

    def settled(self, index: int, outcome: ToolOutcome) -> None:
        """Note the result of a call: calls that wait for it go on."""
        this = self._open.pop(index, None)
        if this is None:
            return
        if outcome.error is None and outcome.failure is None:
            record = this.record or self._add(self._call(index), this, key=None)
            record.key = None
        elif this.record is not None:
            if outcome.error is None or outcome.error.kind not in _MAY_HAVE_RUN:
                self.calls.remove(this.record)
        else:
            self._note_if_not_approved(index, this.digests)

    def _note_if_not_approved(self, index: int, digests: list[str]) -> None:
        decision = self.conversation.steps[-1].calls[index].decision
        if decision is not None and decision.decision in _NOT_APPROVED:
            self._not_approved |= dict.fromkeys(digests, _NOT_APPROVED[decision.decision])

    def _add(self, call: ToolCall, this: _OpenCall, *, key: str | None) -> OnceCall:
        record = OnceCall(call_id=call.id, digests=this.digests, once=this.once, key=key)
        self.calls.add(record)
        return record

    def _call(self, index: int) -> ToolCall:
        return self.answer.message.tool_calls[index]

    def _digests(self, index: int) -> list[str]:
        """Of the arguments with which a call is executed, and of the model's where a person has edited them.

        An argument that is left out equals its default.
        """
        record, name = self.conversation.steps[-1].calls[index], self._call(index).name
        properties = next(
            (each.parameters.get("properties") for each in self.turn.facts.definition.tools if each.name == name), {}
        )
        defaults = default_values(properties)
        arguments = [record.arguments]
        if record.decision is not None and record.decision.edited:
            arguments.append(record.decision.before)
        return list(dict.fromkeys(call_digest(name, each, defaults) for each in arguments))

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
        text, is_cut = self.calls.excerpt(before)
        message = (
            f"You made this call of `{name}` before, with the same arguments, and it succeeded. It was not run again."
        )
        if text is None:
            return f"{message} Its result is no longer available.", ""
        return message, f"Its result {'begins with' if is_cut else 'was'}:\n{text}"

    async def _exclude(self, index: int, since: float, message: str, detail: str) -> ToolOutcome:
        """Record that a call is not run, and apply the policy for mistakes of the model."""
        call, record = self._call(index), self.conversation.steps[-1].calls[index]
        failed = FailedCall(
            where=self.context,
            call=call.model_copy(update={"arguments": record.written(call)}),
            kind="duplicate_call",
            message=message,
            detail=detail,
            attempts=0,
            step=self.turn.result.steps,
            started=since,
            repaired_by=[repair.by for repair in record.repairs],
            decision=record.decision.model_copy(update={"before": None}) if record.decision else None,
            on_invalid_tool_input=self.turn.input.on_invalid_tool_input,
        )
        outcome: ToolOutcome = await dispatch.record(
            RECORD_FAILED_CALL, failed, ToolOutcome, route=self.route, summary=f"{call.name}: not run again"
        )
        return outcome
