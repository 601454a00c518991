"""Replaces the older steps of a conversation by a summary, which an activity writes, before a model call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, Field
from temporalio.exceptions import ActivityError, is_cancelled_exception

from mulligan.content import MAX_PARTS, media_of
from mulligan.errors import ModelRequestError, error_of
from mulligan.values import AssistantMessage, ErrorInfo, StepCompaction, UserMessage
from mulligan.wire.checked_result import MOST_COUNT
from mulligan.wire.compaction import COMPACT_CONVERSATION, CompactConversation, Compacted
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.shorten import shorten_middle
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import ConversationSummary
from mulligan.workflows.conversation.token_count import BYTES_PER_TOKEN, size_of, step_starts, tokens
from mulligan.workflows.feature import Feature
from mulligan.workflows.model_errors import raise_if_not_called
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.waits import Wait, WaitKind

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent

PARTS = 4
"""The newest steps keep at most a quarter of the limit, and a compaction that removes less than a quarter is not made."""


@dataclass(kw_only=True, eq=False)
class SummaryWait(Wait):
    """A model summarizes the older messages."""

    name: ClassVar[str] = "summary"
    ended_by: ClassVar[WaitKind | None] = "model"
    is_carried_over: ClassVar[bool] = False

    model: str

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """Name the model that summarizes."""
        del others, key
        return f"waiting for `{self.model}`, which summarizes older messages,", ""


class CompactionFacts(BaseModel):
    """`at`: tokens from which on older steps are summarized; `model`: by whom, None: by the model of the turn."""

    at: Annotated[int, Field(ge=0, le=MOST_COUNT)]
    model: str | None = None


class Compaction(Feature):
    """The compactions of one agent."""

    facts_type = CompactionFacts
    schedules: ClassVar = {COMPACT_CONVERSATION: Schedule(has_heartbeat=True, calls_model=True)}

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._is_second_call = False

    async def step(self, then: Callable[[], Awaitable[None]]) -> None:
        """Compact the conversation if it has reached the agent's limit.

        The step will show the compaction. If no summary can be written, the conversation stays unchanged, and the next try
        is made after it has grown by a quarter of the limit.
        """
        agent, facts = self.agent, self.agent.pinned(self, CompactionFacts)
        if facts is not None and not agent.is_answering:
            size = tokens(agent.conversation)
            if size >= max(facts.at, agent.conversation.compact_again_at):
                cut = place_of_cut(agent.conversation, facts.at)
                if cut is not None:
                    await self._compact(facts, cut, size)
        await then()

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Where the endpoint refuses the conversation as too long, sum its older part up, and call the model once more.

        Raises:
            ModelRequestError: there is nothing to sum up, that has failed, or what is left is too long as well.
        """
        agent, facts = self.agent, self.agent.pinned(self, CompactionFacts)
        try:
            return await then(call)
        except ModelRequestError as error:
            if facts is None or not error.is_overflow or agent.is_stopped:
                raise
            if self._is_second_call:
                raise _after(error, "It was summed up, and what is left is too long as well.") from error
            await self._compact_after(error, facts)
        self._is_second_call = True
        try:
            # From the outermost feature on: what they have said of the conversation was about the one before.
            answer: ModelAnswer = await agent.around("answer", agent.call_model)(agent.model_request())
            return answer
        finally:
            self._is_second_call = False

    async def _compact_after(self, refusal: ModelRequestError, facts: CompactionFacts) -> None:
        """Compact a conversation that its model has refused, to about an eighth of it, whatever the agent's limit is.

        Raises:
            ModelRequestError: nothing was compacted.
        """
        conversation = self.agent.conversation
        size = tokens(conversation)
        limit = min(facts.at, size // 2)
        if (cut := place_of_cut(conversation, limit)) is None:
            raise _after(refusal, "There is nothing to sum up: the request and the newest step are most of it.")
        await self._compact(facts.model_copy(update={"at": limit}), cut, size)
        compaction = conversation.pending_compaction
        if compaction is not None and (failure := compaction.error) is not None:
            raise _after(refusal, f"Summing it up has failed: {failure.message}")

    async def _compact(self, facts: CompactionFacts, cut: int, size: int) -> None:
        agent, conversation, turn, limit = self.agent, self.agent.conversation, self.agent.turn, facts.at
        request = self._request(facts, cut)
        with agent.waits.entered(SummaryWait(key="", model=request.model)):
            outcome = await self._summarized(request)
        if outcome.error is None:
            removed = size_of(conversation, conversation.cut, cut)
            conversation.replace_by_summary(_summary(conversation, cut, limit, outcome), cut)
            size = max(0, size - removed // BYTES_PER_TOKEN)
            agent.cached_messages = conversation.ref().count
        conversation.compact_again_at = size + limit // PARTS
        conversation.pending_compaction = StepCompaction(
            messages=request.cut, text=outcome.summary, usage=outcome.usage, error=outcome.error
        )
        conversation.event_log.compacted(conversation.next_step)
        if outcome.usage.total_tokens:
            turn.add_model_call(request.model, outcome.usage)

    def _request(self, pinned: CompactionFacts, cut: int) -> CompactConversation:
        agent, facts, conversation = self.agent, self.agent.facts, self.agent.conversation
        whole = conversation.ref()
        return CompactConversation(
            where=agent.context,
            model=pinned.model or agent.turn.model,
            run_model=agent.turn.model,
            step=agent.turn.next_step,
            cut=cut - conversation.view_offset,
            compact_at=pinned.at,
            uncached=whole.count - agent.cached_messages,
            new=conversation.new_since(agent.cached_messages, limits.INLINE_BYTES),
            conversation=whole,
            patience=min(facts.model_patience, limits.COMPACTION_PATIENCE),
            timeout=facts.model_timeout,
            attempts=facts.model_attempts,
        )

    async def _summarized(self, request: CompactConversation) -> Compacted:
        """Have the older messages summarized. A failure is returned, as the run can continue without a summary."""
        summary = f"sum up {request.cut} messages"
        try:
            return await self.agent.model_activity(
                COMPACT_CONVERSATION, request, Compacted, summary=summary, attempts=self.agent.facts.model_attempts
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise_if_not_called(error)
            kind = type(error_of(error) or error.cause or error).__name__
            return Compacted(error=ErrorInfo(kind=kind, message=f"{error.cause or error}"))


def place_of_cut(conversation: Conversation, limit: int) -> int | None:
    """The index of the first message that is kept; None if too little would be removed. `limit` is in tokens.

    A cut is always at the start of a step, so that no call loses its result. The newest step is always kept, and as many
    before it as fit.
    """
    size = partial(size_of, conversation)
    kept_bytes, cut, end = 0, None, len(conversation.messages)
    for start in reversed(step_starts(conversation)):
        kept_bytes += size(start, end)
        end = start
        if start <= conversation.cut or (cut is not None and kept_bytes > limit // PARTS * BYTES_PER_TOKEN):
            break
        cut = start
    if cut is None:
        return None
    first, after_last = (number - conversation.first_message for number in conversation.request_span)
    request_bytes = size(first, after_last) if conversation.cut <= first < cut else 0
    removed_bytes = size(conversation.cut, cut) - request_bytes
    return cut if removed_bytes >= limit // PARTS * BYTES_PER_TOKEN else None


def _after(refusal: ModelRequestError, why: str) -> ModelRequestError:
    """The refusal, with what was tried after it."""
    return ModelRequestError(f"{refusal.message} {why}", status=refusal.status, request_id=refusal.request_id)


def _summary(conversation: Conversation, cut: int, limit: int, outcome: Compacted) -> ConversationSummary:
    """The user's request of this turn (only the beginning and the end of a long one), and the summary."""
    first, after_last = (number - conversation.first_message for number in conversation.request_span)
    task, content, previous = "", [], conversation.summary
    if conversation.cut <= first < cut:
        request = conversation.messages[first:after_last]
        task = "\n\n".join(message.text for message in request)
        content = [part for each in request if isinstance(each, UserMessage) for part in media_of(each.content)]
        task = shorten_middle(task, limit // PARTS * BYTES_PER_TOKEN)
    elif previous and first < conversation.cut:
        task, content = previous.task, media_of(previous.content)
    summarized = conversation.messages[conversation.cut : cut]
    answers = sum(isinstance(message, AssistantMessage) for message in summarized)
    return ConversationSummary(
        task=task,
        content=content[: MAX_PARTS - 1],
        heading=outcome.heading,
        summary=outcome.summary,
        answers=answers + (previous.answers if previous else 0),
    )
