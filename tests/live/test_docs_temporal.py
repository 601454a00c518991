"""Blocks of docs/operating.md, rate-limits.md, playbooks.md and playbooks-workers.md that call Temporal's own command."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from mulligan.devserver import DevServer
from tests.support.command_fixtures import environment
from tests.support.command_server import PIPE, start_command
from tests.support.docs_block import docs_block, shell_lines, temporal_command
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Failure, Turn

__all__ = ["environment"]

FAILED = 4
"""Attempts of a model call until it is reset."""


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
    describe, start = (line.replace("agents", "docs-nobody") for line in (describe, start))
    assert "pid" not in await temporal_command(f"{describe} --output json", temporal)
    words = start.removeprefix("uv run mulligan ").split()
    worker = await start_command(*words, env={**environment, "OPENAI_API_KEY": "k"}, cwd=tmp_path, stderr=PIPE)
    try:
        while f"{worker.pid}@" not in await temporal_command(f"{describe} --output json", temporal):
            await asyncio.sleep(0.2)
    finally:
        worker.kill()
        await worker.wait()


async def test_a_call_of_an_endpoint_that_was_down_is_tried_anew(lab: Lab, temporal: DevServer) -> None:
    """playbooks.md: the first line shows the activity, with the second its attempts and its patience begin anew."""
    is_back = asyncio.Event()
    down = Turn(failure=Failure(503))
    handle = await lab.start(lambda _body, _nth: DONE if is_back.is_set() else down, agent="till")
    while (await pending_call(handle)).attempt < FAILED:
        await asyncio.sleep(0.1)
    before = await pending_call(handle)
    described, reset = (
        line.replace(" ID", f" {handle.id}").replace("ACTIVITY_ID", before.activity_id)
        for line in shell_lines(docs_block("docs/playbooks.md", "activity reset"))
    )
    shown = " ".join((await temporal_command(described, temporal)).split())
    assert f"ActivityId {before.activity_id} " in shown
    await temporal_command(reset, temporal)
    while (after := await pending_call(handle)).attempt >= FAILED or not after.heartbeat_details.payloads:
        await asyncio.sleep(0.1)
    assert await first_failure(lab, after) > await first_failure(lab, before)
    is_back.set()
    assert (await handle.result())["output"] == "done"


async def pending_call(handle: Any) -> Any:
    """The model call that is tried again."""
    while not (pending := (await handle.describe()).raw_description.pending_activities):
        await asyncio.sleep(0.1)
    return pending[0]


async def first_failure(lab: Lab, pending: Any) -> float:
    """The time from which the call's patience counts, in its heartbeats."""
    details = await lab.client.data_converter.decode_wrapper(pending.heartbeat_details)
    return max(each for each in details if isinstance(each, float))
