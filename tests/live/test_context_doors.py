"""What the model saw, by the command, over HTTP and in the console: what they show, what they refuse, and to whom."""

from __future__ import annotations

import html
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from mulligan.context_view.model_context import read_model_context
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.app_command import app_command  # noqa: F401 - a fixture
from tests.support.compaction_agents import PROMPT, reading
from tests.support.http_server import Door, by, http_server
from tests.support.lab import Lab, Ran

PAGES = 40


@pytest.fixture(scope="module")
async def ran(lab: Lab) -> AsyncIterator[Ran]:
    """A run, in some step of which results are cleared after older messages were summarized."""
    at = replace(lab, task_queue=f"doors-{uuid.uuid4().hex[:6]}", workers=None)
    async with running_worker(at.client, load(["tests.support.context_agents"]), lab.telemetry, at.task_queue):
        yield await at.run(reading(PAGES), agent="forgetful_reader", prompt=PROMPT, tenant="ada")


@pytest.fixture(scope="module")
async def step(lab: Lab, ran: Ran) -> int:
    for number in range(1, len(ran.steps) + 1):
        context = await read_model_context(lab.client, ran.id, number)
        if context.cleared and context.compacted:
            return number
    raise AssertionError("no step has both")


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client, tokens="ops:s-1:*,ada:s-2,eve:s-3") as served:
        yield served


async def test_the_command_shows_it(lab: Lab, ran: Ran, step: int, command: Any) -> None:
    """With marks at what was cleared and summarized; `--json` has all of it."""
    code, out, _ = await command("show", ran.id, "--context", str(step), "--json")
    context = await read_model_context(lab.client, ran.id, step)
    assert (code, json.loads(out)) == (0, context.model_dump(mode="json"))
    assert {"step", "model", "instructions", "tools", "messages", "settings"} <= json.loads(out).keys()
    code, out, _ = await command("show", ran.id, "--context", str(step))
    assert code == 0
    assert f"step {step}: {context.model}" in out
    assert '"number"' in out
    assert "1. user [compacted: a summary in place of older messages]" in out
    assert f"{context.cleared[0] + 1}. tool read_page [cleared: the run has the whole result]" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--context", "99"], "There is no step 99"),
        (["--context", "1", "--conversation", "ghost"], "There is no conversation 'ghost'"),
        (["--context", "1", "--trace"], "--context 1 shows one request; leave out --trace"),
        (["--conversation", "0"], "--conversation is '0', which chooses an agent for --context"),
    ],
)
async def test_the_command_refuses_with_a_sentence(ran: Ran, command: Any, words: list[str], sentence: str) -> None:
    code, out, err = await command("show", ran.id, *words)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())


async def test_operators_read_it_over_http(lab: Lab, ran: Ran, step: int, door: Door) -> None:
    path = f"/api/runs/{ran.id}/context"
    answer = await door.http.get(path, params={"step": step}, headers=by("s-1"))
    assert answer.status_code == 200
    assert answer.json() == (await read_model_context(lab.client, ran.id, step)).model_dump(mode="json")
    refused = await door.http.get(path, params={"step": step}, headers=by("s-2"))
    assert (refused.status_code, refused.json()["code"]) == (403, "operators_only")
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("s-3", {"step": step}, 404),
        ("s-1", {"step": 99}, 404),
        ("s-1", {"step": 1, "conversation": "ghost"}, 404),
        ("s-1", {"step": 0}, 422),
        ("s-1", {"step": 10**30}, 422),
        ("s-1", {"step": "x"}, 422),
        ("s-1", {}, 422),
    ]
    for token, params, status in cases:
        answer = await door.http.get(path, params=params, headers=by(token))
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), params


async def test_the_console_has_a_page_of_it_for_operators(ran: Ran, step: int, door: Door) -> None:
    """Instructions, tools and messages in this order, and a link to it from each step."""
    path = f"/console/runs/{ran.id}"
    link = f'href="{path}/context?step={step}"'
    assert link in (await door.http.get(path, headers=by("s-1"))).text
    assert link not in (await door.http.get(path, headers=by("s-2"))).text
    assert (await door.http.get(f"{path}/context?step={step}", headers=by("s-2"))).status_code == 403
    assert (await door.http.get(f"{path}/context?step=99", headers=by("s-1"))).status_code == 404
    page = html.unescape((await door.http.get(f"{path}/context?step={step}", headers=by("s-1"))).text)
    places = [page.index(each) for each in ('id="instructions"', 'id="tools"', "read_page", 'id="messages"', PROMPT)]
    assert places == sorted(places)
    assert "<strong>Compacted</strong>: a summary in place of older messages" in page
    assert "<strong>Cleared</strong>: the run has the whole result" in page
