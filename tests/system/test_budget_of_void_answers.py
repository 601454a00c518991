"""Answers that never become whole are paid for, too: a tenant's budget counts what has arrived of them, each attempt once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from mulligan.devserver import DevServer
from mulligan.wire.budgets import SPENT_QUERY, Spent, budget_id
from mulligan.wire.event_types import LIVE_TEXT
from mulligan.workflows import limits
from tests.support.openai_stream import Break
from tests.support.openai_turn import Failure, Turn, Usage
from tests.support.worker_process import worker_process
from tests.system.test_tenant_budgets import Handle, Office, office

__all__ = ["office"]

APIS = ["openai", "openai-chat", "anthropic", "google"]
TEXT = "An answer that is cut off in its middle, or read to its end. " * 20
GATE = 60
"""The number of the event before which a stream waits: some of the text has arrived then, through each API."""
USAGE = Usage(input_tokens=50, output_tokens=400)
PRICE, BYTES_PER_TOKEN = 0.01, 4
"""USD for each token."""
WHOLE = (USAGE.input_tokens + USAGE.output_tokens) * PRICE


@pytest.fixture
def counting(office: Office, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Office:
    """Each token has a price, and the budget is larger than what any test spends."""
    prices = tmp_path / "all-prices.json"
    prices.write_text(json.dumps({"models": {"paid": {"input": PRICE * 1e6, "output": PRICE * 1e6}}}))
    monkeypatch.setenv("MULLIGAN_PRICES", str(prices))
    monkeypatch.setattr(limits, "STOP_GRACE", timedelta(seconds=0.1))
    office.set(1_000)
    return office


async def spent(office: Office) -> Spent:
    """What is counted. The worker before this one has ended, and so have its activities."""
    handle = office.lab.client.get_workflow_handle(budget_id(office.tenant, datetime.now(UTC).date()))
    async with office.worker():
        return Spent.model_validate(await handle.query(SPENT_QUERY))


async def begin(office: Office, agent: str = "spender", **fields: Any) -> Handle:
    """Start a run with a prompt of its own: the server counts the attempts of each conversation."""
    return await office.start(agent, prompt=f"Go, {office.tenant}.", **fields)


async def live_text(office: Office, handle: Handle) -> str:
    """The text of the answer that the model is writing, once there is some and the stream waits."""
    while True:
        described = await handle.describe()
        assert described.status == WorkflowExecutionStatus.RUNNING
        for each in described.raw_description.pending_activities:
            details = await office.lab.client.data_converter.decode(list(each.heartbeat_details.payloads))
            for detail in details:
                if isinstance(detail, dict) and (live := detail.get(LIVE_TEXT)):
                    return str(live["text"])
        await asyncio.sleep(0.05)


async def retried(handle: Handle) -> None:
    """Wait until the model call is in its second attempt."""
    while True:
        described = await handle.describe()
        if any(each.attempt == 2 for each in described.raw_description.pending_activities):
            return
        await asyncio.sleep(0.05)


async def whole(office: Office, api: str) -> tuple[str, dict[str, Any]]:
    office.lab.model.script("paid", [Turn(TEXT, usage=USAGE)])
    return "", await (await begin(office, model=f"{api}:paid")).result()


async def cancelled(office: Office, api: str) -> tuple[str, dict[str, Any]]:
    office.lab.model.script("paid", [Turn(TEXT, usage=USAGE, gates={GATE: asyncio.Event()})])
    handle = await begin(office, model=f"{api}:paid")
    text = await live_text(office, handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    return text, {"cost": 0}


async def stopped(office: Office, api: str) -> tuple[str, dict[str, Any]]:
    office.lab.model.script("paid", [Turn(TEXT, usage=USAGE, gates={GATE: asyncio.Event()})])
    handle = await begin(office, model=f"{api}:paid")
    text = await live_text(office, handle)
    await handle.execute_update("stop", {})
    return text, await handle.result()


async def timed_out(office: Office, api: str) -> tuple[str, dict[str, Any]]:
    gate = asyncio.Event()
    office.lab.model.script("paid", [Turn(TEXT, usage=USAGE, gates={GATE: gate})])
    handle = await begin(office, "hasty", model=f"{api}:paid")
    text = await live_text(office, handle)
    await retried(handle)
    gate.set()
    return text, await handle.result()


async def broken(office: Office, api: str) -> tuple[str, dict[str, Any]]:
    drop = asyncio.Event()
    office.lab.model.script("paid", [Turn(TEXT, usage=USAGE, break_first=[Break(GATE, wait=drop, drop=True)])])
    handle = await begin(office, model=f"{api}:paid")
    text = await live_text(office, handle)
    drop.set()
    return text, await handle.result()


ENDS: list[Callable[[Office, str], Any]] = [whole, cancelled, stopped, timed_out, broken]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_each_attempt_is_counted_once_as_far_as_its_answer_has_arrived(
    counting: Office, api: str, end: Callable[[Office, str], Any]
) -> None:
    """The run's own cost is that of its whole answers, which are in the budget as well, and no estimate is beside them."""
    async with counting.worker():
        text, result = await end(counting, api)
    total = await spent(counting)
    assert result["cost"] in (0, WHOLE)
    assert round(total.usd - total.estimated_usd, 6) == result["cost"]
    assert total.calls == bool(text) + bool(result["cost"])
    if text:
        assert TEXT.startswith(text)
        assert total.estimated_usd > len(text) / BYTES_PER_TOKEN * PRICE
    else:
        assert total.estimated_usd == 0


