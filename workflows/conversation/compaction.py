"""When a conversation is made shorter, and where it is cut. The summing up itself is an activity."""

from __future__ import annotations

from mulligan.values import AssistantMessage, Compaction
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.compaction_request import CompactConversation, Compacted
from mulligan.wire.run_context import RunContext
from mulligan.wire.shorten import ends_of
from mulligan.workflows import dispatch, limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import Opening
from mulligan.workflows.people.inbox import Inbox

__all__ = ["compact_if_due", "place_of_cut", "tokens"]

BYTES_PER_TOKEN = 4
"""A rough count, for what no provider has counted yet."""
KEPT = 4
"""The part of the limit that the newest steps may take after a compaction: a fourth. Less than that is not worth one."""


async def compact_if_due(
    conversation: Conversation, sent: int, where: RunContext, facts: AgentFacts, model: str, step: int, inbox: Inbox
) -> Compaction | None:
    """Have the older steps summed up, where the conversation has grown to the agent's limit.

    `sent`: how many messages of it the worker has. `step`: the one that comes next, and will show what this returns.
    Where no summary can be had, the conversation stays as it is, until it has grown by a fourth of the limit.
    """
    limit, size = facts.compact_at, tokens(conversation)
    if limit is None or size < max(limit, conversation.again_at):
        return None
    if not conversation.steps and not facts.compacts_given:
        return None
    cut = place_of_cut(conversation, limit)
    if cut is None:
        return None
    order = CompactConversation(
        where=where,
        model=facts.compact_model or model,
        run_model=model,
        step=step,
        cut=cut - conversation.shift,
        compact_at=limit,
        known=sent,
        new=conversation.new_since(sent, limits.INLINE_BYTES),
        whole=conversation.ref(),
        patience=min(facts.model_patience, limits.COMPACTION_PATIENCE),
        timeout=facts.model_timeout,
        attempts=facts.model_attempts,
    )
    outcome = await dispatch.compact_conversation(order, facts, inbox)
    if outcome.error is None:
        replaced = conversation.size(conversation.cut, cut)
        conversation.open_with(_opening(conversation, cut, limit, outcome), cut)
        size = max(0, size - replaced // BYTES_PER_TOKEN)
    conversation.again_at = size + limit // KEPT
    conversation.compaction = Compaction(
        messages=order.cut, text=outcome.summary, usage=outcome.usage, error=outcome.error
    )
    return conversation.compaction


def tokens(conversation: Conversation) -> int:
    """About how many tokens the next model call sends: as the provider counted at the last one, and what came since."""
    if not conversation.steps:
        return conversation.size(conversation.cut) // BYTES_PER_TOKEN
    last = conversation.steps[-1]
    new = conversation.size(last.at + 1)
    if not last.usage.total_tokens:  # some servers do not count
        return (conversation.size(conversation.cut, last.at + 1) + new) // BYTES_PER_TOKEN
    return last.usage.total_tokens + new // BYTES_PER_TOKEN


def place_of_cut(conversation: Conversation, limit: int) -> int | None:
    """Which message is the first to be kept as it is; None where too little is before it.

    It begins a step: no call is parted from its result. The newest step is always kept, and more as far as they fit.
    """
    kept, cut, end = 0, None, len(conversation.messages)
    for begin in reversed(_begins(conversation)):
        kept += conversation.size(begin, end)
        end = begin
        if begin <= conversation.cut or (cut is not None and kept > limit // KEPT * BYTES_PER_TOKEN):
            break
        cut = begin
    if cut is None:
        return None
    start, until = (number - conversation.first for number in conversation.asked)
    stays = conversation.size(start, until) if conversation.cut <= start < cut else 0
    goes = conversation.size(conversation.cut, cut) - stays
    return cut if goes >= limit // KEPT * BYTES_PER_TOKEN else None


def _begins(conversation: Conversation) -> list[int]:
    """Where steps begin: the run's own; before there is one, those in the messages that it was given."""
    if conversation.steps:
        return [record.at for record in conversation.steps]
    return [place for place, message in enumerate(conversation.messages) if isinstance(message, AssistantMessage)]


def _opening(conversation: Conversation, cut: int, limit: int, outcome: Compacted) -> Opening:
    """The summary, after the request that the agent is at work on: of a long one the two ends."""
    start, until = (number - conversation.first for number in conversation.asked)
    task, before = "", conversation.opening
    if conversation.cut <= start < cut:
        task = "\n\n".join(message.text for message in conversation.messages[start:until])
        task = ends_of(task, limit // KEPT * BYTES_PER_TOKEN)
    elif before and start < conversation.cut:
        task = before.task
    summed_up = conversation.messages[conversation.cut : cut]
    answers = sum(isinstance(message, AssistantMessage) for message in summed_up)
    return Opening(
        task=task,
        heading=outcome.heading,
        summary=outcome.summary,
        answers=answers + (before.answers if before else 0),
    )
