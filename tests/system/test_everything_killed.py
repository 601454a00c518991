"""kill -9 of every process, including the server, while a run waits: the run loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mulligan.devserver import DevServer, temporal_server
from tests.support.http_server import http_server
from tests.support.ports import free_ports
from tests.support.processes import descendants_with
from tests.support.temporal import connect_to
from tests.support.worker_process import Process, worker_process

AGENT = '''
from mulligan import Agent, Call, Say, Script, tool

@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    with open("{paid}", "a") as file:
        file.write(f"{{amount}}\\n")
    return "paid"

script = Script("clerk", [Say(calls=[Call("pay", {{"amount": 7}}, id="p")]), Say("done")])
clerk = Agent(name="clerk", model="scripted:clerk", tools=[pay])
'''
JOB_AGENT = '''
from mulligan import Agent, Call, Say, Script, ToolContext, tool
from mulligan.tools import wait_until

@tool(deferred=True)
def begin(ctx: ToolContext) -> str:
    """Begin."""
    with open("{tokens}", "a") as file:
        file.write(ctx.callback_token + "\\n")
    return "begun"

calls = [Call("begin", {{}}, id="b"), Call("wait_until", {{"seconds": 4}}, id="w")]
script = Script("clerk", [Say(calls=calls), Say("done")])
clerk = Agent(name="clerk", model="scripted:clerk", tools=[begin, wait_until])
'''


@asynccontextmanager
async def worker(server: DevServer, folder: Path) -> AsyncIterator[Process]:
    """A worker, killed at the end of the block."""
    async with worker_process("clerk", "agents", server, PYTHONPATH=str(folder)) as process:
        try:
            yield process
        finally:
            process.kill()
            await process.wait()


async def test_a_waiting_run_survives_the_kill_of_its_server_and_worker(tmp_path: Path) -> None:
    """The decision is sent to another server process: the call runs once on another worker; the message is in the conversation."""
    paid, database = tmp_path / "paid", tmp_path / "temporal.db"
    (tmp_path / "clerk.py").write_text(AGENT.format(paid=paid))
    [port] = free_ports(1)
    async with temporal_server(port=port, db=database) as server, worker(server, tmp_path):
        client = await connect_to(server)
        handle = await client.start_workflow(
            "AgentWorkflow", {"agent": "clerk", "prompt": "Pay."}, id="r", task_queue="agents"
        )
        while not await handle.query("pending"):
            await asyncio.sleep(0.1)
        await handle.execute_update("send_message", {"text": "and then?", "id": "m"})
        servers = descendants_with(str(port))
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
    async with temporal_server(port=port, db=database) as server, worker(server, tmp_path):
        handle = (await connect_to(server)).get_workflow_handle("r")
        assert [wait["call_id"] for wait in await handle.query("pending")] == ["p"]
        await handle.execute_update("send_message", {"text": "and then?", "id": "m"})
        await handle.execute_update("decide", {"call_id": "p", "decision": "approve", "by": "Ada"})
        assert (await handle.result())["status"] == "completed"
        messages = (await handle.query("messages"))["messages"]
    assert [message["text"] for message in messages] == ["Pay.", "", "paid", "and then?", "done"]
    assert paid.read_text() == "7\n"


async def test_a_deferred_call_survives_the_kill_of_its_server_and_worker(tmp_path: Path) -> None:
    """The token from before is good at a new `serve`: the key is in the namespace. The timer ends, though it was due meanwhile."""
    tokens, database = tmp_path / "tokens", tmp_path / "temporal.db"
    (tmp_path / "clerk.py").write_text(JOB_AGENT.format(tokens=tokens))
    [port] = free_ports(1)
    async with temporal_server(port=port, db=database) as server, worker(server, tmp_path):
        client = await connect_to(server)
        handle = await client.start_workflow(
            "AgentWorkflow", {"agent": "clerk", "prompt": "Go."}, id="d", task_queue="agents"
        )
        while (await handle.query("progress")).get("waiting_for", {}).get("kind") != "callback":
            await asyncio.sleep(0.1)
        for pid in descendants_with(str(port)):
            os.kill(pid, signal.SIGKILL)
    async with temporal_server(port=port, db=database) as server, worker(server, tmp_path):
        client = await connect_to(server)
        [token] = tokens.read_text().split()
        async with http_server(client) as door:
            answer = await door.http.post(f"/api/callbacks/{token}", json={"result": [1, 2]})
            assert (answer.status_code, answer.json()) == (200, {"accepted": True})
            handle = client.get_workflow_handle("d")
            assert (await handle.result())["status"] == "completed"
            again = await door.http.post(f"/api/callbacks/{token}", json={"result": [1, 2]})
            assert (again.status_code, again.json()["code"]) == (409, "run_ended")
        messages = (await handle.query("messages"))["messages"]
    assert messages[2]["text"] == "[1, 2]"
    assert messages[3]["text"].startswith("The time has come")
    assert len(tokens.read_text().split()) == 1
