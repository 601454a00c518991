"""200 runs of every kind, each forked at each of its steps: the request is byte for byte that of the run, and nothing happens."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mulligan import Agent, connect, fork_run
from mulligan.devserver import DevServer
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, Ran, call
from tests.live.recovery_matrix import observe
from tests.live.test_people import REFUND, pending
from tests.live.test_recovery import ROWS
from tests.support.compaction_agents import PROMPT, READ, is_summing_up, reading
from tests.support.openai_server import Recorded
from tests.support.people_agents import desk
from tests.support.shop_agents import RAN
from tests.system.features.test_recovery_providers import NOT_POSSIBLE

APIS = ("openai-chat", "openai", "anthropic", "google")
PARALLEL = 6


@dataclass
class Counted:
    """What the forks of all runs were like."""

    runs: int = 0
    forks: int = 0
    different: list[tuple[str, int]] = field(default_factory=list)
    effects: list[tuple[str, Any]] = field(default_factory=list)
    ends: list[tuple[str, int, str]] = field(default_factory=list)

    async def fork(self, lab: Lab, ran: Ran, name: str, model: str = "") -> None:
        """Fork a run at each of its steps, one after another: all of them call the model of the run."""
        self.runs += 1
        sent = answered(lab, model or ran.id)
        assert len(sent) == ran.result["steps"], name
        for step in range(1, len(sent) + 1):
            before = len(lab.model.requests_of(model or ran.id))
            forked = await fork_run(lab.client, ran.id, at=step)
            result = await forked.result()
            self.forks += 1
            if answered(lab, model or ran.id, before)[0].body != sent[step - 1].body:
                self.different.append((name, step))
            self.effects += [(name, each) for each in [*RAN[forked.id], *READ[forked.id]]]
            if result["status"] != ran.result["status"]:
                self.ends.append((name, step, result["status"]))


def answered(lab: Lab, model: str, since: int = 0) -> list[Recorded]:
    """The requests of steps that were answered: not those that were tried again, nor those for summaries."""
    requests = lab.model.requests_of(model)[since:]
    return [each for each in requests if each.status == 200 and not is_summing_up(each.json)]


async def test_forks_at_each_step_send_its_request_and_have_no_effect(lab: Lab, chain_server: DevServer) -> None:
    """Every mistake of the matrix with four providers, people, sub-agents, compactions and continued runs."""
    counted, places = Counted(), asyncio.Semaphore(PARALLEL)

    async def one_kind(run: Callable[[], Awaitable[tuple[Lab, Ran, str]]]) -> None:
        async with places:
            at, ran, name = await run()
            await counted.fork(at, ran, name)

    def mistake(row: Any, api: str) -> Callable[[], Awaitable[tuple[Lab, Ran, str]]]:
        async def run() -> tuple[Lab, Ran, str]:
            return lab, await observe(lab, row, api), f"{row.name} {api}"

        return run

    def with_people(api: str, decision: dict[str, Any]) -> Callable[[], Awaitable[tuple[Lab, Ran, str]]]:
        async def run() -> tuple[Lab, Ran, str]:
            turns = [call("refund", REFUND), call("ask_person", '{"question": "Red?"}'), DONE]
            handle = await lab.start(turns, agent=desk.name, api=api)
            [waiting] = await pending(handle)
            await handle.execute_update("decide", {"call_id": waiting["call_id"], **decision})
            [waiting] = await pending(handle)
            await handle.execute_update("answer", {"call_id": waiting["call_id"], "text": "Blue."})
            return lab, await lab.look(handle), f"people {decision['decision']} {api}"

        return run

    cases = [mistake(row, api) for api in APIS for row in ROWS if (api, row.name) not in NOT_POSSIBLE]
    edited = {"order": 7, "amount": {"euros": 5}}
    for api in APIS:
        for decision in ({"decision": "deny"}, {"decision": "approve"}, {"decision": "approve", "arguments": edited}):
            cases.append(with_people(api, decision))
    await asyncio.gather(*map(one_kind, cases))
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"forks-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        for api in APIS[:3]:  # the script does not read Google's requests
            ran = await at.run(reading(11), agent="page_reader", prompt=PROMPT, api=api)
            await counted.fork(at, ran, f"compacted and continued {api}")
            ran = await at.run(reading(9), agent="page_reader_with_room", prompt=PROMPT, api=api)
            await counted.fork(at, ran, f"continued {api}")
    await _sub_agents(lab, counted)
    print(
        f"{counted.runs} runs, {counted.forks} forks; other requests: {len(counted.different)}, effects: {len(counted.effects)}"
    )
    assert counted.runs >= 200
    assert (counted.different, counted.effects, counted.ends) == ([], [], [])


async def _sub_agents(lab: Lab, counted: Counted) -> None:
    """The run of an agent that calls another, and the run of that one."""
    for api in APIS:
        inner = f"inner-{uuid.uuid4().hex[:6]}"
        below = Agent(name=inner, model=f"{api}:{inner}", tools=desk.tools)
        above = Agent(
            name=f"above-{inner}", model=f"{api}:x", tools=[below.as_tool(name="below", description="Works.")]
        )
        lab.model.script(inner, [call("discount", '{"percent": 5}'), DONE])
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"queue-{inner}")
        async with running_worker(at.client, load_agents([above], []), lab.telemetry, at.task_queue):
            ran = await at.run([call("below", json.dumps({"prompt": "Go."})), DONE], agent=above.name, api=api)
            await counted.fork(at, ran, f"above {api}")
            child = at.client.get_workflow_handle(ran.calls[0]["run"]["id"])
            run_of_child = Ran(child.id, child, await child.result(), None, [])
            await counted.fork(at, run_of_child, f"below {api}", inner)


pytestmark = pytest.mark.timeout(900)
