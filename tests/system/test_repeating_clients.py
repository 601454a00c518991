"""What npm's `openai` and `ai` send again by themselves starts no second run."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import Lab
from tests.support.http_server import http_server
from tests.support.lost_answers import Faults, with_faults
from tests.support.npm_packages import installed, run_node
from tests.support.openai_door_agents import MODEL, SCRIPTS, scripted
from tests.support.openai_turn import Turn

SDKS = {"openai": "7.57.0", "ai": "7.0.173", "@ai-sdk/openai-compatible": "3.0.92"}
PROGRAM = Path(__file__).with_name("repeating_clients.mjs")
QUEUE = "repeating-clients"
WAYS: dict[str, dict[str, Any]] = {
    # what happens: the answers of the three ways
    "lost": {"response": ["completed"], "chat": ["Hello."], "ai": ["AI_APICallError", 422]},
    "failed": {"response": ["failed"], "chat": ["Error", 422], "ai": ["AI_APICallError", 422]},
    "waits": {"response": ["in_progress"], "chat": ["Error", 422], "ai": ["AI_APICallError", 422]},
    "slow": {"response": ["Error", None], "chat": ["Error", None]},
}
PROMPTS = {"lost": "Say hello.", "failed": "Fail.", "waits": "Ask me."}


@pytest.fixture(scope="module")
async def queue(lab: Lab) -> AsyncIterator[str]:
    lab.model.script(MODEL, scripted(SCRIPTS))
    async with running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, QUEUE):
        yield QUEUE


@pytest.mark.parametrize(("what", "way"), [(what, way) for what, ways in WAYS.items() for way in ways])
async def test_one_request_is_one_run(lab: Lab, queue: str, what: str, way: str) -> None:
    """The start's answer is lost; the run fails; it waits for a person; the model is slower than the client's limit."""
    folder = await installed("repeating", SDKS)
    gate, prompt = asyncio.Event(), PROMPTS.get(what) or f"Wait {uuid.uuid4().hex}."
    lab.model.script(MODEL, scripted({**SCRIPTS, prompt: SCRIPTS.get(prompt) or [Turn("At last.", wait=gate)]}))
    faults = Faults()
    if what == "lost":
        faults.lose_starts, faults.fail_call = (1, 1) if way == "ai" else (2, 0)
    tenant = f"t{uuid.uuid4().hex[:10]}"
    served = http_server(with_faults(lab.client, faults), task_queue=queue, tokens=f"{tenant}:token-of-{tenant}")
    async with served as door:
        printed = await run_node(folder, PROGRAM, door.url, f"token-of-{tenant}", what, prompt, way)
        gate.set()
    assert json.loads(printed) == WAYS[what][way]
    assert len(set(faults.starts)) == 1
