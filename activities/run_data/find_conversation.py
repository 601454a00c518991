"""Find the conversation that an activity works on: in this worker's cache, in its input, or by queries of the workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.exceptions import ApplicationError

from mulligan.activities.heartbeat import Heartbeat
from mulligan.activities.models.protocol import Provider
from mulligan.activities.run_data.conversation_cache import CachedConversation, conversation_key
from mulligan.activities.run_data.query_workflow import query_this_workflow
from mulligan.activities.run_data.read_content import ContentUnavailable, read_content
from mulligan.activities.services import Services
from mulligan.wire.conversation_ref import CONVERSATION_QUERY, Page, PageRequest
from mulligan.wire.model_call import ConversationRequest, ModelRequest


@asynccontextmanager
async def conversation_of(
    request: ModelRequest, provider: Provider, services: Services, heartbeat: Heartbeat
) -> AsyncIterator[CachedConversation]:
    """The whole conversation, from the cache, the new messages of the request, and queries of the workflow.

    It is put back into the cache at the end, also after a failure: then the next attempt needs fewer queries.

    Raises:
        ApplicationError: the workflow's messages changed meanwhile, or content cannot be read now. Temporal retries.
        ModelUnavailableError: content could not be read for as long as the run waits for its model.
        ModelRequestError: content was changed, or is too much for a request.
    """
    cache, key = services.conversations, conversation_key(request.where)
    prefix, miss = cache.take(key, provider, request.conversation, request.cached_messages)
    try:
        if len(prefix.messages) == request.cached_messages:
            prefix.extend(cache.resolve(key, request.new or prefix.open_calls()))
        is_whole = len(prefix.messages) == request.conversation.count
        result = "hit" if is_whole else "partial" if prefix.messages else miss or "absent"
        queried = await _query_rest(request, prefix)
        if prefix.ref != request.conversation:
            # The cache has another history: from before a reset, or of another run of this workflow id.
            prefix.cut_back(0)
            result = "mismatch"
            queried += await _query_rest(request, prefix)
        services.telemetry.metrics.count_cache_lookup(result, queried)
        if prefix.ref != request.conversation:
            prefix.cut_back(0)
            raise ApplicationError("The workflow has moved on while its messages were read.", type="StaleConversation")
        if prefix.unread:
            unread = [part for parts in prefix.unread.values() for part in parts]
            try:
                prefix.add_content(await read_content(unread, services.contents, request.where.tenant))
            except ContentUnavailable as error:
                raise services.retry_budget.error_to_raise(request, error, heartbeat) from None
        yield prefix
    finally:
        cache.put(key, prefix)


async def _query_rest(request: ConversationRequest, prefix: CachedConversation) -> int:
    """Query the workflow for the messages that are missing, and append them; returns their bytes as JSON."""
    queried = 0
    while (count := len(prefix.messages)) < request.conversation.count:
        wanted = PageRequest(
            conversation=request.where.conversation, since=count, count=request.conversation.count - count
        )
        page = await query_this_workflow(CONVERSATION_QUERY, wanted, Page)
        if not page.messages:
            break
        queried += prefix.extend(page.messages)
    return queried
