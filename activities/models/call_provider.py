"""One request to a provider, within its time, and told on its span."""

from __future__ import annotations

import asyncio

from opentelemetry.trace import Span

from mulligan.activities.models.protocol import Provider, Reply, Request
from mulligan.observe.telemetry import Telemetry


async def call_provider(provider: Provider, request: Request, telemetry: Telemetry, span: Span) -> Reply:
    """The model's answer.

    Raises:
        TimeoutError: none within `request.timeout` seconds. The client's own timeout is for each read; this is for all.
        ModelRequestError, Unavailable: as the provider says.
    """
    async with asyncio.timeout(request.timeout):
        reply = await provider.complete(request)
    telemetry.add_response(
        span,
        provider=provider.name,
        requested=request.model,
        response_id=reply.response_id,
        model=reply.model,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
    )
    return reply