async def test_an_attempt_that_was_killed_with_its_worker_is_counted_by_the_next(
    counting: Office, temporal: DevServer
) -> None:
    """By the text that its heartbeats have told the run's followers."""
    gate = asyncio.Event()
    counting.lab.model.script("paid", [Turn(TEXT, usage=USAGE, gates={GATE: gate})])
    async with worker_process("tests.support.budget_agents", counting.queue, temporal) as first:
        handle = await begin(counting)
        text = await live_text(counting, handle)
        first.kill()
        await first.wait()
    gate.set()
    async with counting.worker():
        result = await handle.result()
    total = await spent(counting)
    assert (result["cost"], total.calls) == (WHOLE, 2)
    assert round(total.usd - total.estimated_usd, 6) == WHOLE
    assert total.estimated_usd > len(text) / BYTES_PER_TOKEN * PRICE


async def test_a_request_that_is_refused_costs_nothing(counting: Office) -> None:
    counting.lab.model.script("paid", [Turn(TEXT, usage=USAGE, fail_first=[Failure(429), Failure(503)])])
    async with counting.worker():
        result = await (await begin(counting)).result()
    total = await spent(counting)
    assert (total.usd, total.calls, total.estimated_usd) == (result["cost"], 1, 0)


async def test_a_background_response_that_is_cancelled_is_counted(counting: Office) -> None:
    gate = asyncio.Event()
    counting.lab.model.script("paid", [Turn(TEXT, usage=USAGE, gates={GATE: gate})])
    async with counting.worker():
        handle = await begin(counting, "patient")
        while not counting.lab.model.background.of("paid"):
            await asyncio.sleep(0.05)
        await live_text(counting, handle)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        # Another workflow, which begins a second later, cancels the response, counts and deletes it in this order.
        [response] = counting.lab.model.background.of("paid")
        while not response.is_deleted:
            await asyncio.sleep(0.05)
    total = await spent(counting)
    assert total.calls == 1
    assert total.usd == total.estimated_usd > 0


async def test_an_estimate_begins_with_what_the_provider_has_counted_last(counting: Office) -> None:
    """The second call sends the 9,000 tokens of the first one, in whatever words, and its result."""
    gates, first = {GATE: asyncio.Event()}, Usage(input_tokens=8_900, output_tokens=100)
    counting.lab.model.script("paid", [Turn(calls=[("look", "{}", "c1")], usage=first), Turn(TEXT, gates=gates)])
    async with counting.worker():
        handle = await begin(counting)
        await live_text(counting, handle)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    total = await spent(counting)
    assert round(total.usd - total.estimated_usd, 6) == 9_000 * PRICE
    assert 9_000 < total.estimated_usd / PRICE < 9_000 + len(TEXT)
