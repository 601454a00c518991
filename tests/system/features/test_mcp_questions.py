"""Questions of MCP servers in the middle of a call: a person answers them as any other question of a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.worker import Replayer

from mulligan import Agent, Call, McpServer, Say, data_converter
from mulligan.client.read_run import size_of_chain
from mulligan.observe.semconv import DECISION
from mulligan.testing import ScriptedModel, run_agent
from mulligan.wire.updates import Answer, Pending
from mulligan.worker.loading import load_agents
from mulligan.workflows import limits
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.support.lab import DONE, Lab, call
from tests.support.mcp_agents import SERVER
from tests.support.mcp_fixtures import calls, http_server, mcp_worker

ASKS = {"ASKS": "1", "BOOKINGS": "${BOOKINGS}"}
BOOK = ("web__book", {"city": "Rome"})


@pytest.fixture
def bookings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the server notes each start of a booking."""
    file = tmp_path / "bookings"
    monkeypatch.setenv("BOOKINGS", str(file))
    monkeypatch.setenv("ASKS", "1")
    return file


@pytest.fixture
def older_server(bookings: Path) -> Iterator[int]:
    """A server of the protocol before 2026, at a port."""
    with http_server("--sessions") as port:
        yield port


@pytest.fixture
async def at(lab: Lab, bookings: Path) -> AsyncIterator[Lab]:
    """A worker with a server of the protocol's newest version."""
    web = McpServer("web", command=SERVER, env=ASKS, include=["book", "open_page", "endless"], timeout=5)
    patient = McpServer("web", command=SERVER, env=ASKS, include=["book"], approval_timeout=0.2)
    quiet = McpServer("web", command=SERVER, env=ASKS, include=["book"], questions=False)
    agents = [
        Agent(name=name, model="openai-chat:nobody", mcp=[server], max_steps=5)
        for name, server in (("booker", web), ("hasty", patient), ("quiet", quiet))
    ]
    async with mcp_worker(lab, load_agents(agents, [])) as worker:
        yield worker


async def asked(handle: Any, count: int = 1) -> list[dict[str, Any]]:
    """The questions that wait, when there are so many."""
    async with asyncio.timeout(60):
        while len(waits := await handle.query("pending")) < count:
            await asyncio.sleep(0.05)
    return [dict(wait) for wait in waits]


async def refused(handle: Any, call_id: str, text: str) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await handle.execute_update("answer", {"call_id": call_id, "text": text})
    return str(error.value.__cause__)


async def test_a_question_of_an_mcp_server_waits_for_a_valid_answer_that_continues_the_call(
    at: Lab, bookings: Path
) -> None:
    """The question has the server's schema; what does not match is refused; defaults are added; nothing runs meanwhile."""
    handle = await at.start([calls(BOOK), DONE], agent="booker")
    [wait] = await asked(handle)
    assert (wait["kind"], wait["tool"], wait["text"]) == ("question", "web__book", "Book a room in Rome?")
    assert wait["answer_schema"]["required"] == ["nights"]
    progress = await handle.query("progress")
    assert (progress["status"], progress["waiting_for"]["kind"], progress["running"]) == ("waiting", "person", [])
    call_id = wait["call_id"]
    assert 'has no field "night"; it has: "nights", "breakfast"' in await refused(handle, call_id, '{"night": 2}')
    assert "nights: is required" in await refused(handle, call_id, "{}")
    assert 'a JSON object with the fields "nights", "breakfast"' in await refused(handle, call_id, "two")
    assert "nights: should be of type integer" in await refused(handle, call_id, '{"nights": "two"}')
    await handle.execute_update("answer", {"call_id": call_id, "text": '{"nights": 2}', "by": "ada"})
    ran = await at.look(handle)
    assert ran.calls[0]["result"]["text"] == 'Rome: accept {"nights": 2, "breakfast": true}'
    assert (ran.calls[0]["attempts"], ran.calls[0].get("decision")) == (1, None)
    [question] = ran.calls[0]["questions"]
    assert (question["text"], question["content"]) == ("Book a room in Rome?", {"nights": 2, "breakfast": True})
    assert (question["decision"]["decision"], question["decision"]["by"]) == ("answer", "ada")
    assert bookings.read_text() == "asked\ncontinued with state-1\n"
    events = (await handle.query("events", args=[0, 100]))["events"]
    [waiting], [decided] = ([e for e in events if e["type"] == kind] for kind in ("waiting", "decided"))
    assert (waiting["kind"], waiting["text"]) == ("question", "Book a room in Rome?")
    assert (decided["decision"], decided["by"]) == ("answer", "ada")
    names = sorted(span.name for span in ran.spans if span.attributes.get("gen_ai.tool.name") == "web__book")
    assert names == ["agent.decision", "agent.request", "ai.toolCall"]
    assert [span.attributes[DECISION] for span in ran.spans_of("agent.decision")] == ["answer"]
    replayer = Replayer(workflows=[AgentWorkflow], data_converter=data_converter)
    await replayer.replay_workflow(await handle.fetch_history())


