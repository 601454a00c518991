"""The conversation that a model call is about: in this worker's cache, or asked of the workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.exceptions import ApplicationError

from mulligan.activities.models.protocol import Provider
from mulligan.activities.run_data.conversation_cache import CachedConversation, conversation_key
from mulligan.activities.run_data.definitions import QUERY_TIMEOUT, this_workflow
from mulligan.activities.services import Services
from mulligan.wire.conversation_ref import CONVERSATION_QUERY, Page, PageRequest
from mulligan.wire.model_call import ConversationRequest


@asynccontextmanager
async def conversation_of(
    order: ConversationRequest, provider: Provider, services: Services
) -> AsyncIterator[CachedConversation]:
    """The whole conversation: what the cache holds, what came with the order, and what the workflow is asked for.

    Put back at the end, after a failure too: the next attempt need not ask for all of it again.

    Raises:
        ApplicationError: to be tried again: the workflow has moved on meanwhile.
    """
    cache, key = services.conversations, conversation_key(order.where)
    prefix, miss = cache.take(key, provider, order.whole, order.known)
    try:
        held = len(prefix.messages)
        if held == order.known:
            prefix.extend(cache.resolve(key, order.new or prefix.open_calls()))
        is_whole = len(prefix.messages) == order.whole.count
        result = "hit" if is_whole else "partial" if prefix.messages else miss or "absent"
        asked = await _ask_for_rest(order, prefix)
        if prefix.ref != order.whole:
            # Of another past: a result under a call's id from before a reset, another run of this workflow id.
            prefix.cut_back(0)
            result = "mismatch"
            asked += await _ask_for_rest(order, prefix)
        services.telemetry.metrics.prefix_cache(result, asked)
        if prefix.ref != order.whole:
            prefix.cut_back(0)
            raise ApplicationError("The workflow has moved on while its messages were read.", type="StaleConversation")
        yield prefix
    finally:
        cache.put(key, prefix)


async def _ask_for_rest(order: ConversationRequest, prefix: CachedConversation) -> int:
    """Ask the workflow for the messages that are not there yet; returns their bytes as JSON."""
    asked = 0
    while (have := len(prefix.messages)) < order.whole.count:
        page = await this_workflow().query(
            CONVERSATION_QUERY,
            PageRequest(conversation=order.where.conversation, since=have, count=order.whole.count - have),
            result_type=Page,
            rpc_timeout=QUERY_TIMEOUT,
        )
        if not page.messages:
            break
        asked += prefix.extend(page.messages)
    return asked
