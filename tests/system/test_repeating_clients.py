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
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.lost_answers import Faults, with_faults
from tests.support.npm_packages import installed, run_node
from tests.support.openai_door_agents import MODEL, SCRIPTS, scripted
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN
from tests.support.tcp_proxy import tcp_proxy

SDKS = {
    "openai": "7.57.0",
    "ai": "7.0.173",
    "@ai-sdk/openai-compatible": "3.0.92",
    "@ai-sdk/openai": "4.0.118",
}
PROGRAM = Path(__file__).with_name("repeating_clients.mjs")
QUEUE = "repeating-clients"
REFUSED = ["AI_APICallError", 422]
WAYS: dict[str, dict[str, Any]] = {
    # what happens: the answers of the ways
    "lost": {"response": ["completed"], "chat": ["Hello."], "ai": REFUSED},
    "failed": {
        "response": ["failed"],
        "chat": ["Error", 422],
        "ai": REFUSED,
        "ai_stream": [""],
        "ai_openai": [REFUSED[0], 200],
    },
    "waits": {"response": ["in_progress"], "chat": ["Error", 422], "ai": REFUSED, "ai_openai": [""]},
    "slow": {"response": ["Error", None], "chat": ["Error", None]},
    "broken": {"response": ["completed"], "chat": ["Hello."], "ai_key": ["Hello."], "ai_openai_key": ["Hello."]},
}
PROMPTS = {"lost": "Say hello.", "failed": "Search and fail.", "waits": "Search and ask.", "broken": "Say hello."}
SEARCH = ("search_orders", '{"customer": "Ada"}', "s")
ENDS: dict[str, Any] = {
    "Search and fail.": [Turn(calls=[SEARCH]), *SCRIPTS["Fail."]],
    "Search and ask.": [Turn(calls=[SEARCH]), *SCRIPTS["Ask me."]],
}


@pytest.fixture(scope="module")
async def queue(lab: Lab) -> AsyncIterator[str]:
    lab.model.script(MODEL, scripted(SCRIPTS))
    async with running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, QUEUE):
        yield QUEUE


@pytest.mark.parametrize(("what", "way"), [(what, way) for what, ways in WAYS.items() for way in ways])
async def test_one_request_is_one_run(lab: Lab, queue: str, what: str, way: str) -> None:
    """The start's answer is lost; the run fails after a tool has run; it waits for a person then; the model is slower than
    the client's limit; the connection breaks before the answer. In each case the tool runs once at most.
    """
    folder = await installed("repeating", SDKS)
    gate, prompt = asyncio.Event(), PROMPTS.get(what) or f"Wait {uuid.uuid4().hex}."
    scripts = {**SCRIPTS, **ENDS}
    lab.model.script(MODEL, scripted({**scripts, prompt: scripts.get(prompt) or [Turn("At last.", wait=gate)]}))
    faults = Faults()
    if what == "lost":
        faults.lose_starts, faults.fail_call = (1, 1) if way == "ai" else (2, 0)
    tenant = f"t{uuid.uuid4().hex[:10]}"
    served = http_server(with_faults(lab.client, faults), task_queue=queue, tokens=f"{tenant}:token-of-{tenant}")
    async with served as door, tcp_proxy(door.url.removeprefix("http://")) as proxy:
        if what == "broken":
            proxy.end_next_answer()
        # The proxy's address is a Host that the server listens on.
        printed = await run_node(folder, PROGRAM, f"http://{proxy.address}", f"token-of-{tenant}", what, prompt, way)
        gate.set()
    assert json.loads(printed) == WAYS[what][way]
    assert proxy.answers_ended == (1 if what == "broken" else 0)
    assert len(set(faults.starts)) == 1
    effects = [call for run in set(faults.starts) for call in RAN[run]]
    assert len(effects) == (1 if prompt in ENDS else 0)


async def test_npms_ai_says_nothing_of_a_request_that_it_sends_again(lab: Lab, queue: str) -> None:
    """Where it has no key, a connection that breaks before the answer is two runs (docs/serving.md)."""
    folder, faults, tenant = await installed("repeating", SDKS), Faults(), f"t{uuid.uuid4().hex[:10]}"
    lab.model.script(MODEL, scripted(SCRIPTS))
    served = http_server(with_faults(lab.client, faults), task_queue=queue, tokens=f"{tenant}:token-of-{tenant}")
    async with served as door, tcp_proxy(door.url.removeprefix("http://")) as proxy:
        proxy.end_next_answer()
        url, token = f"http://{proxy.address}", f"token-of-{tenant}"
        assert json.loads(await run_node(folder, PROGRAM, url, token, "broken", "Say hello.", "ai")) == ["Hello."]
    assert len(set(faults.starts)) == 2
