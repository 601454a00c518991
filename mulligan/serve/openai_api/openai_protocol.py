"""The protocol `/v1`: its routes joined, the agents as models, and OpenAI's form of errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from starlette.responses import JSONResponse

from mulligan.serve.http_protocol import Calling, Protocol, Serving
from mulligan.serve.openai_api import chat_completions, conversations, responses
from mulligan.serve.openai_api.openai_errors import error_json
from mulligan.serve.problems import Problem

_INVALID = {"invalid_input", "prompt_needed"}
"""What OpenAI answers with 400, and we elsewhere with 422."""
router = APIRouter(include_in_schema=False)


@router.get("/v1/models")
async def list_models(runs: Serving, caller: Calling) -> dict[str, Any]:
    """The agents that the token may use."""
    agents = await runs.agents(caller)
    return {"object": "list", "data": [_model(agent["name"]) for agent in agents]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, runs: Serving, caller: Calling) -> dict[str, Any]:
    """Return one of the models that the caller may use."""
    return _model((await runs.agent(caller, model))["name"])


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "mulligan"}


def _refuse(problem: Problem) -> Response:
    """A problem as a response."""
    # After 409, clients of other makers send the same request again, which changes nothing of a run's state.
    is_invalid = problem.code in _INVALID or problem.status == HTTPStatus.CONFLICT
    status = HTTPStatus.BAD_REQUEST if is_invalid else problem.status
    headers = dict(problem.headers)
    if status != HTTPStatus.SERVICE_UNAVAILABLE:
        headers["x-should-retry"] = "false"  # OpenAI's SDKs would send it again after 409 and 5xx
    return JSONResponse(error_json(problem), status, headers=headers)


router.include_router(responses.router)
router.include_router(chat_completions.router)
router.include_router(conversations.router)
OPENAI = Protocol(prefix="/v1", router=router, refuse=_refuse)
