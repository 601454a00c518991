"""Send one request to a provider, within its timeout, and record the answer on its span."""

from __future__ import annotations

import asyncio

from opentelemetry.trace import Span

from mulligan.activities.models.checked_reply import checked_reply
from mulligan.activities.models.estimated_usage import with_usage
from mulligan.activities.models.protocol import Provider, Reply, Request
from mulligan.endpoint import Endpoint
from mulligan.observe.telemetry import Telemetry


async def call_provider(
    provider: Provider, request: Request, telemetry: Telemetry, span: Span, endpoint: Endpoint | None
) -> Reply:
    """Return the model's answer, and put its facts and its endpoint's address on the span.

    Raises:
        TimeoutError: no answer within `request.timeout` seconds in all; the HTTP client's timeout is for each read.
        ModelRequestError, Unavailable: see `Provider.complete`.
    """
    if endpoint is not None and (server := endpoint.server()) is not None:
        telemetry.add_server(span, *server)
    try:
        async with asyncio.timeout(request.timeout):
            reply = await provider.complete(request)
    except TimeoutError:
        raise TimeoutError(f"no answer within {request.timeout:g} s") from None
    return record_reply(provider, request, reply, telemetry, span)


def record_reply(provider: Provider, request: Request, reply: Reply, telemetry: Telemetry, span: Span) -> Reply:
    """Check the answer, and put its facts on its span.

    Raises:
        Unavailable: see `checked_reply`.
    """
    reply = with_usage(request, checked_reply(reply))
    telemetry.add_response(
        span,
        provider=provider.name,
        requested=request.model,
        response_id=reply.response_id,
        model=reply.model,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
    )
    telemetry.add_hosted_work(span, [f"{call.name} {call.status}" for call in reply.hosted_calls], reply.reason)
    return reply
