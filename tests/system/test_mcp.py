"""MCP servers from public registries, and server processes whose worker ends or is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from mulligan import Agent, Call, McpServer, Say, ToolContext
from mulligan.activities.mcp.servers import McpServers
from mulligan.devserver import DevServer
from mulligan.testing import ScriptedModel, run_agent
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.mcp_agents import SERVER, now
from tests.support.mcp_fixtures import at_port, calls, check_http, http_server, mcp_worker, wait_for_text
from tests.support.processes import is_running
from tests.support.worker_process import worker_process

FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
CLOCK = "mcp-server-time@2026.10.19"
TRUSTED = ["SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"]
"""Variables with certificates that programs need for their downloads, on machines that set them."""


def fetch(command: list[str]) -> None:
    """Download what a command needs into the cache of its runner, so that a failed download is reported as such."""
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=240)


async def test_an_mcp_server_from_npm_can_be_used(tmp_path: Path) -> None:
    """The filesystem server: a file is written and read, and the server refuses paths outside its folder."""
    runner = ["npx", "--yes", FILESYSTEM]
    fetch([*runner, str(tmp_path)])
    files = McpServer(
        "files", command=[*runner, str(tmp_path)], exclude=["move_file"], pass_env=TRUSTED, start_timeout=45
    )
    note = str(tmp_path / "note.txt")
    turns: list[Say | str] = [
        Say(calls=[Call("files__write_file", {"path": note, "content": "Grüße"})]),
        Say(calls=[Call("files__read_text_file", {"path": note}), Call("files__read_text_file", {"file": note})]),
        Say(calls=[Call("files__read_text_file", {"path": "/etc/passwd"}), Call("files__move_file")]),
        "done",
    ]
    run = await run_agent(Agent(name="a", model="openai:x", mcp=[files]), "Go.", model=ScriptedModel(*turns))
    results = [made.result for made in run.calls if made.result]
    assert (tmp_path / "note.txt").read_text() == "Grüße"
    assert results[1].text == "Grüße"
    kinds = [result.error.kind if result.error else None for result in results]
    assert kinds == [None, None, "invalid_arguments", "tool_error", "unknown_tool"]
    assert "Access denied" in results[3].text


async def test_an_mcp_server_from_pypi_can_be_used() -> None:
    """The time server, built with the same SDK in the version that it requires."""
    fetch(["uvx", CLOCK, "--help"])
    clock = McpServer("clock", command=["uvx", CLOCK, "--local-timezone", "UTC"], pass_env=TRUSTED, start_timeout=45)
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    turns: list[Say | str] = [
        Say(calls=[Call("clock__convert_time", noon), Call("clock__convert_time", {**noon, "time": "x"})]),
        "done",
    ]
    run = await run_agent(Agent(name="a", model="openai:x", mcp=[clock]), "Go.", model=ScriptedModel(*turns))
    right, wrong = (made.result for made in run.calls)
    assert right is not None
    assert wrong is not None
    assert "T21:00:00+09:00" in right.text
    assert wrong.error is not None
    assert wrong.error.kind == "tool_error"


async def test_no_mcp_server_outlives_a_killed_worker(lab: Lab, temporal: DevServer) -> None:
    """kill -9 of the worker: a server that does not respond ends with it, and the next worker starts its own."""
    queue = f"mcp-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    handle = await at.start(
        [call("lent__pid"), call("lent__sleep", '{"seconds": 600}'), call("lent__pid"), DONE], agent="borrower"
    )
    serving = partial(worker_process, "tests.support.mcp_agents", queue, temporal, MCP_TEST_SECRET="given")
    async with serving() as first:
        while True:
            steps = await steps_of(handle)
            if len(steps) == 2 and (await handle.query("progress"))["running"]:
                break
            await asyncio.sleep(0.1)
        pid = int(steps[0]["tool_calls"][0]["result"]["text"])
        os.kill(pid, 0)
        first.kill()
        await first.wait()
        while is_running(pid):
            await asyncio.sleep(0.1)
    async with serving():
        ran = await at.look(handle)
    assert ran.calls[1]["result"]["error"]["kind"] == "tool_lost"
    assert ran.calls[2]["result"]["text"] != str(pid)


async def test_mcp_calls_are_retried_as_declared_after_a_crash_or_a_timeout(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server gets a cancellation for the call that timed out."""
    once, hung = tmp_path / "once", tmp_path / "hung"
    turn = calls(("again__die_once", {"file": str(once)}))
    monkeypatch.setenv("MCP_TEST_SECRET", "given")
    async with mcp_worker(lab, load(["tests.support.mcp_agents"])) as at:
        ran = await at.run(
            [turn, calls(("again__hang", {"file": str(hung)}), ("again__fail", {})), DONE], agent="careful"
        )
    died, timed_out, failed = ran.calls
    assert (died["result"], died["attempts"]) == ({"text": "second life", "error": None, "trust": "untrusted"}, 2)
    assert (timed_out["result"]["error"]["kind"], timed_out["attempts"]) == ("tool_timeout", 2)
    await wait_for_text(hung, "cancelled")
    assert (failed["result"]["error"]["kind"], failed["attempts"]) == ("tool_error", 1)


