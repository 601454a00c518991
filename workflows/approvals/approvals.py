"""Lets calls wait for a person whose tool needs approval, or asks a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from mulligan.wire.checked_result import MOST_SECONDS
from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows.feature import Feature
from mulligan.workflows.people.decided_call import decide_on_call
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.turn import Turn


class PersonTimes(BaseModel):
    """What was pinned for a tool: how long a call waits for a person, and when the first reminder comes, in seconds."""

    timeout: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None
    reminder: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None


class Approvals(Feature):
    """The approvals of an agent's calls."""

    option_type = PersonTimes

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether one of the agent's tools, or its guard, may ask a person; or calls have times for that."""
        return turn.facts.guarded or any(each.asks for each in turn.facts.tools.values()) or super().is_used(turn)

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """Note how long calls wait for a person, whoever asks."""
        for call in calls:
            times = call.pinned.get(self.feature, {})
            call.timeout, call.reminder = times.get("timeout"), times.get("reminder")

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """Wait for the decision. A call that was approved before the run continued as new is not asked about again."""
        decision = call.record.decision
        if call.waits_for is None or (decision is not None and decision.decision == "approve"):
            return None
        return await decide_on_call(self.agent, call)
