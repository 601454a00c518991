"""Lets calls wait for a person whose tool needs approval, or asks a question."""

from __future__ import annotations

from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows.feature import Feature
from mulligan.workflows.people.decided_call import decide_on_call
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.turn import Turn


class Approvals(Feature):
    """The approvals of an agent's calls."""

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether one of the agent's tools, or its guard, may ask a person."""
        return turn.facts.guarded or any(each.asks_person for each in turn.facts.tools.values())

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """Wait for the decision. A call that was approved before the run continued as new is not asked about again."""
        decision = call.record.decision
        if call.waits_for is None or (decision is not None and decision.decision == "approve"):
            return None
        return await decide_on_call(self.agent, call)
