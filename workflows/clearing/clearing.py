"""Decides from which message on a request has the results of tools: it leaves out those of older steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from mulligan.wire.checked_result import MOST_COUNT, MOST_INT
from mulligan.wire.clearing import ClearedResults, cleared
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.resume_page import ResumeState
from mulligan.workflows.conversation.token_count import BYTES_PER_TOKEN, size_of, step_starts, tokens
from mulligan.workflows.feature import Feature

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent

MANY = 3
"""Results that are cleared at once, unless they are larger than the whole limit: each time, what a provider has cached ends
before the first of them."""
PARTS = 4
"""Less than a quarter of the limit is not cleared, and nothing before the conversation has grown by a quarter."""
_STATE = TypeAdapter(list[tuple[int, int, int]])


class ClearingFacts(BaseModel):
    """`at`: tokens from which on results are cleared; `keep_steps`: the newest steps keep theirs; `except_tools`."""

    at: Annotated[int, Field(ge=0, le=MOST_COUNT)]
    keep_steps: Annotated[int, Field(ge=1, le=MOST_INT)]
    except_tools: list[str]


class Clearing(Feature):
    """The cleared results of one agent's conversation: all before a message, whose number in the log is `_before`.

    `_clearings`: for each time that results were cleared, the step, `_before`, and the tokens below which none are cleared.
    """

    facts_type = ClearingFacts

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._clearings: list[tuple[int, int, int]] = []

    @property
    def _before(self) -> int:
        return self._clearings[-1][1] if self._clearings else 0

    async def step(self, then: Callable[[], Awaitable[None]]) -> None:
        """Clear results if the conversation has reached the limit, and there are enough of them."""
        facts, conversation = self.agent.pinned(self, ClearingFacts), self.agent.conversation
        if facts is not None and not self.agent.is_answering:
            saved = self._clear(facts)
            is_counted = bool(conversation.steps and conversation.steps[-1].usage.total_tokens)
            # A provider that counts has not counted what is left out for the first time now.
            first, last = conversation.cut, self._before - conversation.first_message
            conversation.left_out = saved if is_counted else self._saved(facts, first, last)[1]
        try:
            await then()
        finally:
            conversation.left_out = 0

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Say in the request which results are cleared."""
        facts, conversation = self.agent.pinned(self, ClearingFacts), self.agent.conversation
        before = self._before - conversation.first_message - conversation.view_offset
        if facts is None or before <= 0:
            return await then(call)
        said = ClearedResults(before=before, except_tools=facts.except_tools).model_dump(mode="json")
        return await then(call.model_copy(update={"features": {**call.features, self.feature: said}}))

    def _clear(self, facts: ClearingFacts) -> int:
        """Clear what is due; returns the bytes that are left out for the first time."""
        conversation, starts = self.agent.conversation, step_starts(self.agent.conversation)
        size = tokens(conversation)
        again_at = self._clearings[-1][2] if self._clearings else 0
        if size < max(facts.at, again_at) or len(starts) <= facts.keep_steps:
            return 0
        end = starts[-facts.keep_steps]
        first = max(conversation.cut, self._before - conversation.first_message)
        count, saved = self._saved(facts, first, end)
        saved_tokens = saved // BYTES_PER_TOKEN
        if saved_tokens < facts.at // PARTS or (count < MANY and saved_tokens < facts.at):
            return 0
        again_at = size - saved_tokens + facts.at // PARTS
        self._clearings.append((conversation.next_step, end + conversation.first_message, again_at))
        return saved

    def _saved(self, facts: ClearingFacts, start: int, end: int) -> tuple[int, int]:
        """How many results of `messages[start:end]` can be cleared, and the bytes that this saves."""
        count = saved = 0
        for index in range(start, end):
            message = self.agent.conversation.messages[index]
            if any(feature.keeps(message) for feature in self.agent.linked("keeps")):
                continue
            if (short := cleared(message, facts.except_tools)) is not None:
                count += 1
                saved += max(0, size_of(self.agent.conversation, index, index + 1) - len(short.model_dump_json()))
        return count, saved

    def for_resume(self, state: ResumeState) -> None:
        """What was cleared before the step of a fork, which decides in that step as this run did."""
        if state.fork is not None:
            state.fork.features[self.feature] = [[*each] for each in self._clearings if each[0] < state.fork.step]

    def dump(self) -> list[list[int]] | None:
        """What was cleared, as JSON."""
        return [[*each] for each in self._clearings] or None

    def load(self, state: Any) -> None:
        """Continue with what `dump` or a fork's state has.

        Raises:
            ValidationError: it is nothing of that form.
        """
        self._clearings = _STATE.validate_python(state)
