"""One turn of a conversation: its input, the agent's pinned facts, its limits, and its result so far."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pydantic import BaseModel, JsonValue

from mulligan.prices import cost_of, cost_of_hosted, counted_cost, round_usd
from mulligan.schema.optional_field import optional_field
from mulligan.values import Consumption, RunResult, Spent, Status, Usage
from mulligan.wire.agent_facts import AgentFacts, OpenedRun
from mulligan.wire.model_call import GuardContext, ModelAnswer, ModelCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_end import FinishRun
from mulligan.wire.start_input import StartInput
from mulligan.wire.ui_summary import task_of
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import StepRecord

_STATUS_OF_FINISH_REASON: dict[str, Status] = {
    "length": "truncated",
    "content_filter": "refused",
    "refusal": "refused",
}


class Turn(BaseModel):
    """A turn, from `open_run` to its result. Continue-as-new carries it, so its field names are in Temporal's history."""

    number: int
    input: StartInput
    facts: AgentFacts
    trace: str
    """The W3C traceparent of the turn's root span."""
    result: RunResult
    at: int = optional_field(0)
    """The index in `models` of the model that is called next, which is the model that answered last."""
    spent: float = optional_field(0.0)
    """USD, as far as prices are known. The result's `cost` is None as soon as one price is unknown."""

    repeats: dict[str, int] = optional_field({})
    """In how many consecutive steps, the newest included, each failed call of the newest step has failed, by its digest."""

    task: str = optional_field("")
    """What the turn was asked for, in one line."""

    first_step: int = optional_field(1)
    """The number of its first step, counted over all turns of the conversation."""

    handoffs: int = optional_field(0)
    """How often its conversation was handed over; the agent of `input` has it now."""

    pinned: dict[str, AgentFacts] = optional_field({})
    """The facts of the agents that had it, by their names: an agent that gets it again is the one that it was."""

    @classmethod
    def opened(cls, number: int, run_input: StartInput, run: OpenedRun) -> Turn:
        """A turn that has just been opened. Its messages are in the conversation, so they are left out here."""
        trace_id = run.trace.split("-")[1]
        turn = cls(
            number=number,
            input=run_input.model_copy(update={"messages": [], "prompt": None}),
            facts=run.facts,
            trace=run.trace,
            result=RunResult(status="completed", trace_id=trace_id),
            task=task_of(run_input),
        )
        if run.facts.prices:
            turn.result.cost = 0.0
        return turn

    def hand_over(self, agent: str, facts: AgentFacts) -> None:
        """The conversation is another agent's from now on."""
        self.handoffs += 1
        self.pinned[self.input.agent] = self.facts
        self.pinned.pop(agent, None)
        self.input, self.facts, self.at = self.input.model_copy(update={"agent": agent, "version": None}), facts, 0

    def facts_of(self, agent: str) -> AgentFacts | None:
        """The facts of an agent that has, or had, the conversation; None if it did not have it in this turn."""
        return self.facts if agent == self.input.agent else self.pinned.get(agent)

    @property
    def all_facts(self) -> list[AgentFacts]:
        """The facts of the agents that have, or had, the conversation in this turn."""
        return [self.facts, *self.pinned.values()]

    def input_of(self, agent: str) -> StartInput:
        """The turn's input for an agent that takes the conversation over: without the conversation, with the run's limit."""
        update = {"agent": agent, "max_cost": self.max_cost, "client_instructions": self.input.client_instructions}
        update["version"] = None  # it is the other agent's
        return self.input.without_conversation.model_copy(update=update)

    @property
    def used(self) -> Spent:
        """What it has used so far."""
        return Spent(usage=self.result.usage, cost=self.result.cost)

    @property
    def max_steps(self) -> int:
        """The limit of the turn's input, or else the agent's."""
        return self.input.max_steps or self.facts.max_steps

    @property
    def max_total_tokens(self) -> int | None:
        """The limit of the turn's input, or else the agent's."""
        return self.input.max_total_tokens or self.facts.max_total_tokens

    @property
    def max_cost(self) -> float | None:
        """The limit of the turn's input in USD, or else the agent's."""
        return self.input.max_cost or self.facts.max_cost

    @property
    def max_sub_runs(self) -> int:
        """The smaller one of the limits of the turn's input and of its agent."""
        declared, given = self.facts.max_sub_runs, self.input.max_sub_runs
        return declared if given is None else min(declared, given)

    @property
    def models(self) -> list[str]:
        """The models that may be called: only the one of the turn's input, or else all of the agent's."""
        return [self.input.model] if self.input.model else [self.facts.model, *self.facts.fallbacks]

    @property
    def model(self) -> str:
        """The model that is called next."""
        return self.models[self.at]

    @property
    def next_step(self) -> int:
        """The number of the next step of this turn, from 1."""
        return self.result.steps + 1

    @property
    def consumption(self) -> Consumption:
        """Steps, tokens, cost and sub-agents' runs so far: what the error of a failed run contains."""
        result = self.result
        return Consumption(
            steps=result.steps, usage=result.usage, cost=result.cost, counted=result.counted, sub_runs=result.sub_runs
        )

    @property
    def limit_reached(self) -> Status | None:
        """The status with which the turn ends at this step boundary, if it has reached one of its limits."""
        result = self.result
        if self.max_total_tokens is not None and result.usage.total_tokens >= self.max_total_tokens:
            return "max_tokens"
        if self.max_cost is not None and self.spent >= self.max_cost:
            return "max_cost"
        if self.facts.max_repeats is not None and max(self.repeats.values(), default=0) >= self.facts.max_repeats:
            return "max_repeats"
        return "max_steps" if result.steps >= self.max_steps else None

    def count_repeats(self, failed: Iterable[str]) -> None:
        """Count the failed calls of the newest step, by their keys. The count of any other call begins again at 0."""
        if self.facts.max_repeats is not None:
            self.repeats = {key: self.repeats.get(key, 0) + 1 for key in failed}

    def add_usage(self, usage: Usage, cost: float | None, counted: float = 0.0) -> None:
        """Add tokens and their cost in USD; None if a price is unknown: then `max_cost` counts `counted`."""
        result = self.result
        result.usage = result.usage + usage
        self.spent = round_usd(self.spent + (counted if cost is None else cost))
        result.cost = None if cost is None or result.cost is None else self.spent
        result.counted = self.spent if result.cost is None else 0.0

    def add_model_call(
        self, model: str, usage: Usage, others: Mapping[str, Usage] | None = None, hosted: Iterable[str] = ()
    ) -> None:
        """Add the tokens of a model call, and their cost at the prices that were pinned when the turn opened.

        `others`: the part of `usage` that other models used, by model. `hosted`: the names of the calls that the provider
        carried out.
        """
        prices = self.facts.prices
        tools = cost_of_hosted(prices.get, model, hosted)
        cost = cost_of(prices, model, usage, others)
        counted = counted_cost(prices, model, usage, others) + tools
        self.add_usage(usage, None if cost is None else cost + tools, counted)

    def add_answer(self, answer: ModelAnswer) -> None:
        """Count a step and the tokens of its answer."""
        self.result.steps += 1
        hosted = [call.name for call in answer.hosted_calls]
        self.add_model_call(self.model, answer.usage, answer.usage_of_repairs, hosted)

    def take_output(self, answer: ModelAnswer, record: StepRecord) -> bool:
        """Set the result's output from an answer. Returns whether the answer is a final one.

        Unless it is final, an answer in plain text is not the output of an agent with a structured one. What a feature has
        rejected is no output.
        """
        result = self.result
        if answer.output is not None and answer.rejected is None:
            arguments = [call.arguments for call in record.calls]
            result.output, result.output_type = output_value(answer, arguments), answer.output.type
            return True
        is_final = not answer.message.tool_calls and answer.rejected is None
        is_output = answer.rejected is None and (is_final or not self.facts.structured)
        result.output = answer.message.text if is_output else None
        result.reason = answer.reason if is_final else None
        return is_final

    def model_request(self, context: RunContext, conversation: Conversation, cached_messages: int) -> ModelCall:
        """The input of the next model call. `cached_messages`: how many of the view the worker's cache has."""
        whole, model = conversation.ref(), self.model
        return ModelCall(
            where=context,
            model=model,
            definition=self.facts.digest,
            step=self.next_step,
            uncached=whole.count - cached_messages,
            new=conversation.new_since(cached_messages, limits.INLINE_BYTES),
            conversation=whole,
            patience=self.facts.model_patience,
            timeout=self.facts.model_timeout,
            attempts=self.facts.model_attempts,
            on_invalid_tool_input=self.input.on_invalid_tool_input,
            guard=GuardContext(metadata=self.input.metadata) if self.facts.guarded else None,
            summarized_answers=conversation.summary.answers if conversation.summary else None,
            adapted=list(next((step.adapted for step in reversed(conversation.steps) if step.model == model), ())),
        )

    def finish_request(self, context: RunContext, status: str) -> FinishRun:
        """The input of `finish_run`, which closes the turn's trace."""
        result = self.result
        return FinishRun(
            where=context,
            turn=self.number,
            status=status,
            steps=result.steps,
            recovered_failures=result.recovered_failures,
            usage=result.usage,
            cost=result.cost,
        )


def status_of(answer: ModelAnswer) -> Status:
    """The status of a turn that ends with this answer."""
    if answer.output is not None:
        return "completed"
    return _STATUS_OF_FINISH_REASON.get(answer.finish_reason, "completed")


def output_value(answer: ModelAnswer, arguments: Sequence[JsonValue]) -> JsonValue:
    """The accepted output of an answer as JSON. `arguments`: the valid ones of its calls."""
    output = answer.output
    assert output is not None
    if not output.is_verbatim:
        return output.value
    if output.call is None:
        return cast(JsonValue, json.loads(answer.message.text))
    return arguments[output.call]
