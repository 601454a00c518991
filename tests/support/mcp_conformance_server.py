"""Runs the MCP conformance suite's server scenarios against `/mcp`.

The suite's tools take their own arguments, an agent takes a prompt: a middleware makes one of a call's arguments, as
JSON. All else is untouched.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.devserver import DevServer
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.mcp_conformance import installed, listed_scenarios
from tests.support.mcp_served_agents import AGENTS, SCRIPTS
from tests.support.temporal import connect_to

FEWEST = 64
"""Server scenarios of this version of the suite."""

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


async def run_scenarios(temporal: DevServer, part: str) -> tuple[set[str], set[str]]:
    """Run the scenarios of a part (`tasks`: the extension's; `server`: all others). Returns those that failed and passed."""
    program, environment = await asyncio.to_thread(installed)
    scenarios = await asyncio.to_thread(listed_scenarios, program, environment, "server")
    assert len(scenarios) >= FEWEST
    chosen = [scenario for scenario in scenarios if scenario.startswith("tasks-") == (part == "tasks")]
    client, telemetry = await connect_to(temporal), Telemetry()
    queue, loaded = f"conformance-{uuid.uuid4().hex[:6]}", load((), agents=AGENTS, scripts=SCRIPTS)
    async with (
        running_worker(client, loaded, telemetry, queue),
        http_server(client, wrap=ArgumentsAsPrompt, task_queue=queue) as door,
    ):
        at_once = asyncio.Semaphore(3)

        async def run(scenario: str) -> tuple[str, str]:
            async with at_once:
                process = await asyncio.create_subprocess_exec(
                    program, "server", "--url", f"{door.url}/mcp", "--scenario", scenario, "--force",
                    env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
                output, _ = await process.communicate()
                return scenario, "" if process.returncode == 0 else output.decode()

        results = dict(await asyncio.gather(*(run(scenario) for scenario in chosen)))
    telemetry.shutdown()
    failed = {scenario: output for scenario, output in results.items() if output}
    print(*failed.values(), sep="\n")
    return set(failed), results.keys() - failed.keys()
