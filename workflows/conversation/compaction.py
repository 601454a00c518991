"""When a conversation is compacted, and where it is cut. An activity writes the summary."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.content import MAX_PARTS, Part, media_of
from mulligan.values import AssistantMessage, Compaction, Message, UserMessage
from mulligan.wire.compaction_request import CompactConversation, Compacted
from mulligan.wire.run_context import RunContext
from mulligan.wire.shorten import shorten_middle
from mulligan.workflows import dispatch, limits
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import ConversationSummary
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.turn import Turn

__all__ = ["compact_if_due", "place_of_cut", "tokens"]

BYTES_PER_TOKEN = 4
"""A rough estimate, for messages whose tokens no provider has counted yet."""
CONTENT_TOKENS = 1_500
"""A rough estimate for an image, and the least for another file: in the conversation they are references of 200 bytes."""
PARTS = 4
"""The newest steps keep at most a quarter of the limit, and a compaction that removes less than a quarter is not made."""


async def compact_if_due(
    conversation: Conversation, turn: Turn, *, context: RunContext, known: int, inbox: Inbox, route: AgentRoute
) -> int:
    """Replace the older steps by a summary, if the conversation has reached the agent's limit.

    The turn's next step will show the compaction. If no summary can be written, the conversation stays unchanged, and the
    next try is made after it has grown by a quarter of the limit.

    Args:
        conversation: The conversation of the agent.
        turn: The open turn, whose usage the compaction is added to.
        context: What identifies the run to the activity.
        known: How many messages of the view are in the worker's cache.
        inbox: The agent's: a request to stop ends the wait for the summary.
        route: Where the agent is served.

    Returns:
        `known`, as it is after the compaction.
    """
    facts = turn.facts
    limit, size = facts.compact_at, tokens(conversation)
    if limit is None or size < max(limit, conversation.compact_again_at):
        return known
    cut = place_of_cut(conversation, limit)
    if cut is None:
        return known
    request = _request(conversation, turn, context=context, known=known, cut=cut, limit=limit)
    outcome = await dispatch.compact_conversation(request, facts, inbox, route)
    if outcome.error is None:
        removed = _size(conversation, conversation.cut, cut)
        conversation.replace_by_summary(_summary(conversation, cut, limit, outcome), cut)
        size = max(0, size - removed // BYTES_PER_TOKEN)
    conversation.compact_again_at = size + limit // PARTS
    conversation.pending_compaction = Compaction(
        messages=request.cut, text=outcome.summary, usage=outcome.usage, error=outcome.error
    )
    conversation.event_log.compacted(conversation.next_step)
    turn.add_usage(
        outcome.usage, turn.cost_of(request.model, outcome.usage, is_live=True) if outcome.usage.total_tokens else 0.0
    )
    return known if outcome.error else conversation.ref().count


def _request(
    conversation: Conversation, turn: Turn, *, context: RunContext, known: int, cut: int, limit: int
) -> CompactConversation:
    facts = turn.facts
    return CompactConversation(
        where=context,
        model=facts.compact_model or turn.model,
        run_model=turn.model,
        step=turn.next_step,
        cut=cut - conversation.view_offset,
        compact_at=limit,
        known=known,
        new=conversation.new_since(known, limits.INLINE_BYTES),
        whole=conversation.ref(),
        patience=min(facts.model_patience, limits.COMPACTION_PATIENCE),
        timeout=facts.model_timeout,
        attempts=facts.model_attempts,
    )


def tokens(conversation: Conversation) -> int:
    """About how many tokens the next model call sends: the provider's count at the last one, plus what was added since."""
    if not conversation.steps:
        return conversation.size(conversation.cut) // BYTES_PER_TOKEN
    last = conversation.steps[-1]
    new = conversation.size(last.at + 1)
    if not last.usage.total_tokens:  # some servers do not count
        return (conversation.size(conversation.cut, last.at + 1) + new) // BYTES_PER_TOKEN
    return last.usage.total_tokens + new // BYTES_PER_TOKEN


def place_of_cut(conversation: Conversation, limit: int) -> int | None:
    """The index of the first message that is kept; None if too little would be removed. `limit` is in tokens.

    A cut is always at the start of a step, so that no call loses its result. The newest step is always kept, and as many
    before it as fit.
    """
    kept_bytes, cut, end = 0, None, len(conversation.messages)
    for start in reversed(_step_starts(conversation)):
        kept_bytes += _size(conversation, start, end)
        end = start
        if start <= conversation.cut or (cut is not None and kept_bytes > limit // PARTS * BYTES_PER_TOKEN):
            break
        cut = start
    if cut is None:
        return None
    first, after_last = (number - conversation.first_message for number in conversation.request_span)
    request_bytes = _size(conversation, first, after_last) if conversation.cut <= first < cut else 0
    removed_bytes = _size(conversation, conversation.cut, cut) - request_bytes
    return cut if removed_bytes >= limit // PARTS * BYTES_PER_TOKEN else None


def _size(conversation: Conversation, start: int, end: int) -> int:
    """Bytes of JSON of messages. Images and files count as the bytes that their tokens stand for."""
    count = sum(len(media_of(_content(message))) for message in conversation.messages[start:end])
    return conversation.size(start, end) + count * CONTENT_TOKENS * BYTES_PER_TOKEN


def _content(message: Message) -> Sequence[Part] | None:
    return None if isinstance(message, AssistantMessage) else message.content


def _step_starts(conversation: Conversation) -> list[int]:
    """The indexes of the messages that steps begin with: this run's, or before its first, those in its input."""
    if conversation.steps:
        return [record.at for record in conversation.steps]
    return [index for index, message in enumerate(conversation.messages) if isinstance(message, AssistantMessage)]


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
