"""The conversation that a model call is about: in this worker's cache, or asked of the workflow."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from activities.definitions import QUERY_TIMEOUT, this_workflow
from activities.prefix_cache import Key, Prefix, PrefixCache
from activities.providers.protocol import Provider
from mulligan.compaction import CompactConversation
from mulligan.handoff import CONVERSATION_QUERY, ModelCall, Page, PageAsked


async def find_conversation(
    order: ModelCall | CompactConversation, key: Key, provider: Provider, cache: PrefixCache
) -> Prefix:
    """The whole conversation: what the cache holds, what came with the order, and what the workflow is asked for.

    It is taken out of the cache: who asked puts it back.

    Raises:
        ApplicationError: to be tried again: the workflow has moved on meanwhile.
    """
    prefix = cache.take(key, provider, order.whole, order.prefix) or Prefix(provider)
    if order.new is not None and prefix.ref == order.prefix:
        prefix.extend(cache.resolve(key, order.new))
    while (have := len(prefix.messages)) < order.whole.count:
        page = await this_workflow().query(
            CONVERSATION_QUERY,
            PageAsked(conversation=order.where.conversation, since=have, count=order.whole.count - have),
            result_type=Page,
            rpc_timeout=QUERY_TIMEOUT,
        )
        if not page.messages:
            break
        prefix.extend(page.messages)
    if prefix.ref != order.whole:
        raise ApplicationError("The workflow has moved on while its messages were read.", type="StaleConversation")
    return prefix
