"""A list of models: if one refuses or is unavailable, the next one is asked, without data private to another provider."""

from __future__ import annotations

import asyncio
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
    RunInput,
    tool,
)
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, Ran, call
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


@pytest.mark.parametrize(("first_says", "times", "requests"), [(DOWN, 2, 3), (REFUSES, 1, 1)], ids=["down", "refuses"])
async def test_when_the_first_model_fails_the_next_one_answers_and_keeps_the_turn(
    lab: Lab, names: tuple[str, str], first_says: Turn, times: int, requests: int
) -> None:
    """Each attempt has its own span, which names the model. In the second one, the endpoint is asked once without streaming."""
    first, second = names
    lab.model.script(first, [first_says] * 3)
    lab.model.script(second, [call("weigh", '{"thing": "ham"}'), DONE])
    ran = await run(lab, agent(first, second))
    assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("completed", "done", 2)
    assert request_counts(lab, first, second) == [requests, 2]
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
