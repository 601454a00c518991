"""`POST /api/webhooks/openai`: OpenAI says that a background response has ended, and its run reads it at once.

The signature is the authorization. The event has the id of the response alone: its metadata, which are read at OpenAI, have
the encrypted token of the run (activities/background/read_response.py).
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from openai import APIError, APIStatusError, AsyncOpenAI, InvalidWebhookSignatureError, NotFoundError, OpenAIError

from mulligan.client.callback_tokens import RESPONSE, DeferredCallId
from mulligan.client.send_update import RunEndedError, UpdateTimeoutError, send_update
from mulligan.client.unless_missing import unless_missing
from mulligan.errors import UpdateRefusedError
from mulligan.serve.api_answers import Accepted
from mulligan.serve.arriving_body import read_body
from mulligan.serve.http_protocol import Protocol, refuse_by_rfc_9457, runs_of
from mulligan.serve.json_body import read_json
from mulligan.serve.openapi_document import NO_SECURITY
from mulligan.serve.problems import Problem
from mulligan.serve.shown_json import shown_json
from mulligan.wire.background import METADATA, RESPONSE_ENDED

PREFIX = "/api/webhooks"
RETRIEVE_TIMEOUT = 15.0
"""Seconds to read the response at OpenAI, which waits for the answer to its webhook meanwhile."""
MOST_EVENT_BYTES = 16_000
"""Bytes of an event: it has the id of a response, and nothing of its text."""
TOLERANCE = 300
"""Seconds between the time of a signature and now, at most."""
SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
router = APIRouter(prefix=PREFIX, tags=["webhooks"])


@router.post(
    "/openai",
    response_model=Accepted,
    openapi_extra={
        **NO_SECURITY,
        "parameters": [
            {"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in SIGNATURE_HEADERS
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
    },
)
async def openai(request: Request) -> dict[str, Any]:
    """Take an event of OpenAI. A status of 5xx makes OpenAI send it again, for up to three days."""
    _check_headers(request)
    try:
        client = AsyncOpenAI(max_retries=0, timeout=RETRIEVE_TIMEOUT)
    except OpenAIError:
        raise Problem(
            503, "not_set_up", "Set OPENAI_API_KEY for this server: it reads the response at OpenAI."
        ) from None
    async with client:
        response_id = await _response_id(client, request)
        if response_id is None:
            return {"accepted": True}
        metadata = await _metadata(client, response_id)
    token = metadata.get(METADATA)
    runs = await runs_of(request)
    run = await runs.callback_tokens.open(token, RESPONSE) if isinstance(token, str) else None
    if run is not None:
        await _wake(runs.client, run, response_id)
    return {"accepted": True}


def _check_headers(request: Request) -> None:
    """Refuse what cannot be signed, before its body is read.

    Raises:
        Problem: a header is missing, or the time of the signature is too long ago.
    """
    timestamp = request.headers.get("webhook-timestamp", "")
    is_near = timestamp.isascii() and timestamp.isdigit() and abs(int(timestamp[:20]) - time.time()) <= TOLERANCE
    if not is_near or not request.headers.get("webhook-id") or not request.headers.get("webhook-signature"):
        raise _invalid_signature()


def _invalid_signature() -> Problem:
    return Problem(400, "invalid_signature", "The signature is not that of a webhook of OpenAI, or is too old.")


async def _response_id(client: AsyncOpenAI, request: Request) -> str | None:
    """The response of an event that is signed; None if the event is about something else.

    Raises:
        Problem: there is no secret, the signature is wrong or too old, or the body is no event.
    """
    if not client.webhook_secret:
        raise Problem(503, "not_set_up", "Set OPENAI_WEBHOOK_SECRET for this server: it checks the signature by it.")
    body = await read_body(request, MOST_EVENT_BYTES)
    try:
        client.webhooks.verify_signature(body, dict(request.headers), tolerance=TOLERANCE)
    except (InvalidWebhookSignatureError, ValueError, TypeError):  # TypeError: it is not ASCII
        raise _invalid_signature() from None
    event = read_json(body)
    if not isinstance(event, dict):
        raise Problem(422, "invalid_input", f"The event is {shown_json(event)}; it must be a JSON object.")
    data = event.get("data")
    response_id = data.get("id") if isinstance(data, dict) else None
    is_of_response = str(event.get("type")).startswith("response.")
    return response_id if is_of_response and isinstance(response_id, str) and response_id else None


async def _metadata(client: AsyncOpenAI, response_id: str) -> dict[str, str]:
    """The metadata of a response; empty if it is no longer stored.

    Raises:
        Problem: OpenAI does not answer, or refuses.
    """
    try:
        response = await client.responses.retrieve(response_id)
    except NotFoundError:
        return {}
    except APIStatusError as error:
        raise Problem(503, "provider_unavailable", f"OpenAI answered {error.status_code} for the response.") from None
    except APIError:
        raise Problem(503, "provider_unavailable", "OpenAI could not be reached for the response.") from None
    return dict(response.metadata or {})


async def _wake(client: Any, run: DeferredCallId, response_id: str) -> None:
    """Tell the run. If it has ended, or waits for another response, nothing is needed.

    Raises:
        Problem: no worker of the run answers.
    """
    fields = {"response_id": response_id, "conversation": run.conversation, "trace_id": run.trace_id}
    try:
        await unless_missing(send_update(client, run.workflow_id, RESPONSE_ENDED, fields))
    except (UpdateRefusedError, RunEndedError):
        return
    except UpdateTimeoutError as error:
        raise Problem(503, "no_worker", str(error)) from None


PROTOCOL = Protocol(prefix=PREFIX, router=router, refuse=refuse_by_rfc_9457, public=[f"{PREFIX}/"])
