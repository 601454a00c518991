"""A turn in work: who was asked what, by which facts, and what it came to so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from pydantic import BaseModel, JsonValue

from mulligan.prices import rounded
from mulligan.run_input import RunInput
from mulligan.schema.optional_field import optional_field
from mulligan.values import RunResult, Status, Took, Usage
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.model_call import GuardContext, ModelAnswer, ModelCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_end import FinishRun
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import StepRecord


class Turn(BaseModel):
    """A turn in work: carried over, beside the conversation, when its run continues as new."""

    number: int
    input: RunInput
    facts: AgentFacts
    trace: str
    result: RunResult
    at: int = optional_field(0)
    """Which of its `models` is asked: the one that answered last."""
    spent: float = optional_field(0.0)
    """USD, of what there is a price for: the result's `cost` is None as soon as there is none for something."""

    @property
    def max_steps(self) -> int:
        """What the turn was asked with, or else the agent's own."""
        return self.input.max_steps or self.facts.max_steps

    @property
    def max_total_tokens(self) -> int | None:
        """The same of tokens."""
        return self.input.max_total_tokens or self.facts.max_total_tokens

    @property
    def max_cost(self) -> float | None:
        """The same of USD."""
        return self.input.max_cost or self.facts.max_cost

    @property
    def models(self) -> list[str]:
        """Who may be asked: the one that the turn was asked with alone, or else all of the agent's."""
        return [self.input.model] if self.input.model else [self.facts.model, *self.facts.fallbacks]

    @property
    def model(self) -> str:
        """Who is asked next."""
        return self.models[self.at]

    @property
    def took(self) -> Took:
        """What the turn took so far."""
        return Took(steps=self.result.steps, usage=self.result.usage, cost=self.result.cost)

    def spend(self, usage: Usage, cost: float | None) -> None:
        """Add what something took: tokens, and USD, or None where there is no price for it."""
        result = self.result
        result.usage = result.usage + usage
        self.spent = rounded(self.spent + (cost or 0.0))
        result.cost = None if cost is None or result.cost is None else self.spent

    def cost_of(self, model: str, usage: Usage, others: Mapping[str, Usage] | None = None) -> float | None:
        """USD of a call of a model, by the prices that the run was opened with; None where one of them is not known.

        `others`: what of the usage was for other models.
        """
        own, cost = usage, 0.0
        for other, used in (others or {}).items():
            price, own = self.facts.prices.get(other), own - used
            if price is None:
                return None
            cost += price.of(used)
        price = self.facts.prices.get(model)
        return None if price is None else cost + price.of(own)

    @property
    def limit_reached(self) -> Status | None:
        """The status that the turn ends with at this step boundary, where one of its limits is reached."""
        result = self.result
        if self.max_total_tokens is not None and result.usage.total_tokens >= self.max_total_tokens:
            return "max_tokens"
        if self.max_cost is not None and self.spent >= self.max_cost:
            return "max_cost"
        return "max_steps" if result.steps >= self.max_steps else None

    def model_call(self, where: RunContext, conversation: Conversation, sent: int) -> ModelCall:
        """What the model's next step is asked with. `sent`: how many messages of the conversation its worker has."""
        return ModelCall(
            where=where,
            model=self.model,
            definition=self.facts.digest,
            step=self.result.steps + 1,
            known=sent,
            new=conversation.new_since(sent, limits.INLINE_BYTES),
            whole=conversation.ref(),
            patience=self.facts.model_patience,
            timeout=self.facts.model_timeout,
            attempts=self.facts.model_attempts,
            on_invalid_tool_input=self.input.on_invalid_tool_input,
            guard=GuardContext(metadata=self.input.metadata) if self.facts.guarded else None,
            summed_up=conversation.opening.answers if conversation.opening else None,
        )

    def finished(self, where: RunContext, status: str) -> FinishRun:
        """What its trace is closed with."""
        result = self.result
        return FinishRun(
            where=where,
            turn=self.number,
            status=status,
            steps=result.steps,
            recovered_failures=result.recovered_failures,
            usage=result.usage,
            cost=result.cost,
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
