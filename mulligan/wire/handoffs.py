"""`hand_over`: another agent takes a conversation over, and its facts are pinned in the run.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.wire.agent_facts import AgentFacts, fault_of_facts
from mulligan.wire.run_context import SentInput
from mulligan.wire.tool_call import CallTool, ToolOutcome

HAND_OVER = "hand_over"
"""Temporal's activity type."""


class HandOver(CallTool):
    """Input of `hand_over`: a call of a tool `transfer_to_NAME`.

    `agent`: the name of the agent that takes the conversation over. `input`: the run's, without the conversation.
    `is_pinned`: whether the run has the agent's facts already, as the agent has had the conversation before. `is_file`:
    whether these have a version of the agent's file: then any worker can go on with the agent.
    """

    agent: str
    input: SentInput
    is_pinned: bool = optional_field(False)
    is_file: bool = optional_field(False)


class HandoffOutcome(ToolOutcome):
    """Result of `hand_over`. `facts`: of the agent that takes the conversation over; None: it cannot, or they are pinned."""

    facts: AgentFacts | None = optional_field()

    def fault(self) -> str | None:
        """Why the result cannot be used: as for an outcome, or as for the facts of a run that opens."""
        return super().fault() or (fault_of_facts(self.facts) if self.facts else None)


WORDS = FeatureWords(activities=(HAND_OVER,))
