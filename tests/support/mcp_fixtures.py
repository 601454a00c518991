"""Helpers of MCP tests: workers with their own servers, and a server at a port."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from mulligan import Agent, McpServer
from mulligan.worker.loading import LoadedModules, load_agents
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.mcp_agents import SERVER
from tests.support.openai_turn import Turn
from tests.support.ports import free_ports


@asynccontextmanager
async def mcp_worker(lab: Lab, loaded: LoadedModules) -> AsyncIterator[Lab]:
    """A separate worker with its own MCP servers."""
    queue = f"mcp-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, loaded, lab.telemetry, queue):
        yield replace(lab, task_queue=queue)


async def wait_for_text(file: Path, text: str) -> None:
    """Wait until the server has written this text to the file."""
    while not file.exists() or file.read_text() != text:
        await asyncio.sleep(0.05)


def calls(*named: tuple[str, dict[str, Any]]) -> Turn:
    return Turn(calls=[(name, json.dumps(given), None) for name, given in named])


@contextmanager
def http_server(*options: str, port: int = 0) -> Iterator[int]:
    """An MCP server process at this port, or at a free one."""
    port = port or free_ports(1)[0]
    process = subprocess.Popen([*SERVER, str(port), *options])
    try:
        wait_until_it_answers(process, port)
        yield port
    finally:
        process.kill()
        process.wait()


def wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait for a server's first HTTP answer, of any status. Fails if the process ends; the test's time limit bounds the wait."""
    # One client: each new one reads the certificates of all authorities, which takes more CPU than the request.
    with httpx2.Client() as client:
        while True:
            try:
                client.get(f"http://127.0.0.1:{port}/")
            except httpx2.TransportError:
                assert process.poll() is None, f"the MCP server ended with exit code {process.returncode}"
                time.sleep(0.1)
            else:
                return


def at_port(port: int, **options: Any) -> LoadedModules:
    server = McpServer("web", url=f"http://127.0.0.1:{port}/mcp", timeout=20, **options)
    return load_agents([Agent(name="surfer", model="openai-chat:nobody", mcp=[server])], [])


async def check_http(lab: Lab, options: tuple[str, ...], file: Path) -> None:
    """Check calls, errors, a cancelled call and a restarted server over HTTP, with or without sessions."""
    with http_server(*options) as port:
        async with mcp_worker(lab, at_port(port)) as at:
            ran = await at.run(
                [calls(("web__echo", {"text": "hi"}), ("web__fail", {}), ("web__picture", {})), DONE], agent="surfer"
            )
            texts = [each["result"]["text"] for each in ran.calls]
            assert texts[:2] == ["hi", "The disk is full."]
            assert texts[2].startswith("[image/png, 12,345 bytes]\n[The call ran. ")
            handle = await at.start([calls(("web__hang", {"file": str(file)})), DONE], agent="surfer")
            await wait_for_text(file, "started")
            await handle.cancel()
            await wait_for_text(file, "cancelled")
            first = await at.run([call("web__pid"), DONE], agent="surfer")
            waits = await at.start(
                [call("web__pid"), call("web__die"), call("web__echo", '{"text": "a"}'), call("web__pid"), DONE],
                agent="surfer",
            )
            died = await at.look(waits)
            assert [(each["result"]["error"] or {}).get("kind") for each in died.calls[1:]] == ["tool_exception"] * 3
            assert "The MCP server `web` " in died.calls[1]["result"]["text"]
            assert "nothing answers there (ConnectError)" in died.calls[2]["result"]["text"]
            with http_server(*options, port=port):
                after = await at.run([call("web__pid"), DONE], agent="surfer")
                assert after.calls[0]["result"]["error"] is None
                assert after.calls[0]["result"]["text"] != first.calls[0]["result"]["text"]
