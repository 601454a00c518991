"""A conversation that is handed over, through each door: steps, events, protocols, pages and commands."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI
from typer.testing import CliRunner

from mulligan import Agent
from mulligan.cli.app import app
from mulligan.devserver import DevServer
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.live.conftest import Lab
from tests.support.ag_ui_client import AgUiThread, types, user
from tests.support.ai_sdk_client import Chat
from tests.support.handoff_agents import look_up
from tests.support.http_server import Door, http_server
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of

TURNS = [
    Turn("I find somebody.", calls=[("transfer_to_teller", "{}", "t1")]),
    Turn(calls=[("look_up", '{"order": 7}', "l1")]),
    Turn("It is 9 EUR."),
]


@dataclass
class Bank:
    """Two agents of one scripted model, and the server of `mulligan serve`."""

    lab: Lab
    door: Door
    queue: str

    async def run(self) -> str:
        """The id of a run that has ended."""
        given = {"agent": "greeter", "prompt": "What does order 7 cost?"}
        run_id = f"handed-{uuid.uuid4().hex[:6]}"
        handle = await self.lab.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=self.queue)
        assert (await handle.result())["output"] == "It is 9 EUR."
        return run_id


@pytest.fixture(scope="module")
async def bank(lab: Lab) -> AsyncIterator[Bank]:
    model = queue = f"bank-{uuid.uuid4().hex[:6]}"
    lab.model.script(model, TURNS)
    teller = Agent(name="teller", model=f"openai-chat:{model}", instructions="You look up.", tools=[look_up])
    greeter = Agent(name="greeter", model=f"openai-chat:{model}", instructions="You greet.", handoffs=[teller])
    async with (
        running_worker(lab.client, load_agents([greeter], []), lab.telemetry, queue),
        http_server(lab.client, task_queue=queue) as door,
    ):
        yield Bank(lab, door, queue)


async def test_the_api_has_the_agent_of_each_step_and_the_event(bank: Bank) -> None:
    run_id = await bank.run()
    steps = (await bank.door.http.get(f"/api/runs/{run_id}/steps")).json()["steps"]
    assert [each["agent"] for each in steps] == ["greeter", "teller", "teller"]
    frames = [frame async for frame in bank.door.frames(run_id)]
    [handed] = [frame.data for frame in frames if frame.event == "handed_over"]
    assert (handed["from_agent"], handed["agent"], handed["step"], handed["call_id"]) == ("greeter", "teller", 1, "t1")
    kinds = [frame.event for frame in frames]
    assert kinds.index("handed_over") > kinds.index("tool_call_settled")
    assert kinds[-1] == "run_ended"


async def test_commands_and_the_page_say_who_has_the_conversation(
    bank: Bank, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await bank.run()
    for name, value in environment_of(temporal).items():
        monkeypatch.setenv(name, value)
    tail = await asyncio.to_thread(CliRunner().invoke, app, ("tail", run_id), catch_exceptions=False)
    assert "teller has the conversation now" in tail.stdout
    page = (await bank.door.http.get(f"/console/runs/{run_id}")).text
    assert "From the next step on, <strong>teller</strong> has the conversation" in page


async def test_ag_ui_streams_the_steps_of_both_agents(bank: Bank) -> None:
    events = await AgUiThread(bank.door, "greeter").post(user("What does order 7 cost?"))
    assert types(events)[-1] == "RUN_FINISHED"
    assert types(events).count("STEP_STARTED") == types(events).count("STEP_FINISHED") == 3
    results = [each.tool_call_id for each in events if each.type.value == "TOOL_CALL_RESULT"]
    assert results == ["t1", "l1"]
    assert events[-1].result["output"] == "It is 9 EUR."


async def test_the_ai_sdk_gets_one_message_of_both_agents(bank: Bank) -> None:
    chunks = await Chat(bank.door, "greeter").say("What does order 7 cost?")
    available = [each["toolCallId"] for each in chunks if each["type"] == "tool-output-available"]
    assert available == ["t1", "l1"]
    assert [each["delta"] for each in chunks if each["type"] == "text-delta"] == ["I find somebody.", "It is 9 EUR."]
    assert [each["type"] for each in chunks].count("start-step") == 3
    assert chunks[-1]["type"] == "finish"


async def test_openais_sdk_gets_the_answer_of_the_agent_that_took_over(bank: Bank) -> None:
    async with AsyncOpenAI(base_url=f"{bank.door.url}/v1", api_key="none", max_retries=0) as client:
        answer: Any = await client.responses.create(model="greeter", input="What does order 7 cost?")
        assert answer.status == "completed"
        assert answer.output_text.endswith("It is 9 EUR.")
        chat = await client.chat.completions.create(
            model="greeter", messages=[{"role": "user", "content": "What does order 7 cost now?"}]
        )
    assert (chat.choices[0].message.content or "").endswith("It is 9 EUR.")
