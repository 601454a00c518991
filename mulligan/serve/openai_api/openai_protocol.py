"""The protocol `/v1`: its routes joined, the agents as models, and OpenAI's form of errors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from mulligan.serve.http_protocol import Protocol, caller_of, runs_of
from mulligan.serve.openai_api import chat_completions, conversations, responses
from mulligan.serve.openai_api.openai_errors import refuse
from mulligan.serve.runs import Runs
from mulligan.serve.security import Caller

__all__ = ["OPENAI"]

Serving = Annotated[Runs, Depends(runs_of)]
Calling = Annotated[Caller, Depends(caller_of)]
router = APIRouter(include_in_schema=False)


@router.get("/v1/models")
async def list_models(runs: Serving, caller: Calling) -> dict[str, Any]:
    """The agents that the token may use."""
    agents = await runs.agents(caller)
    return {"object": "list", "data": [_model(agent["name"]) for agent in agents]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, runs: Serving, caller: Calling) -> dict[str, Any]:
    """One of them."""
    return _model((await runs.agent(caller, model))["name"])


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "mulligan"}


router.include_router(responses.router)
router.include_router(chat_completions.router)
router.include_router(conversations.router)
OPENAI = Protocol(prefix="/v1", router=router, refuse=refuse)
