"""MCP servers that others ship, fetched from their registries; and what becomes of a program when its worker is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from mulligan import Agent, Call, McpServer, Say
from mulligan.devserver import DevServer
from mulligan.testing import Model, run_agent
from tests.live.conftest import DONE, Lab, call

FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
CLOCK = "mcp-server-time@2026.10.19"
TRUSTED = ["SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"]
"""Programs that fetch themselves need to know whom to trust, where a machine says so by variables."""


def fetch(command: list[str]) -> None:
    """Have what a command needs in its runner's cache: a download that fails, fails loudly."""
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=240)


@pytest.mark.timeout(300)
async def test_a_server_of_npm(tmp_path: Path) -> None:
    """The filesystem server: a file is written and read, what is outside of its folder is its own to refuse."""
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
    run = await run_agent(Agent(name="a", model="openai:x", mcp=[files]), "Go.", model=Model(*turns))
    results = [made.result for made in run.calls if made.result]
    assert (tmp_path / "note.txt").read_text() == "Grüße"
    assert results[1].text == "Grüße"
    kinds = [result.error.kind if result.error else None for result in results]
    assert kinds == [None, None, "invalid_arguments", "tool_error", "unknown_tool"]
    assert "Access denied" in results[3].text


@pytest.mark.timeout(300)
async def test_a_server_of_pypi() -> None:
    """The time server, of the same SDK as ours, at whatever version it asks for."""
    fetch(["uvx", CLOCK, "--help"])
    clock = McpServer("clock", command=["uvx", CLOCK, "--local-timezone", "UTC"], pass_env=TRUSTED, start_timeout=45)
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    turns: list[Say | str] = [
        Say(calls=[Call("clock__convert_time", noon), Call("clock__convert_time", {**noon, "time": "x"})]),
        "done",
    ]
    run = await run_agent(Agent(name="a", model="openai:x", mcp=[clock]), "Go.", model=Model(*turns))
    right, wrong = (made.result for made in run.calls)
    assert right is not None
    assert wrong is not None
    assert "T21:00:00+09:00" in right.text
    assert wrong.error is not None
    assert wrong.error.kind == "tool_error"


@pytest.mark.timeout(120)
async def test_no_program_outlives_a_killed_worker(lab: Lab, temporal: DevServer) -> None:
    """kill -9 of the worker: a program that is deaf just then ends with it, and the next worker has one of its own."""
    queue = f"mcp-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)

    async def worker() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "worker.py", "--load", "tests.support.mcp_agents", "--task-queue", queue,
            env={**os.environ, "TEMPORAL_ADDRESS": temporal.address, "MCP_TEST_SECRET": "given"},
            stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    first = await worker()
    handle = await at.start(
        [call("lent__pid"), call("lent__sleep", '{"seconds": 600}'), call("lent__pid"), DONE], agent="borrower"
    )
    while True:
        steps = await steps_of(handle)
        if len(steps) == 2 and (await handle.query("progress"))["running"]:
            break
        await asyncio.sleep(0.2)
    pid = int(steps[0]["tool_calls"][0]["result"]["text"])
    os.kill(pid, 0)
    first.kill()
    await first.wait()
    while is_running(pid):
        await asyncio.sleep(0.1)
    second = await worker()
    try:
        ran = await at.look(handle)
    finally:
        second.terminate()
        await second.wait()
    assert ran.calls[1]["result"]["error"]["kind"] == "tool_lost"
    assert ran.calls[2]["result"]["text"] != str(pid)


async def steps_of(handle: Any) -> list[dict[str, Any]]:
    try:
        return list((await handle.query("steps", args=[0, 10]))["steps"])
    except RPCError:  # no worker polls yet
        return []


def is_running(pid: int) -> bool:
    """Not one that has ended and that nobody has asked after: in a container that may be so for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
