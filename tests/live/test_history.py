"""History grows linearly: the input of a model call has the new messages only."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest

from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn


async def test_history_grows_by_the_same_bytes_for_each_step(lab: Lab) -> None:
    """The second half of a run adds as many bytes as the first."""
    sizes = []
    for steps in (10, 20, 40):
        turns = [call("search_orders", '{"customer": "' + "x" * 1024 + '"}')] * steps
        ran = await lab.run([*turns, DONE], prompt="p" * 1024, max_steps=100)
        assert ran.result["steps"] == steps + 1
        description = await ran.handle.describe()
        sizes.append(description.raw_description.workflow_execution_info.history_size_bytes)
    first, second = (sizes[1] - sizes[0]) / 10, (sizes[2] - sizes[1]) / 20
    assert second < first * 1.05


async def test_each_request_begins_with_the_bytes_of_the_one_before(lab: Lab) -> None:
    """Up to the end of its messages, so that providers can cache the prefix."""
    for api in ("openai-chat", "openai"):
        ran = await lab.run([call("now"), call("clik"), Turn(text="so", calls=[("now", "", None)]), DONE], api=api)
        field = "messages" if api == "openai-chat" else "input"
        bodies = [request.body for request in ran.requests]
        assert len(bodies) == 4
        for before, after in pairwise(bodies):
            mark = f'"{field}":['.encode()
            assert mark in before
            start = before.index(mark)
            end = before.rindex(b"}]", 0, _end_of(before, start + len(mark))) + 1
            assert after.startswith(before[:end])


def _end_of(body: bytes, start: int) -> int:
    """The index at which the array that begins before `start` ends."""
    depth, index, text = 1, start, False
    while depth:
        char = body[index : index + 1]
        if text:
            index += char == b"\\"
            text = char != b'"'
        elif char == b'"':
            text = True
        else:
            depth += (char in b"[{") - (char in b"]}")
        index += 1
    return index + 1


@pytest.mark.parametrize("setting", ["MULLIGAN_PREFIX_CACHE_BYTES", "MULLIGAN_MAX_CACHED_WORKFLOWS"])
async def test_a_run_completes_on_a_worker_without_caches_and_makes_no_span_twice(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """It queries the workflow, or replays it."""
    queue = f"forgetful-{uuid.uuid4().hex[:6]}"
    monkeypatch.setenv(setting, "0")
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        other = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await other.run([call("now"), call("clik"), call("give", '{"what": "huge"}'), DONE])
    assert ran.result["output"] == "done"
    assert len({span.span_id for span in ran.spans}) == len(ran.spans)
    assert [len(ran.spans_of(name)) for name in ("invoke_agent shop", "agent.finish", "ai.toolCall")] == [1, 1, 3]


async def test_results_too_large_for_one_activity_input_are_fetched_by_query(lab: Lab) -> None:
    """Together the results exceed Temporal's limit for one payload."""
    long = Turn(
        calls=[("give", '{"what": "huge"}', None)] * 1 + [("give", '{"what": "huge" }', f"c{n}") for n in range(70)]
    )
    ran = await lab.run([long, DONE])
    assert ran.result["output"] == "done"
    assert "query `messages`" in ran.calls[0]["result"]["text"]
    total, since = 0, 0
    while since is not None:
        page = await ran.handle.query("messages", args=[since, 100])
        total += sum(len(message["text"]) for message in page["messages"])
        since = page["next"]
    assert total > 2_000_000


async def test_steps_of_one_run_may_be_taken_by_two_workers(lab: Lab) -> None:
    """Each finds the conversation in its cache, or queries the workflow."""
    queue = f"two-{uuid.uuid4().hex[:6]}"
    loaded = load(["tests.support.shop_agents"])
    # The SDK allows one worker for each task queue and connection.
    one, two = [running_worker(await lab.another_client(), loaded, Telemetry(), queue) for _ in range(2)]
    async with one, two:
        other = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        runs: list[Any] = [await other.run([call("now")] * 5 + [DONE]) for _ in range(3)]
    assert [run.result["output"] for run in runs] == ["done"] * 3


async def test_another_worker_uses_the_instructions_that_were_pinned_at_the_start(lab: Lab) -> None:
    """A worker that never saw the run queries it for the conversation and the instructions."""
    queue = f"handed-on-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    away = Failure(status=503, headers={"retry-after-ms": "1000"})
    turns = [call("now"), Turn(text="done", fail_first=[away])]
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        handle = await at.start(turns, agent="asked", metadata={"who": "Ada"})
        await lab.model.wait_for_requests(2, model=handle.id)
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        ran = await at.look(handle)
    assert ran.result["output"] == "done"
    assert len(ran.requests) == 3
    assert ran.requests[1].body == ran.requests[2].body
    assert b"You serve Ada." in ran.requests[2].body
