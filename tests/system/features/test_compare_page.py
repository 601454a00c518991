"""Two runs side by side in the console: every step is there, from whichever workflow run of the chain has it."""

from __future__ import annotations

import re
import uuid

import pytest

from mulligan import connect
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.compaction_agents import PROMPT, reading
from tests.support.console_browser import TOKENS
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.system.features.test_serve_console import visitor


async def test_every_step_is_on_a_page_also_after_compactions_and_where_few_fit_into_an_answer(
    lab: Lab, chain_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier workflow runs have the first steps; an answer of the query has a few steps at most."""
    monkeypatch.setattr(limits, "PAGE_BYTES", 6_000)
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"compare-{uuid.uuid4().hex[:6]}")
    async with (
        running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue),
        http_server(client, tokens=TOKENS, task_queue=at.task_queue) as served,
        visitor(served, "bob") as bob,
    ):
        ran = await at.run(reading(30), agent="page_reader", prompt=PROMPT)
        assert "earlier" in await ran.handle.query("steps", args=[0, 1])
        pages = [await bob.page(f"/console/compare?left={ran.id}&right={ran.id}&page={n}") for n in (1, 2)]
    shown = [[int(step) for step in re.findall(r'<h2 id="pair-(\d+)"', page)] for page in pages]
    assert shown == [[*range(1, 26)], [*range(26, 32)]]
    assert [("Later steps" in page, 'id="outputs"' in page) for page in pages] == [(True, False), (False, True)]
