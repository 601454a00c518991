"""A third party's feature from outside of the tree: its option, wait, command, page and span are where Mulligan's own are."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mulligan.devserver import DevServer
from tests.acceptance.test_own_feature import end, worker
from tests.support.command_fixtures import ROOT, Run
from tests.support.command_server import PIPE, start_command
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.ports import free_ports
from tests.support.temporal import connect_to

MODULES = ("quiet_hours", "quiet_hours.agents")


@pytest.fixture
def outside(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of commands beside which the package stands."""
    shutil.copytree(ROOT / "tests/support/quiet_hours", tmp_path / "quiet_hours")
    return environment | {"MULLIGAN_TASK_QUEUE": tmp_path.name, "PYTHONPATH": "", "MULLIGAN_LOAD": ",".join(MODULES)}


async def test_its_option_waits_asks_and_writes_a_span(
    outside: dict[str, str], mulligan: Run, temporal: DevServer, tmp_path: Path
) -> None:
    """As `waiting_for` and `pending` show; and `mulligan agents --json` shows what was pinned for the tool."""
    async with OtlpReceiver() as otlp:
        process = await worker(tmp_path, outside | otlp.environment())
        name = f"{tmp_path.name}-porter"
        listed = await mulligan("agents", "--json", cwd=tmp_path, **outside)
        assert listed.code == 0, listed.err
        [porter] = [each for each in json.loads(listed.out) if each["name"] == "porter"]
        pins = {tool["name"]: tool.get("features") for tool in porter["tools"]}
        assert pins == {"ring_bell": {"quiet_hours": {"seconds": 3, "wakes_person": True}}, "whisper": None}
        started = await mulligan("start", "porter", "Ring.", "--id", name, cwd=tmp_path, **outside)
        assert started.code == 0, started.err
        handle = (await connect_to(temporal)).get_workflow_handle(name)
        progress: dict[str, Any] = {}
        while (progress.get("waiting_for") or {}).get("kind") != "timer":
            await asyncio.sleep(0.1)
            progress = await handle.query("progress")
        assert progress["waiting_for"]["detail"].startswith("keeping quiet since ")
        while not (pending := await handle.query("pending")):
            await asyncio.sleep(0.1)
        assert [(each["tool"], each["kind"]) for each in pending] == [("ring_bell", "approval")]
        approved = await mulligan("approve", name, "--yes", cwd=tmp_path, **outside)
        assert approved.code == 0, approved.err
        assert (await handle.result())["output"] == "It rang."
        await end(process)
        [span] = otlp.spans(name="quiet_hours.over")
        assert span.attributes == {"tool": "ring_bell"}


async def test_its_command_is_one_of_mulligan_and_its_page_one_of_the_console(
    outside: dict[str, str], mulligan: Run, tmp_path: Path
) -> None:
    """`MULLIGAN_LOAD` makes commands and the door know it; without that, neither does."""
    ran = await mulligan("quiet", "--place", "the inn", cwd=tmp_path, **outside)
    assert (ran.code, ran.out) == (0, "It is quiet in the inn.\n")
    assert "quiet" in (await mulligan("--help", cwd=tmp_path, **outside)).out
    unknown = await mulligan("quiet", cwd=tmp_path, **{**outside, "MULLIGAN_LOAD": ""})
    assert (unknown.code, "No such command 'quiet'" in unknown.err) == (2, True)
    [port] = free_ports(1)
    serve = await start_command("serve", "--port", str(port), env=outside, cwd=tmp_path, stderr=PIPE)
    try:
        assert serve.stderr is not None
        await serve.stderr.readline()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as http:
            answer = await http.get("/console/quiet-hours")
            assert (answer.status_code, "<h1>Quiet hours</h1>" in answer.text) == (200, True)
            assert 'href="/console/quiet-hours"' in (await http.get("/")).text
    finally:
        serve.terminate()
        await serve.wait()
