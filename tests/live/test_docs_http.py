"""The blocks of docs/serving.md, http-api.md, serving-mcp.md and serving-openai.md run as printed, at a real `mulligan serve`.

One worker has the README's agent `support`, one server serves it; each block gets the server's address in place of the one on the page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_fixtures import command, environment
from tests.support.command_server import PIPE, start_command
from tests.support.docs_block import docs_block, shell_lines
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

__all__ = ["environment"]

PRINTED = "http://127.0.0.1:8300"
"""The server's address on the pages."""
ANSWER = "Order 7 is on its way."


@asynccontextmanager
async def started(environment: dict[str, str], folder: Path, *words: str) -> AsyncIterator[str]:
    """A command that runs until the block ends: the first line that it says."""
    process = await start_command(*words, env=environment, cwd=folder, stderr=PIPE)
    try:
        assert process.stderr is not None
        yield (await process.stderr.readline()).decode()
    finally:
        process.kill()
        await process.wait()


@pytest.fixture(scope="module")
async def url(
    environment: dict[str, str], model: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """Where the server of the README's agent listens."""
    folder = tmp_path_factory.mktemp("docs-http")
    (folder / "shop.py").write_text(docs_block("README.md", "support = Agent("))
    env = environment | model.environment() | {"MULLIGAN_TASK_QUEUE": "docs-http", "COLUMNS": "200"}
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(started(env, folder, "worker", "--load", "shop"))
        assert "support" in serving
        listening = await stack.enter_async_context(started(env, folder, "serve", "--port", "0"))
        [found] = re.findall(r"http://127\.0\.0\.1:\d+", listening)
        yield found


@pytest.mark.parametrize(("page", "run"), [("docs/serving.md", "first-run"), ("docs/http-api.md", "http-run")])
async def test_curl_starts_a_run_watches_it_and_waits_for_its_end(
    url: str, model: OpenAIServer, page: str, run: str
) -> None:
    """serving.md and http-api.md: the last line prints the run as it has ended."""
    model.script("gpt-5-mini", [Turn(ANSWER)])
    lines = docs_block(page, "curl").replace(PRINTED, url)
    printed = [(await command("sh", "-c", f"{line} --silent --fail", env={})).out for line in shell_lines(lines)]
    assert json.loads(printed[0])["id"] == run
    assert all("event: run_ended" in events for events in printed[1:-1])
    ended = json.loads(printed[-1])
    assert (ended["status"], ended["result"]["output"]) == ("completed", ANSWER)


async def test_mcps_client_calls_the_agent(url: str, model: OpenAIServer, tmp_path: Path) -> None:
    """serving-mcp.md."""
    model.script("gpt-5-mini", [Turn(ANSWER)])
    program = tmp_path / "client.py"
    program.write_text(docs_block("docs/serving-mcp.md", "call_tool").replace(PRINTED, url))
    ran = await command(sys.executable, str(program), env={})
    assert ran.code == 0, ran.err
    assert ANSWER in ran.out


async def test_openais_client_approves_the_call_that_a_response_asks_for(url: str, model: OpenAIServer) -> None:
    """serving-openai.md: the block as printed, in place of a story."""
    from openai import AsyncOpenAI

    model.script(
        "gpt-5-mini", [Turn(calls=[("refund", '{"order_id": 7, "euros": 12.5}', "c1")]), Turn("It is paid back.")]
    )
    names: dict[str, Any] = {}
    printed = docs_block("docs/serving-openai.md", "mcp_approval_response").replace(
        "client.responses", "await client.responses"
    )
    coroutine = "async def approve(client):\n" + "".join(f"    {line}\n" for line in printed.splitlines())
    exec(compile(f"{coroutine}    return done", "docs/serving-openai.md", "exec", dont_inherit=True), names)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        done = await names["approve"](client)
    assert (done.status, done.output_text) == ("completed", "It is paid back.")
