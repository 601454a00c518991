"""Blocks of docs/operating.md, rate-limits.md, playbooks.md and playbooks-workers.md that call Temporal's own command."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from mulligan.devserver import DevServer
from tests.support.command_fixtures import environment
from tests.support.command_server import PIPE, start_command
from tests.support.docs_block import docs_block, shell_lines, temporal_command
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Failure

__all__ = ["environment"]


async def test_search_attributes_are_created(temporal: DevServer) -> None:
    """operating.md, in a new namespace."""
    name = f"docs-{uuid.uuid4().hex[:6]}"
    await temporal_command(f"temporal operator namespace create --namespace {name}", temporal)
    new = DevServer(temporal.address, name, ui_url=None)
    [line] = shell_lines(docs_block("docs/operating.md", "search-attribute create"))
    await temporal_command(line, new)
    listed = await temporal_command("temporal operator search-attribute list", new)
    assert all(attribute in listed for attribute in ("MulliganAgent", "MulliganStatus", "MulliganForkedFrom"))


async def test_the_rate_of_a_queue_is_changed(temporal: DevServer) -> None:
    """rate-limits.md."""
    [line] = shell_lines(docs_block("docs/rate-limits.md", "task-queue config set"))
    await temporal_command(line, temporal)
    described = "temporal task-queue config get --task-queue agents-models --task-queue-type activity --output json"
    assert "New contract" in await temporal_command(described, temporal)


async def test_a_queue_without_workers_gets_one(
    temporal: DevServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """playbooks-workers.md: the first line shows who polls, the second starts a worker."""
    (tmp_path / "shop.py").write_text(docs_block("README.md", "support = Agent("))
    describe, start = shell_lines(docs_block("docs/playbooks-workers.md", "task-queue describe"))
    names = {"describe": describe, "start": start}
    describe, start = (line.replace("agents", "docs-nobody") for line in names.values())
    assert "pid" not in await temporal_command(f"{describe} --output json", temporal)
    words = start.removeprefix("uv run mulligan ").split()
    worker = await start_command(*words, env={**environment, "OPENAI_API_KEY": "k"}, cwd=tmp_path, stderr=PIPE)
    try:
        while f"{worker.pid}@" not in await temporal_command(f"{describe} --output json", temporal):
            await asyncio.sleep(0.2)
    finally:
        worker.kill()
        await worker.wait()


@pytest.mark.parametrize("containing", ["activity reset"])
async def test_calls_of_an_endpoint_that_was_down_are_tried_at_once(
    lab: Lab, temporal: DevServer, containing: str
) -> None:
    """playbooks.md: the attempts begin anew."""
    handle = await lab.start([Failure(503), Failure(503), Failure(503), Failure(503), Failure(503), Failure(503), DONE])
    [line] = shell_lines(docs_block("docs/playbooks.md", containing))
    print(await temporal_command(line, temporal))
    assert (await handle.result())["output"] == "done"
