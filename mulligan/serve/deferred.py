"""`POST /api/callbacks/{token}`: whoever has the token of a deferred call ends it, once. No other authorization."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from mulligan.client.send_update import RunEndedError, UpdateTooLargeError, send_update
from mulligan.errors import UpdateRefusedError
from mulligan.serve.api_answers import Accepted
from mulligan.serve.http_protocol import Protocol, problems, refuse_by_rfc_9457, runs_of
from mulligan.serve.idempotency import KEYED, read_update_id
from mulligan.serve.json_body import MOST_RESULT_VALUES, json_object, parse_body
from mulligan.serve.openapi_document import NO_SECURITY
from mulligan.serve.problems import Problem
from mulligan.wire.deferred import COMPLETE

PREFIX = "/api/callbacks"
router = APIRouter(prefix=PREFIX, tags=["callbacks"])


@router.post(
    "/{token}",
    response_model=Accepted,
    responses=problems(404, 409),
    openapi_extra={
        **NO_SECURITY,
        **KEYED,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"result": {}, "error": {"type": "string"}},
                        "minProperties": 1,
                        "maxProperties": 1,
                        "additionalProperties": False,
                    }
                }
            },
        },
    },
)
async def complete(token: str, request: Request) -> dict[str, Any]:
    """End a deferred call with `{"result": …}` or `{"error": "…"}`. The answer says nothing about the run."""
    runs = await runs_of(request)
    call = await runs.callback_tokens.open(token)
    if call is None:
        raise Problem(404, "callback_not_found", "No call has this token; send it as the tool got it.")
    # Not before: everybody can reach this route.
    body = await parse_body(request, json_object, most_values=MOST_RESULT_VALUES, most_names=MOST_RESULT_VALUES)
    unknown = [name for name in body if name not in ("result", "error")]
    if unknown or len(body) != 1:
        raise Problem(422, "invalid_input", 'Send one JSON object with either "result" or "error".')
    fields = {**body, "call_id": call.call_id, "conversation": call.conversation, "trace_id": call.trace_id}
    try:
        update_id = read_update_id(request, None, fields)
        await send_update(runs.client, call.workflow_id, COMPLETE, fields, keep_none=True, update_id=update_id)
    except UpdateTooLargeError:
        raise
    except UpdateRefusedError as error:
        if error.ended_by is None:
            raise Problem(422, "invalid_input", error.message) from None
        how = f": {error.ended_by}" if error.ended_by else ""
        raise Problem(409, "not_waiting", f"The call no longer waits{how}.") from None
    except RunEndedError:
        raise Problem(409, "run_ended", "The run of the call has ended, so nothing waits for this.") from None
    return {"accepted": True}


PROTOCOL = Protocol(prefix=PREFIX, router=router, refuse=refuse_by_rfc_9457, public=[f"{PREFIX}/"])
