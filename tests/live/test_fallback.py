"""A list of models: if one refuses or is unavailable, the next one is asked, without data private to another provider."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from mulligan import (
    Agent,
    DurableAgent,
    ModelRequestError,
    ModelUnavailableError,
    ProviderStrategy,
    RunInput,
    ToolStrategy,
    tool,
)
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, Ran, call
from tests.support.openai_turn import Failure, Reasoning, Turn

DOWN = Turn(failure=Failure(status=503))
REFUSES = Turn(failure=Failure(status=400))


@tool
def weigh(thing: str) -> str:
    """Weigh something."""
    return f"{thing}: 2 kg"


class Weight(BaseModel):
    kilos: float


@pytest.fixture
def names(lab: Lab) -> tuple[str, str]:
    """Two models that no other test uses."""
    mark = uuid.uuid4().hex[:6]
    return f"first-{mark}", f"second-{mark}"


def agent(first: str, second: str, apis: tuple[str, str] = ("openai", "openai-chat"), **options: Any) -> Agent:
    given: dict[str, Any] = {"tools": [weigh], "max_steps": 6, "model_attempts": 2, "model_patience": 60, **options}
    return Agent(name="weigher", model=[f"{apis[0]}:{first}", f"{apis[1]}:{second}"], **given)


async def run(lab: Lab, one: Agent, **run_input: Any) -> Ran:
    queue = f"fallback-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([one], []), lab.telemetry, queue):
        given = {"agent": one.name, "prompt": "Weigh it.", **run_input}
        return await lab.look(await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue))


def request_counts(lab: Lab, *models: str) -> list[int]:
    """How often each model was asked. Asserts that no request was refused."""
    assert not [request.refusal for model in models for request in lab.model.requests_of(model) if request.refusal]
    return [len(lab.model.requests_of(model)) for model in models]


@pytest.mark.parametrize(("first_says", "times"), [(DOWN, 2), (REFUSES, 1)], ids=["down", "refuses"])
async def test_when_the_first_model_fails_the_next_one_answers_and_keeps_the_turn(
    lab: Lab, names: tuple[str, str], first_says: Turn, times: int
) -> None:
    """Each attempt has its own span, which names the model."""
    first, second = names
    lab.model.script(first, [first_says] * 3)
    lab.model.script(second, [call("weigh", '{"thing": "ham"}'), DONE])
    ran = await run(lab, agent(first, second))
    assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("completed", "done", 2)
    assert request_counts(lab, first, second) == [times, 2]
    assert [step["model"] for step in ran.steps] == [f"openai-chat:{second}"] * 2
    chats = [span for span in ran.spans if span.name.startswith("chat ")]
    seen = [(span.name, span.status, span.attributes.get("mulligan.fallback")) for span in chats]
    assert sorted(seen, key=str) == sorted(
        [(f"chat {first}", "ERROR", None)] * times
        + [(f"chat {second}", "UNSET", 1), (f"chat {second}", "UNSET", None)],
        key=str,
    )
    assert len({span.span_id for span in ran.spans}) == len(ran.spans)
    # The input was sent once to the first and once to the second model, and counted once.
    assert ran.result["usage"]["input_tokens"] == 20


async def test_when_no_model_answers_the_last_error_says_what_each_model_returned(
    lab: Lab, names: tuple[str, str]
) -> None:
    """The run fails with the error of the last model."""
    first, second = names
    lab.model.script(first, [REFUSES])
    lab.model.script(second, [DOWN])
    ran = await run(lab, agent(first, second))
    assert isinstance(ran.error, ModelUnavailableError)
    assert "None of the 2 models answered" in ran.error.message
    assert f"openai:{first}: " in ran.error.message
    assert "scripted failure 400" in ran.error.message
    assert "scripted failure 503" in ran.error.message
    lab.model.script(first, [DOWN])
    lab.model.script(second, [REFUSES])
    ran = await run(lab, agent(first, second, model_attempts=1))
    assert isinstance(ran.error, ModelRequestError)
    assert ran.error.status == 400
    assert ran.error.request_id
    [finish] = ran.spans_of("agent.finish")
    assert finish.attributes["error.type"] == "ModelRequestError"


async def test_reasoning_of_one_provider_is_sent_back_to_it_and_to_no_other(lab: Lab, names: tuple[str, str]) -> None:
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

    lab.model.script(first, responses)
    lab.model.script(second, chat)
    ran = await run(lab, agent(first, second))
    assert (ran.result["status"], ran.result["output"]) == ("completed", "done")
    openai, other = f"openai:{first}", f"openai-chat:{second}"
    assert [step["model"] for step in ran.steps] == [openai, other, other, openai]
    assert request_counts(lab, first, second) == [3, 3]
    for request in lab.model.requests_of(second):
        assert "secret" not in request.body.decode()
        assert "reasoning" not in request.body.decode()
    back = lab.model.requests_of(first)[-1]
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
    lab: Lab, names: tuple[str, str], output: Any, apis: tuple[str, str], by_call: bool
) -> None:
    """Every model of the list must accept the mode; it applies also if a run's input names one of them."""
    first, second = names
    value = '{"kilos": 2}'
    gives = call("Weight", value) if by_call else Turn(text=value)
    other_way = Turn(text=value) if by_call else call("Weight", value)
    lab.model.script(first, [REFUSES])
    lab.model.script(second, [call("weigh", '{"thing": "ham"}'), other_way, gives])
    ran = await run(lab, agent(first, second, apis, output=output))
    assert (ran.result["status"], ran.result["output"]) == ("completed", {"kilos": 2.0})
    assert ran.result["recovered_failures"] == 1
    for model in names:
        for request in lab.model.requests_of(model):
            assert ("Weight" in json.dumps(request.json["tools"])) is by_call
    lab.model.script(first, [gives])
    alone = await run(lab, agent(first, second, apis, output=output), model=f"{apis[0]}:{first}")
    assert alone.result["output"] == {"kilos": 2.0}


