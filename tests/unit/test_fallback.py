"""A list of models, without a server: errors, outputs, private data. What a cancellation and turns do: tests/live/test_fallback.py."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import Agent, ModelRequestError, ModelUnavailableError, ProviderStrategy, ToolStrategy, tool
from mulligan.worker.loading import load_agents
from tests.support.lab import DONE, Ran, call
from tests.support.memory_lab import memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Reasoning, Turn

DOWN = Turn(failure=Failure(status=503))
REFUSES = Turn(failure=Failure(status=400))


@tool
def weigh(thing: str) -> str:
    """Weigh something."""
    return f"{thing}: 2 kg"


class Weight(BaseModel):
    kilos: float


@pytest.fixture(name="server")
def model_server(model: OpenAIServer) -> OpenAIServer:
    return model


@pytest.fixture
def names() -> tuple[str, str]:
    """Two models that no other test uses."""
    mark = uuid.uuid4().hex[:6]
    return f"first-{mark}", f"second-{mark}"


def agent(first: str, second: str, apis: tuple[str, str] = ("openai", "openai-chat"), **options: Any) -> Agent:
    given: dict[str, Any] = {"tools": [weigh], "max_steps": 6, "model_attempts": 2, "model_patience": 60, **options}
    return Agent(name="weigher", model=[f"{apis[0]}:{first}", f"{apis[1]}:{second}"], **given)


async def run(server: OpenAIServer, one: Agent, **run_input: Any) -> Ran:
    async with memory_lab(server, load_agents([one], [])) as lab:
        return await lab.run_input({"agent": one.name, "prompt": "Weigh it.", **run_input})


def request_counts(server: OpenAIServer, *models: str) -> list[int]:
    """How often each model was asked. Asserts that no request was refused."""
    assert not [request.refusal for model in models for request in server.requests_of(model) if request.refusal]
    return [len(server.requests_of(model)) for model in models]


async def test_when_no_model_answers_the_last_error_says_what_each_model_returned(
    server: OpenAIServer, names: tuple[str, str]
) -> None:
    """The run fails with the error of the last model."""
    first, second = names
    server.script(first, [REFUSES])
    server.script(second, [DOWN])
    ran = await run(server, agent(first, second))
    assert isinstance(ran.error, ModelUnavailableError)
    assert "None of the 2 models answered" in ran.error.message
    assert f"openai:{first}: " in ran.error.message
    assert "scripted failure 400" in ran.error.message
    assert "scripted failure 503" in ran.error.message
    server.script(first, [DOWN])
    server.script(second, [REFUSES])
    ran = await run(server, agent(first, second, model_attempts=1))
    assert isinstance(ran.error, ModelRequestError)
    assert ran.error.status == 400
    assert ran.error.request_id
    [finish] = ran.spans_of("agent.finish")
    assert finish.attributes["error.type"] == "ModelRequestError"


async def test_reasoning_of_one_provider_is_sent_back_to_it_and_to_no_other(
    server: OpenAIServer, names: tuple[str, str]
) -> None:
    """Both reasoning items and the text of reasoning are private to their provider."""
    first, second = names

    def responses(body: dict[str, Any], nth: int) -> Turn:
        if nth == 1:
            return REFUSES
        thought = [Reasoning(encrypted_content=f"secret {nth}")]
        return Turn(text="done", reasoning=thought) if nth == 3 else Turn(
            reasoning=thought, text="Let me see.", calls=[("weigh", f'{{"thing": "ham {nth}"}}', "same")]
        )  # fmt: skip

    def chat(body: dict[str, Any], nth: int) -> Turn:
        return REFUSES if nth == 3 else call("weigh", f'{{"thing": "egg {nth}"}}', id="same")

    server.script(first, responses)
    server.script(second, chat)
    ran = await run(server, agent(first, second))
    assert (ran.result["status"], ran.result["output"]) == ("completed", "done")
    openai, other = f"openai:{first}", f"openai-chat:{second}"
    assert [step["model"] for step in ran.steps] == [openai, other, other, openai]
    assert request_counts(server, first, second) == [3, 3]
    for request in server.requests_of(second):
        assert "secret" not in request.body.decode()
        assert "reasoning" not in request.body.decode()
    back = server.requests_of(first)[-1]
    kinds = [item.get("type", item.get("role")) for item in back.conversation]
    told = ["user", "reasoning", "assistant", *["function_call", "function_call_output"] * 3]
    assert kinds == told
    assert [item["encrypted_content"] for item in back.conversation if item.get("type") == "reasoning"] == ["secret 0"]
    # Each call ran once, and all ids differ, although both models gave the same.
    assert [each["result"]["text"] for each in ran.calls] == ["ham 0: 2 kg", "egg 1: 2 kg", "egg 2: 2 kg"]
    assert len({each["id"] for each in ran.calls}) == 3


@pytest.mark.parametrize(
    ("output", "apis", "by_call"),
    [
        (Weight, ("openai", "openai-chat"), True),
        (Weight, ("openai-chat", "openai"), True),
        (Weight, ("openai", "openai"), False),
        (ProviderStrategy(Weight), ("openai", "openai-chat"), False),
        (ToolStrategy(Weight), ("openai", "openai"), True),
    ],
    ids=["openai, chat", "chat, openai", "openai twice", "provider", "tool"],
)
async def test_all_models_of_a_list_are_asked_for_the_output_in_the_same_mode(
    server: OpenAIServer, names: tuple[str, str], output: Any, apis: tuple[str, str], by_call: bool
) -> None:
    """Every model of the list must accept the mode; it applies also if a run's input names one of them."""
    first, second = names
    value = '{"kilos": 2}'
    gives = call("Weight", value) if by_call else Turn(text=value)
    other_way = Turn(text=value) if by_call else call("Weight", value)
    server.script(first, [REFUSES])
    server.script(second, [call("weigh", '{"thing": "ham"}'), other_way, gives])
    ran = await run(server, agent(first, second, apis, output=output))
    assert (ran.result["status"], ran.result["output"]) == ("completed", {"kilos": 2.0})
    assert ran.result["recovered_failures"] == 1
    for model in names:
        for request in server.requests_of(model):
            assert ("Weight" in json.dumps(request.json["tools"])) is by_call
    server.script(first, [gives])
    alone = await run(server, agent(first, second, apis, output=output), model=f"{apis[0]}:{first}")
    assert alone.result["output"] == {"kilos": 2.0}


async def test_the_model_in_the_run_input_replaces_the_whole_list(server: OpenAIServer, names: tuple[str, str]) -> None:
    """The run fails if that model refuses."""
    first, second = names
    server.script(first, [DONE])
    server.script(second, [REFUSES])
    ran = await run(server, agent(first, second), model=f"openai-chat:{second}")
    assert isinstance(ran.error, ModelRequestError)
    assert "None of" not in ran.error.message
    assert request_counts(server, first, second) == [0, 1]
