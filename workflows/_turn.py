"""A turn in work: who was asked what, by which facts, and what it came to so far."""

from __future__ import annotations

import json
from typing import cast

from pydantic import BaseModel, JsonValue

from mulligan.handoff import AgentFacts, FinishRun, ModelAnswer, Where
from mulligan.values import RunInput, RunResult
from workflows.records import StepRecord


class Turn(BaseModel):
    """A turn in work: carried over, beside the conversation, when its run continues as new."""

    number: int
    input: RunInput
    facts: AgentFacts
    trace: str
    result: RunResult

    @property
    def max_steps(self) -> int:
        """What the turn was asked with, or else the agent's own."""
        return self.input.max_steps or self.facts.max_steps

    @property
    def model(self) -> str:
        """The same of the model."""
        return self.input.model or self.facts.model

    def finished(self, where: Where, status: str) -> FinishRun:
        """What its trace is closed with."""
        result = self.result
        return FinishRun(
            where=where,
            turn=self.number,
            status=status,
            steps=result.steps,
            recovered_failures=result.recovered_failures,
            usage=result.usage,
        )


def output_of(answer: ModelAnswer, record: StepRecord) -> JsonValue:
    """The structured output that an answer holds."""
    found = answer.output
    assert found is not None
    if not found.as_said:
        return found.value
    if found.call is None:
        return cast(JsonValue, json.loads(answer.message.text))
    return cast(JsonValue, record.calls[found.call].arguments)
