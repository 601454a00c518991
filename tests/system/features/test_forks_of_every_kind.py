"""Runs of every kind, each forked at each of its steps: the request is byte for byte that of the run, and nothing happens.

Each kind is tried with one provider, all of them in turns; with `FORKS=all` each is tried with each: 200 runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Skills, connect, fork_run
from mulligan.devserver import DevServer
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.promise.recovery_matrix import Row, observe
from tests.promise.test_people import REFUND, pending
from tests.promise.test_recovery import ROWS
from tests.support.compaction_agents import PROMPT, READ, finding, is_summing_up, reading
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_server import Failure, Recorded, Turn
from tests.support.people_agents import desk
from tests.support.shop_agents import RAN
from tests.system.features.test_recovery_providers import NOT_POSSIBLE
from tests.unit.test_paused_answers import CITED, FOUND, USE, message, text

APIS = ("openai-chat", "openai", "anthropic", "google")
SCRIPTED = APIS[:3]
"""The scripts that read requests do not know Google's."""
PARALLEL = 6
HAS_ALL = os.environ.get("FORKS") == "all"


def turns(kinds: Sequence[Any], apis: Sequence[str] = APIS) -> list[tuple[Any, str]]:
    """Each kind with a provider, or with all of them."""
    if HAS_ALL:
        return [(kind, api) for kind in kinds for api in apis]
    return [(kind, apis[number % len(apis)]) for number, kind in enumerate(kinds)]


def is_possible(row: Row, api: str) -> bool:
    return (api, row.name) not in NOT_POSSIBLE


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
    return [
        each for each in requests if each.status == 200 and not is_summing_up(each.json) and not is_paused(each.json)
    ]


def is_paused(body: dict[str, Any]) -> bool:
    """Whether a request continues an answer that Anthropic has paused."""
    return bool(body.get("messages")) and body["messages"][-1]["role"] == "assistant"


async def test_forks_at_each_step_send_its_request_and_have_no_effect(lab: Lab, chain_server: DevServer) -> None:
    """Every mistake of the matrix, people, sub-agents, compactions and continued runs."""
    counted, places = Counted(), asyncio.Semaphore(PARALLEL)

    async def one_kind(run: Callable[[], Awaitable[tuple[Lab, Ran, str]]]) -> None:
        async with places:
            at, ran, name = await run()
            await counted.fork(at, ran, name)

    def mistake(row: Row, api: str) -> Callable[[], Awaitable[tuple[Lab, Ran, str]]]:
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

    edited = {"order": 7, "amount": {"euros": 5}}
    decisions: list[dict[str, Any]] = [
        {"decision": "deny"},
        {"decision": "approve"},
        {"decision": "approve", "arguments": edited},
    ]
    cases = [
        *(mistake(row, api if is_possible(row, api) else APIS[0]) for row, api in turns(ROWS)),
        *(with_people(api, decision) for decision, api in turns(decisions)),
    ]
    await asyncio.gather(*map(one_kind, cases))
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"forks-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        for (agent, pages), api in turns([("page_reader", 11), ("page_reader_with_room", 9)], SCRIPTED):
            ran = await at.run(reading(pages), agent=agent, prompt=PROMPT, api=api)
            await counted.fork(at, ran, f"{agent} {api}")
    await _sub_agents(lab, counted)
    print(
        f"{counted.runs} runs, {counted.forks} forks; other requests: {len(counted.different)}, effects: {len(counted.effects)}"
    )
    assert counted.runs >= (200 if HAS_ALL else len(ROWS))
    assert (counted.different, counted.effects, counted.ends) == ([], [], [])


async def _sub_agents(lab: Lab, counted: Counted) -> None:
    """The run of an agent that calls another, and the run of that one."""
    for _, api in turns(["a sub-agent"]):
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


async def test_forks_with_features_that_change_what_is_sent(lab: Lab, chain_server: DevServer, tmp_path: Path) -> None:
    """Cleared results and found tools of continued runs, hosted tools, paused answers, and skills."""
    counted = Counted()
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"forks-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        for (agent, script), api in turns([("forgetful_page_reader", reading), ("page_finder", finding)], SCRIPTED):
            ran = await at.run(script(11), agent=agent, prompt=PROMPT, api=api)
            await counted.fork(at, ran, f"{agent} {api}")
    await _hosted_work(lab, counted)
    await _skills(lab, counted, tmp_path)
    print(f"{counted.runs} runs, {counted.forks} forks")
    assert (counted.different, counted.effects, counted.ends) == ([], [], [])


async def _hosted_work(lab: Lab, counted: Counted) -> None:
    """Answers with the searches of a provider: whole ones with a call, and paused ones."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
    searched = message(USE, FOUND, text("Otters swim.", citations=[CITED]), use, stop="tool_use")
    ends = message(text("Done."))

    def whole(request: dict[str, Any], nth: int) -> Turn:
        return answer_of(searched if len(request["messages"]) == 1 else ends)

    def paused(request: dict[str, Any], nth: int) -> Turn:
        if is_paused(request):
            return answer_of(searched)
        return answer_of(message(text("I look."), USE, stop="pause_turn") if len(request["messages"]) == 1 else ends)

    for script in (whole, paused):
        ran = await lab.run(script, api="anthropic")
        assert ran.steps[0]["hosted_calls"]
        await counted.fork(lab, ran, f"hosted {script.__name__}")


def answer_of(body: dict[str, Any]) -> Turn:
    return Turn(failure=Failure(status=200, body=body))


async def _skills(lab: Lab, counted: Counted, folder: Path) -> None:
    """A skill is read, and then changed: the fork has what the run was told."""
    (folder / "knots").mkdir()
    skill = folder / "knots/SKILL.md"
    skill.write_text("---\nname: knots\ndescription: Tie knots.\n---\nTie it.")
    agent = Agent(name=f"sailor-{uuid.uuid4().hex[:6]}", model="openai:m", features=[Skills(folder)])
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"queue-{agent.name}")
    async with running_worker(at.client, load_agents([agent], []), lab.telemetry, at.task_queue):
        for _, api in turns(["a skill"]):
            ran = await at.run([call("read_skill", '{"name": "knots"}'), DONE], agent=agent.name, api=api)
            skill.write_text(skill.read_text() + "!")
            await counted.fork(at, ran, f"skills {api}")


pytestmark = pytest.mark.timeout(900)