async def test_a_run_keeps_the_mcp_tools_it_began_with(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's list changes, then the worker is replaced. A new run has the new tools."""
    monkeypatch.setenv("MCP_TEST_SECRET", "given")
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0")
    file = tmp_path / "hung"
    loaded = load(["tests.support.mcp_agents"])
    async with mcp_worker(lab, loaded) as at:
        grown = await at.run([call("lent__grow"), call("lent__grown"), DONE], agent="borrower")
        handle = await at.start(
            [calls(("lent__hang", {"file": str(file)})), calls(("lent__grown", {}), ("lent__structured", {})), DONE],
            agent="borrower",
        )
        await wait_for_text(file, "started")
    async with running_worker(lab.client, loaded, lab.telemetry, at.task_queue):
        ran = await at.look(handle)
    assert grown.calls[1]["result"]["error"]["kind"] == "unknown_tool"
    lost, new, gone = (each["result"] for each in ran.calls)
    assert lost["error"]["kind"] == "tool_lost"
    assert new["text"] == "grown done"
    assert gone["error"]["kind"] == "unknown_tool"


async def test_no_mcp_server_outlives_its_worker(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not respond is killed."""
    monkeypatch.setenv("MCP_TEST_SECRET", "given")
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0")
    async with mcp_worker(lab, load(["tests.support.mcp_agents"])) as at:
        ran = await at.run([call("lent__pid"), DONE], agent="borrower")
        pid = int(ran.calls[0]["result"]["text"])
        deaf = await at.start([call("lent__sleep", '{"seconds": 600}'), DONE], agent="borrower")
        while (await deaf.query("progress"))["running"] != ["lent__sleep"]:
            await asyncio.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await deaf.terminate()


@pytest.mark.parametrize(("long", "count"), [("0", 127), ("20000", 34)])
async def test_mcp_tools_beyond_what_a_model_accepts_are_left_out(long: str, count: int) -> None:
    """The last ones are left out: a provider would refuse every request, or a payload would be too large."""
    many = McpServer("many", command=SERVER, include=["many_*"], env={"MANY": "200", "LONG": long})
    agent = Agent(name="a", model="openai:x", tools=[now], mcp=[many])
    run = await run_agent(agent, "Go.", model=ScriptedModel("done"))
    assert run.output == "done"
    assert [tool.name for tool in run.tools] == ["now", *(f"many__many_{n}" for n in range(count))]


async def test_secrets_in_mcp_headers_are_in_no_history_span_or_text(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header comes from a variable or a function at each request. A wrong one is reported to the model."""
    monkeypatch.setenv("MCP_TEST_TOKEN", "sesame")
    asked: list[int] = []

    async def token() -> str:
        asked.append(1)
        return "Bearer sesame"

    with http_server("--token") as port:
        for header in ("Bearer ${MCP_TEST_TOKEN}", token):
            loaded = at_port(port, headers={"Authorization": header})
            assert "sesame" not in repr(loaded.registry.agents["surfer"])
            async with mcp_worker(lab, loaded) as at:
                ran = await at.run([call("web__echo", '{"text": "hi"}'), DONE], agent="surfer")
            assert ran.calls[0]["result"]["text"] == "hi"
            assert "sesame" not in str(await ran.handle.fetch_history())
            assert "sesame" not in str([span.attributes for span in ran.spans])
        assert len(asked) > 2
        async with mcp_worker(lab, at_port(port, headers={"Authorization": "Bearer \n"})) as at:
            ran = await at.run([DONE], agent="surfer")
        assert "The tools of the MCP server `web` are not there" in ran.requests[0].json["messages"][0]["content"]


async def test_an_mcp_server_that_hangs_is_replaced_for_the_next_run() -> None:
    """After SIGSTOP it lists no tools for a new run; the next run gets another process."""
    lent = McpServer("lent", command=SERVER, include=["pid"])
    agent = Agent(name="a", model="openai:x", mcp=[lent])
    servers = McpServers()

    async def pid() -> int:
        context = ToolContext(idempotency_key="", attempt=1, workflow_id="", agent="a", call_id="", step=1)
        return int(await servers.tool(lent, "lent__pid", "pid").function({}, context))

    async with servers.running():
        assert (await servers.offer_tools(agent)).notes == []
        first = await pid()
        os.kill(first, signal.SIGSTOP)
        # The limit is short only for the server that never responds. A start may take longer on a busy machine.
        object.__setattr__(lent, "start_timeout", 1)
        assert len((await servers.offer_tools(agent)).notes) == 1
        object.__setattr__(lent, "start_timeout", 30)
        assert (await servers.offer_tools(agent)).notes == []
        assert await pid() != first


async def test_mcp_over_http_without_sessions(lab: Lab, tmp_path: Path) -> None:
    """As since 2026."""
    await check_http(lab, (), tmp_path / "hung")


async def steps_of(handle: Any) -> list[dict[str, Any]]:
    try:
        return list((await handle.query("steps", args=[0, 10]))["steps"])
    except RPCError:  # no worker polls yet
        return []


async def pending(handle: Any) -> list[dict[str, Any]]:
    try:
        return list(await handle.query("pending"))
    except RPCError:  # no worker polls yet
        return []


async def test_a_question_of_an_mcp_server_survives_a_killed_worker(
    lab: Lab, temporal: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 while it waits: by the newest protocol another worker continues the call, which is not begun twice.

    An older server's call dies with its worker: it is lost, or begun again where it may be (`attempts`), and then the answer
    that was given meanwhile is used.
    """
    bookings = tmp_path / "bookings"
    monkeypatch.setenv("BOOKINGS", str(bookings))
    monkeypatch.setenv("ASKS", "1")
    with http_server("--sessions") as port:
        module = tmp_path / "booking_agents.py"
        module.write_text(
            "import os\nfrom mulligan import Agent, McpServer\nfrom mulligan.workflows import limits\n"
            "limits.HEARTBEAT_TIMEOUT *= int(os.environ.get('PATIENCE', '1'))\n"
            f"new = McpServer('new', command={SERVER!r}, env={{'ASKS': '1', 'BOOKINGS': '${{BOOKINGS}}'}})\n"
            f"old = McpServer('old', url='http://127.0.0.1:{port}/mcp', include=['book'])\n"
            f"again = McpServer('again', url='http://127.0.0.1:{port}/mcp', include=['book'], attempts=2)\n"
            "agent = Agent(name='booking', model='openai-chat:nobody', mcp=[new, old, again])\n"
        )
        queue = f"mcp-{uuid.uuid4().hex[:6]}"
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)

        serving = partial(worker_process, module.stem, queue, temporal, PYTHONPATH=str(tmp_path))

        async def waiting(handle: Any, count: int) -> dict[str, str]:
            while len(waits := await pending(handle)) != count:
                await asyncio.sleep(0.1)
            return {wait["tool"]: wait["call_id"] for wait in waits}

        booked = [(f"{server}__book", {"city": server}) for server in ("new", "old", "again")]
        handle = await at.start([calls(*booked), DONE], agent="booking")
        async with serving() as first:
            ids = await waiting(handle, 3)
            first.kill()
            await first.wait()
        async with serving(PATIENCE="100"):  # this one is not lost, however late its heartbeats are
            assert set(await waiting(handle, 2)) == {"new__book", "again__book"}
            for tool in ("again__book", "new__book"):
                await handle.execute_update("answer", {"call_id": ids[tool], "text": '{"nights": 2}'})
            ran = await at.look(handle)
    new, old, again = (each["result"] for each in ran.calls)
    assert new["text"] == 'new: accept {"nights": 2, "breakfast": true}'
    assert (old["error"]["kind"], again["error"]) == ("tool_lost", None)
    assert again["text"] == 'again: accept {"nights": 2, "breakfast": true}'
    starts = bookings.read_text().split("\n")
    assert sorted(starts) == ["", "asked", "continued with state-1", "started", "started", "started"]
