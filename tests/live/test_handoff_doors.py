"""A conversation that is handed over, through each door: steps, events, protocols, pages and commands."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from mulligan import Agent
from mulligan.cli.app import app
from mulligan.devserver import DevServer
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.handoff_agents import look_up
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
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
