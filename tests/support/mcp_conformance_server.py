"""Runs the MCP conformance suite's server scenarios against `/mcp`.

The suite's tools take their own arguments, an agent takes a prompt: a middleware makes one of a call's arguments, as
JSON. All else is untouched.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.devserver import DevServer
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.mcp_conformance import installed
from tests.support.mcp_served_agents import AGENTS, SCRIPTS
from tests.support.temporal import connect_to

FEWEST = 64
"""Server scenarios of this version of the suite."""
MILLISECONDS = 300_000
"""For each scenario: beside other tests it may take long."""

_NAMES = {agent.name for agent in AGENTS}


class ArgumentsAsPrompt:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        changed = _with_prompt(body)
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        length = (b"content-length", str(len(changed)).encode())
        is_read = False

        async def receive_changed() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": changed, "more_body": False}

        await self._app({**scope, "headers": [*headers, length]}, receive_changed, send)


def _with_prompt(body: bytes) -> bytes:
    try:
        message: Any = json.loads(body)
        if message["method"] != "tools/call" or message["params"]["name"] not in _NAMES:
            return body
    except (ValueError, KeyError, TypeError):
        return body
    arguments = message["params"].get("arguments") or {}
    message["params"]["arguments"] = {"prompt": json.dumps(arguments)}
    return json.dumps(message).encode()


async def run_scenarios(temporal: DevServer) -> dict[str, bool]:
    """Run all server scenarios in one process of the suite. Returns whether each passed; what failed is printed."""
    program, environment = await asyncio.to_thread(installed)
    client, telemetry = await connect_to(temporal), Telemetry()
    queue, loaded = f"conformance-{uuid.uuid4().hex[:6]}", load((), agents=AGENTS, scripts=SCRIPTS)
    async with (
        running_worker(client, loaded, telemetry, queue),
        http_server(client, wrap=ArgumentsAsPrompt, task_queue=queue) as door,
    ):
        process = await asyncio.create_subprocess_exec(
            program, "server", "--url", f"{door.url}/mcp", "--suite", "all", "--timeout", str(MILLISECONDS),
            env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
    telemetry.shutdown()
    print(output.decode())
    summary = output.decode().partition("=== SUMMARY ===")[2]
    passed = {name: mark == "✓" for mark, name in re.findall(r"^([✓✗]) (\S+): ", summary, re.MULTILINE)}
    assert len(passed) >= FEWEST
    return passed