async def test_the_model_in_the_run_input_replaces_the_whole_list(lab: Lab, names: tuple[str, str]) -> None:
    """The run fails if that model refuses."""
    first, second = names
    lab.model.script(first, [DONE])
    lab.model.script(second, [REFUSES])
    ran = await run(lab, agent(first, second), model=f"openai-chat:{second}")
    assert isinstance(ran.error, ModelRequestError)
    assert "None of" not in ran.error.message
    assert request_counts(lab, first, second) == [0, 1]


@workflow.defn
class TwoTurns:
    """Two turns of one conversation."""

    @workflow.run
    async def run(self) -> list[Any]:
        weigher = DurableAgent("weigher")
        return [(await weigher.run(prompt)).output for prompt in ("Weigh it.", "Again.")]


async def test_each_turn_begins_with_the_first_model_again(lab: Lab, names: tuple[str, str]) -> None:
    """An endpoint that was down in the turn before may be up again."""
    first, second = names
    lab.model.script(first, lambda body, nth: DONE if nth else REFUSES)
    lab.model.script(second, [Turn(text="from the second")])
    queue = f"fallback-{uuid.uuid4().hex[:6]}"
    loaded = replace(
        load_agents([agent(first, second)], []), workflows=(TwoTurns,), modules=("tests.live.test_fallback",)
    )
    async with running_worker(lab.client, loaded, lab.telemetry, queue):
        answers = await lab.client.execute_workflow("TwoTurns", id=queue, task_queue=queue)
    assert answers == ["from the second", "done"]
    assert request_counts(lab, first, second) == [2, 1]


async def test_cancelling_a_model_call_does_not_fall_back_to_the_next_model(lab: Lab, names: tuple[str, str]) -> None:
    """The run is cancelled while its first model is being asked."""
    first, second = names
    lab.model.script(first, [Turn(text="late", wait=asyncio.Event())])
    lab.model.script(second, [DONE])
    queue = f"fallback-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([agent(first, second)], []), lab.telemetry, queue):
        given = RunInput(agent="weigher", prompt="Weigh it.")
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        await lab.model.wait_for_requests(1, first)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    assert request_counts(lab, first, second) == [1, 0]


def answers_at(number: int, turn: Turn, last: Turn) -> Callable[[dict[str, Any], int], Turn]:
    """A script: `turn` for the model's turn of that number, else `last`."""
    return lambda body, nth: turn if nth == number else last


async def test_a_run_goes_on_with_four_providers_and_its_keys_are_nowhere(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answers one step with reasoning and a call that fails or is repaired, and refuses the next one."""
    keys = {f"{name}_API_KEY": f"canary-of-{name.lower()}" for name in ("ANTHROPIC", "GEMINI")}
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    mark = uuid.uuid4().hex[:6]
    apis = ["anthropic", "google", "openai", "openai-chat"]
    provider_names = ["anthropic", "gcp.gemini", "openai", "openai"]
    for number, api in enumerate(apis):
        reasoning = [] if api == "openai-chat" else [Reasoning(["I think."])]
        calls = [("weigh", '{"thing": "ham"}', f"{number}a"), ("wiegh", "{}", f"{number}b")]
        turn = Turn("Let me see.", calls=calls, reasoning=reasoning)
        last = DONE if number == len(apis) - 1 else REFUSES
        lab.model.script(f"{api}-{mark}", answers_at(number, turn, last))
    thinking = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1_024}}}
    one = Agent(
        name="weigher",
        model=[f"{api}:{api}-{mark}" for api in apis],
        tools=[weigh],
        max_steps=8,
        model_settings=thinking,
    )
    ran = await run(lab, one)
    assert (ran.result["status"], ran.result["output"], ran.result["recovered_failures"]) == ("completed", "done", 4)
    assert [step["model"] for step in ran.steps] == [f"{api}:{api}-{mark}" for api in (*apis, apis[-1])]
    request_counts(lab, *(f"{api}-{mark}" for api in apis))
    chats = [span for span in ran.spans if span.name.startswith("chat ") and span.status == "UNSET"]
    seen = {span.name: span.attributes["gen_ai.provider.name"] for span in chats}
    assert seen == {f"chat {api}-{mark}": name for api, name in zip(apis, provider_names, strict=True)}
    history = str([event async for event in ran.handle.fetch_history_events()])
    for key in keys.values():
        assert key not in history
        assert key not in str(ran.spans)
    for api, header in (("anthropic", "authorization"), ("google", "x-goog-api-key")):
        assert "canary-of" in lab.model.requests_of(f"{api}-{mark}")[0].headers[header]
