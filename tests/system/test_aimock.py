"""aimock, a server of models that another project has written: whole runs in each API, with errors and a stream that breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import Agent, Model
from mulligan.worker.loading import load_agents
from tests.support.aimock import aimock
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.unit.test_zoo import OPTIONS, RAN, broken, listing, nothing, pay, photo

APIS = {"openai-chat": "/v1", "openai": "/v1", "anthropic": "", "google": "/v1beta"}
"""The APIs, and the paths of their base addresses."""

END = "All is done. " * 20


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def answers(model: str) -> list[dict[str, Any]]:
    """The answers of a model: it is overloaded at first, and its last answer breaks off once where it is streamed.

    In the Responses API it is not: aimock streams no usage there, so it is asked without.
    """
    first = {"model": model, "hasToolResult": False}
    second, third = ({"model": model, "toolResultContains": text} for text in ("on fire", "no result"))
    overloaded = {"error": {"message": "Overloaded", "type": "overloaded_error"}, "status": 529}
    mistakes = [call("pay", amount="much"), call("no_such_tool"), call("broken")]
    return [
        {"match": {**first, "sequenceIndex": 0}, "response": overloaded},
        {"match": first, "response": {"toolCalls": mistakes}},
        {"match": second, "response": {"content": "So.", "toolCalls": [call("pay", amount=5), call("nothing")]}},
        {"match": {**third, "sequenceIndex": 0}, "response": {"content": END}, "truncateAfterChunks": 6},
        {"match": third, "response": {"content": END}},
    ]


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryLab]:
    fixtures = [answer for api in APIS for answer in answers(f"gemini-2.5-{api}")]
    patch = pytest.MonkeyPatch()
    patch.setenv("AIMOCK_KEY", "sk-test")
    async with aimock(fixtures, tmp_path_factory.mktemp("aimock")) as url:
        models = [
            Model(f"{api}@{api}-mock:none", base_url=f"{url}{path}", api_key_env="AIMOCK_KEY")
            for api, path in APIS.items()
        ]
        clerk = Agent(name="clerk", tools=[photo, nothing, pay, broken, listing], **{**OPTIONS, "model": models})
        async with memory_lab(model, load_agents([clerk], [])) as at:
            yield at
    patch.undo()


@pytest.mark.parametrize("api", APIS)
async def test_a_run_at_a_server_that_others_have_written(lab: MemoryLab, api: str) -> None:
    """Each call runs once, each mistake is told to the model, and no piece of the broken answer is left."""
    RAN.clear()
    ran = await lab.run_input({"agent": "clerk", "prompt": "Go.", "model": f"{api}@{api}-mock:gemini-2.5-{api}"})
    assert ran.error is None
    assert (ran.result["status"], ran.result["output"]) == ("completed", END)
    assert sorted(map(str, RAN)) == ["5", "broken", "nothing"]
    kinds = [made["result"]["error"]["kind"] for made in ran.calls if made["result"]["error"]]
    assert kinds == ["invalid_arguments", "unknown_tool", "tool_exception"]
