"""A script goes on where another version of its interpreter runs, older or newer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from mulligan.devserver import DevServer
from tests.support.code_agents import executions
from tests.support.lab import DONE, Lab, call
from tests.support.worker_process import worker_process

MODULE = "tests.support.code_agents"
OLDER = "1.3.0"
CODE = """
import asyncio

async def total(n: int) -> float:
    try:
        return (await get_order(n))["total"]
    except ToolError:
        return -1.0

print(await asyncio.gather(*[total(n) for n in range(3)]))
for n in range(3, 6):
    print(await total(n))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a worker with the older version."""
    folder = tmp_path_factory.mktemp("monty")
    install = ["uv", "pip", "install", "--quiet", "--no-config", "--python", sys.executable, "--target", str(folder)]
    subprocess.run([*install, f"pydantic-monty=={OLDER}"], check=True)
    return {"PYTHONPATH": str(folder), "MONTY_BIN": str(folder / "bin" / "monty")}


@pytest.mark.parametrize("first_is_older", [True, False])
async def test_another_version_goes_on(
    lab: Lab, temporal: DevServer, older: dict[str, str], tmp_path: Path, first_is_older: bool
) -> None:
    """When the first one dies at its first, a middle or a late call: three runs, whose lost workers are waited for together."""
    environments: list[dict[str, str]] = [older, {}] if first_is_older else [{}, older]
    ended = await asyncio.gather(*(_goes_on(lab, temporal, environments, tmp_path / str(at), at) for at in (1, 3, 5)))
    assert [script["result"]["error"] for script in ended] == [None] * 3


async def _goes_on(
    lab: Lab, temporal: DevServer, environments: list[dict[str, str]], ledger: Path, at: int
) -> dict[str, Any]:
    """The script's call, of a run whose first worker dies at one of its calls."""
    queue = f"versions-{uuid.uuid4().hex[:6]}"
    there = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    metadata = {"ledger": str(ledger), "kill_at": str(at)}
    turns = [call("run_code", json.dumps({"code": CODE}), "s"), DONE]
    handle = await there.start(turns, agent="coder", metadata=metadata)
    async with worker_process(MODULE, queue, temporal, **environments[0]) as first:
        assert await first.wait() == -9
    async with worker_process(MODULE, queue, temporal, **environments[1]):
        ran = await there.look(handle)
    [script] = ran.calls
    done = executions(ledger)
    assert len({each["call_id"] for each in done}) == len(done)
    assert {each["call_id"] for each in done} <= {f"s.{n}" for n in range(1, 7)}
    assert script["result"]["text"].count("-1.0") <= 3
    return script
