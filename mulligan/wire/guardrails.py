"""`check_input` and `check_output`: what guardrails and validators check, and what they have decided.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import ToolCall
from mulligan.wire.checked_result import CheckedResult
from mulligan.wire.model_call import ModelCall, RejectedAnswer
from mulligan.wire.run_context import RunContext

CHECK_INPUT, CHECK_OUTPUT = "check_input", "check_output"
"""Temporal's activity types."""


class CheckInput(ModelCall):
    """Input of `check_input`: the first model call of a turn, before it is made. `guard` has the run's metadata."""


class CheckOutput(BaseModel):
    """Input of `check_output`: a final answer.

    `type`: the name of the output type that the JSON `value` has; None: the answer is the text `value`. `metadata`: the
    run's. `refused`: how many answers of the turn the validators have refused before.
    """

    where: RunContext
    step: int
    metadata: dict[str, str] = optional_field({})
    type: str | None = optional_field()
    value: JsonValue = None
    refused: int = optional_field(0)

    @property
    def call(self) -> ToolCall:
        """The call by which the span of a refusal is known, beside that of the call that contains the answer."""
        return ToolCall(id=f"answer_{self.step}", name=self.type or "answer", arguments="")


class Checked(CheckedResult):
    """Result of both activities. `refusal`: the sentence that names the guardrail that ends the turn; None: none does."""

    refusal: WellFormedText | None = optional_field()


class OutputChecked(Checked):
    """Result of `check_output`.

    `rejected`: a validator wants another answer. `is_changed`: the validators have made the output to `value`.
    """

    rejected: RejectedAnswer | None = optional_field()
    is_changed: bool = optional_field(False)
    value: JsonValue = None


WORDS = FeatureWords(activities=(CHECK_INPUT, CHECK_OUTPUT))