async def test_a_question_of_an_mcp_server_may_be_denied_or_time_out_and_the_server_is_told_which(at: Lab) -> None:
    """The protocol's `decline` and `cancel`; a page that a person shall open is answered by any text."""
    handle = await at.start([calls(BOOK, ("web__open_page", {})), DONE], agent="booker")
    waits = {wait["tool"]: wait for wait in await asked(handle, 2)}
    page = waits["web__open_page"]
    assert (page["text"], page["url"]) == ("Sign in.\nhttps://example.com/in", "https://example.com/in")
    denial = {"call_id": waits["web__book"]["call_id"], "decision": "deny", "reason": "no money"}
    await handle.execute_update("decide", denial)
    await handle.execute_update("answer", {"call_id": page["call_id"], "text": "Done."})
    ran = await at.look(handle)
    assert [each["result"]["text"] for each in ran.calls] == ["Rome: decline null", "page: accept"]
    late = await at.run([calls(BOOK), DONE], agent="hasty")
    assert late.calls[0]["result"]["text"] == "Rome: cancel null"
    assert late.calls[0]["questions"][0]["decision"]["decision"] == "timeout"


async def test_a_question_of_an_mcp_server_is_carried_when_the_run_continues_as_new(
    at: Lab, bookings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has begun already: the server is asked once, and is told the reply in a later run of the chain."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    handle = await at.start([calls(BOOK), DONE], agent="booker")
    before = await asked(handle)
    for number in range(30):
        await handle.execute_update("send_message", {"text": f"message {number}"})
    assert (await size_of_chain(at.client, handle.id)).runs > 1
    assert await handle.query("pending") == before
    call_id = before[0]["call_id"]
    assert "nights: is required" in await refused(handle, call_id, "{}")
    await handle.execute_update("answer", {"call_id": call_id, "text": '{"nights": 2}', "by": "ada"})
    ran = await at.look(handle)
    assert ran.calls[0]["result"]["text"] == 'Rome: accept {"nights": 2, "breakfast": true}'
    assert bookings.read_text() == "asked\ncontinued with state-1\n"
    [question] = ran.calls[0]["questions"]
    assert (question["decision"]["by"], question["decision"]["since"]) == ("ada", before[0]["since"])
    names = sorted(span.name for span in ran.spans if span.attributes.get("gen_ai.tool.name") == "web__book")
    assert names == ["agent.decision", "agent.request", "ai.toolCall"]


async def test_stopping_a_run_ends_its_calls_that_wait_for_an_answer(at: Lab, bookings: Path) -> None:
    handle = await at.start([calls(BOOK), DONE], agent="booker")
    await asked(handle)
    await handle.execute_update("stop", {"reason": "enough"})
    ran = await at.look(handle)
    assert ran.result["status"] == "stopped"
    assert "was not finished: the run was stopped before its question was answered" in ran.calls[0]["result"]["text"]
    assert bookings.read_text() == "asked\n"


async def test_a_server_that_never_stops_asking_or_may_not_ask_is_an_error_of_its_call(at: Lab) -> None:
    handle = await at.start([calls(("web__endless", {})), DONE], agent="booker")
    for number in range(1, 11):
        async with asyncio.timeout(60):
            while not (waits := await handle.query("pending")) or waits[0]["text"] != f"More ({number})?":
                await asyncio.sleep(0.02)
        # Where the schema has one field, its value is an answer.
        await handle.execute_update("answer", {"call_id": waits[0]["call_id"], "text": "true"})
    ran = await at.look(handle)
    assert ran.calls[0]["result"]["error"]["kind"] == "tool_exception"
    assert "it asked people 10 times in one call, and asks again" in ran.calls[0]["result"]["text"]
    quiet = await at.run([calls(BOOK), DONE], agent="quiet")
    assert quiet.calls[0]["result"]["error"]["kind"] == "tool_exception"


async def test_an_older_server_waits_within_its_call_and_its_timeout_does_not_count_the_person(
    lab: Lab, older_server: int, bookings: Path
) -> None:
    """The call runs once. Its server may take 2 s, the person takes longer."""
    web = McpServer("web", url=f"http://127.0.0.1:{older_server}/mcp", timeout=2, include=["book", "echo"])
    agent = Agent(name="booker", model="openai-chat:nobody", mcp=[web])
    async with mcp_worker(lab, load_agents([agent], [])) as at:
        handle = await at.start([calls(BOOK, ("web__book", {"city": "Oslo"})), DONE], agent="booker")
        waits = {wait["text"]: wait for wait in await asked(handle, 2)}
        since = time.monotonic()
        assert (await handle.query("progress"))["status"] == "waiting"
        other = await at.run([call("web__echo", '{"text": "a"}'), DONE], agent="booker")
        assert other.calls[0]["result"]["text"] == "a"
        await asyncio.sleep(max(0.0, 2.5 - (time.monotonic() - since)))
        for city, nights in (("Oslo", 3), ("Rome", 2)):
            call_id = waits[f"Book a room in {city}?"]["call_id"]
            await handle.execute_update("answer", {"call_id": call_id, "text": f'{{"nights": {nights}}}'})
        ran = await at.look(handle)
        assert [each["result"]["text"] for each in ran.calls] == [
            'Rome: accept {"nights": 2, "breakfast": true}',
            'Oslo: accept {"nights": 3, "breakfast": true}',
        ]
        assert [len(each["questions"]) for each in ran.calls] == [1, 1]
        assert bookings.read_text() == "started\nstarted\n"
        await Replayer(workflows=[AgentWorkflow], data_converter=data_converter).replay_workflow(
            await handle.fetch_history()
        )


async def test_a_call_that_ends_takes_its_open_question_with_it(lab: Lab, older_server: int) -> None:
    """The run is cancelled while an older server waits: nothing hangs, and the call is cancelled."""
    web = McpServer("web", url=f"http://127.0.0.1:{older_server}/mcp", include=["book"])
    async with mcp_worker(lab, load_agents([Agent(name="booker", model="openai-chat:nobody", mcp=[web])], [])) as at:
        handle = await at.start([calls(BOOK), DONE], agent="booker")
        await asked(handle)
        await handle.execute_update("stop", {})
        stopped = await at.look(handle)
        assert stopped.result["status"] == "stopped"
        assert stopped.calls[0]["result"]["text"] == "Rome: cancel null"


async def test_run_agent_puts_the_questions_of_mcp_servers_to_its_person(bookings: Path) -> None:
    """Without a Temporal server, several times in one call."""
    web = McpServer("web", command=SERVER, env=ASKS, include=["book"])
    seen: list[Pending] = []

    def person(pending: Pending) -> Answer:
        seen.append(pending)
        return Answer(call_id=pending.call_id, text='{"nights": 1, "breakfast": false}')

    agent = Agent(name="a", model="openai:x", mcp=[web])
    model = ScriptedModel(Say(calls=[Call("web__book", {"city": "Bern"})]), "done")
    run = await run_agent(agent, "Go.", model=model, person=person)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == 'Bern: accept {"nights": 1, "breakfast": false}'
    assert [each.text for each in seen] == ["Book a room in Bern?"]
