"""Gives calls of a fork the results that equal calls had in the run it was forked from: no tool runs, nobody is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from mulligan.schema.cut_text import cut_text
from mulligan.wire.model_call import ModelAnswer, write_arguments
from mulligan.wire.recorded_outcome import RecordedOutcome, record_digest
from mulligan.wire.recorded_tools import FIND_RECORD, FindRecord, FoundRecord, RecordSource
from mulligan.wire.start_input import Origin
from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows.feature import EndTurn, Feature
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.turn import Turn

_SHOWN_CHARS = 500


class RecordedTools(Feature):
    """The recorded results of one agent's calls."""

    schedules: ClassVar = {
        FIND_RECORD: Schedule(
            # A worker may have to replay a long run to answer for it, and none may be there at the moment.
            timeout=timedelta(minutes=2),
            total=timedelta(hours=1),
            has_heartbeat=True,
        )
    }

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._made: Counter[str] = Counter()
        """How many calls this run has made, by their digests."""
        self._numbers: dict[int, int] = {}
        """How many calls were equal to a call of the newest step before it, by the call's index."""
        self._unrecorded: dict[int, str] = {}
        """The calls of the newest step that end the turn, by their indices: what they would have done."""

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether the turn belongs to a fork with recorded tools."""
        forked = turn.input.fork
        return forked is not None and forked.tools == "recorded"

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """Number equal calls in their order, as they end in any order."""
        if any(call.is_carried for call in calls):
            return
        if all(call.of is None for call in calls):
            self._numbers, self._unrecorded = {}, {}
        for call in calls:
            if call.record.arguments is not None:
                digest = _digest(call)
                self._numbers[call.index] = self._made[digest]
                self._made[digest] += 1

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """The recorded result of a call; None if there is none and the tool is to run."""
        forked = self.agent.turn.input.fork
        assert forked is not None
        if call.facts is not None and call.facts.makes_calls:
            return None  # the calls that it makes have records
        request = self._request(call, forked)
        found = await self.agent.activity(FIND_RECORD, request, FoundRecord, summary=f"{call.call.name}: recorded")
        if found.found:
            call.record.recorded, call.record.decision = True, found.decision
            if found.edited is not None:
                self.agent.conversation.edit_call(call.index, found.edited, found.edited_digest)
        elif forked.unrecorded == "live":
            return None
        elif forked.unrecorded == "diverge":
            arguments = cut_text(write_arguments(call.record.arguments), _SHOWN_CHARS)
            self._unrecorded[call.index] = f"`{call.call.name}` with {arguments}"
            call.is_stopped = True  # the model has made no mistake
        return found

    def _request(self, call: StepCall, forked: Origin) -> FindRecord:
        digest, number = _digest(call), self._numbers[call.index]
        source, record = None, None
        records = self.agent.turn.input.carried.records
        if records is None:
            source = RecordSource(
                workflow_id=forked.workflow_id, run_id=forked.run_id, conversation=forked.conversation, step=forked.step
            )
        elif (recorded := records.get(digest, [])[number : number + 1]) and recorded[0] is not None:
            record = RecordedOutcome.model_validate(recorded[0])
        return FindRecord.like(
            self.agent.call_request(call),
            source=source,
            record=record,
            digest=digest,
            number=number,
            unrecorded=forked.unrecorded,
        )

    async def accept(self, answer: ModelAnswer) -> None:  # noqa: ARG002
        """End the turn after a step with a call that has no record.

        Raises:
            EndTurn: there is such a call.
        """
        if self._unrecorded:
            forked, call = self.agent.turn.input.fork, self._unrecorded[min(self._unrecorded)]
            assert forked is not None
            where = f"Step {self.agent.turn.result.steps} would have called {call}"
            raise EndTurn("diverged", f"{where}, of which the run {forked.workflow_id!r} has no record.")

    def dump(self) -> dict[str, Any] | None:
        """The numbers of equal calls, and what the newest step has without a record."""
        if not self._made:
            return None
        open_step = {"numbers": [*self._numbers.items()], "unrecorded": [*self._unrecorded.items()]}
        return {"made": dict(self._made), **open_step}

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._made = Counter(state["made"])
        self._numbers, self._unrecorded = dict(state["numbers"]), dict(state["unrecorded"])


def _digest(call: StepCall) -> str:
    return record_digest(call.call.name, call.record.digests)
