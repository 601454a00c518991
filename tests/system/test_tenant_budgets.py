"""Budgets of tenants on a real server: what is spent is never much more, and runs over the budget wait or end."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle

from mulligan import InvalidRunInputError, error_of
from mulligan.activities.budgets import tenant_budgets
from mulligan.devserver import DevServer
from mulligan.wire.budgets import SPENT_QUERY, budget_id
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.command_fixtures import Run
from tests.support.compaction_agents import is_summing_up
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.temporal import environment_of
from tests.unit.test_paused_answers import FOUND, USE, message, text

PRICES = {"models": {name: {"input": 100_000, "output": 0} for name in ("paid", "paid-boss", "paid-summary")}}
"""An answer of the scripted model has 10 tokens of input: 1 USD."""
Handle = WorkflowHandle[Any, Any]


class Office:
    """A worker whose tenants have budgets."""

    def __init__(self, lab: Lab, file: Path) -> None:
        self.lab, self.file, self.queue = lab, file, f"budgets-{uuid.uuid4().hex[:6]}"
        self.tenant = f"acme-{uuid.uuid4().hex[:6]}"
        self._changes = 0

    def set(self, usd: float, over_budget: str = "wait") -> None:
        """Write the budget of the tenant; each other one may spend 1,000 USD."""
        self._changes += 1
        self.file.write_text(f'over_budget = "{over_budget}"\n[usd_per_day]\n{self.tenant} = {usd}\n"*" = 1000\n')
        os.utime(self.file, (self._changes, self._changes))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        loaded = load(["tests.support.budget_agents"])
        async with running_worker(self.lab.client, loaded, self.lab.telemetry, self.queue):
            yield

    async def start(self, agent: str = "spender", tenant: str | None = None, **fields: Any) -> Handle:
        given = {"agent": agent, "prompt": "Go.", "tenant": tenant or self.tenant, **fields}
        return await self.lab.client.start_workflow(
            "AgentWorkflow", given, id=f"budget-{uuid.uuid4().hex[:8]}", task_queue=self.queue
        )

    async def spent(self) -> float:
        handle = self.lab.client.get_workflow_handle(budget_id(self.tenant, datetime.now(UTC).date()))
        return float((await handle.query(SPENT_QUERY))["usd"])


@pytest.fixture
def office(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Office:
    """No worker yet. Runs that wait ask again after 0.2 s."""
    prices, file = tmp_path / "prices.json", tmp_path / "budgets.toml"
    prices.write_text(json.dumps(PRICES))
    for name, value in {**lab.model.environment(), "MULLIGAN_PRICES": prices, "MULLIGAN_BUDGETS": file}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("BUDGET_FIRST", "BUDGET_LONGEST", "BUDGET_SPREAD"):
        monkeypatch.setattr(limits, name, 0.2)
    office = Office(lab, file)
    office.set(1)
    return office


async def waits(handle: Handle) -> dict[str, Any]:
    """What a run waits for, once it waits for a budget."""
    while True:
        waiting = (await handle.query("progress"))["waiting_for"]
        if waiting and "USD" in waiting["detail"]:
            return dict(waiting)
        await asyncio.sleep(0.05)


async def test_many_runs_spend_no_more_than_the_budget_and_the_calls_in_flight(office: Office) -> None:
    """Other tenants are not affected, and every run that had no budget left says so."""
    budget, runs, calls = 10, 40, 0

    def turn(_request: dict[str, Any], number: int) -> Turn:
        nonlocal calls
        calls += 1
        return Turn(calls=[("look", "{}", None)], delay=0.1) if number < 2 else Turn("done", delay=0.1)

    office.lab.model.script("paid", turn)
    office.set(budget, "stop")
    async with office.worker():
        handles = [await office.start() for _ in range(runs)]
        results = await asyncio.gather(*(handle.result() for handle in handles))
        statuses = [result["status"] for result in results]
        assert set(statuses) <= {"completed", "max_cost"}
        assert statuses.count("max_cost") > runs / 2
        spent = sum(result["cost"] for result in results)
        assert spent == calls
        assert budget <= spent <= budget + runs
        assert await office.spent() == spent
        again = await (await office.start()).result()
        assert (again["status"], again["steps"]) == ("max_cost", 0)
        other = await (await office.start(tenant="another")).result()
        assert (other["status"], other["cost"]) == ("completed", 3)
        assert calls == spent + 3


async def test_no_call_begins_once_the_budget_is_spent(office: Office) -> None:
    """One run after the other: the calls in flight are one, so the budget is exceeded by nothing."""
    office.lab.model.script("paid", [call("look"), DONE])
    office.set(3, "stop")
    async with office.worker():
        results = [await (await office.start()).result() for _ in range(4)]
    assert [(result["status"], result["steps"]) for result in results] == [
        ("completed", 2), ("max_cost", 1), ("max_cost", 0), ("max_cost", 0),
    ]  # fmt: skip


async def test_a_run_waits_until_the_budget_is_raised(office: Office) -> None:
    """Through the end of its worker; it says what it waits for, and each step begins once."""
    office.lab.model.script("paid", [call("look"), DONE])
    async with office.worker():
        handle = await office.start()
        waiting = await waits(handle)
    assert waiting["kind"] == "timer"
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    assert waiting["until"].startswith(tomorrow.isoformat())
    assert waiting["detail"].startswith(
        f"waiting, as tenant `{office.tenant}` has spent 1.00 of its 1.00 USD of the day, since "
    )
    async with office.worker():
        await waits(handle)
        office.set(2)
        result = await handle.result()
        events = (await handle.query("events"))["events"]
    assert (result["status"], result["cost"]) == ("completed", 2)
    assert [event["step"] for event in events if event["type"] == "step_started"] == [1, 2]


async def test_a_new_day_has_a_budget_of_its_own(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.lab.model.script("paid", [call("look"), DONE])
    async with office.worker():
        handle = await office.start()
        await waits(handle)
        tomorrow = datetime.now(UTC).date() + timedelta(days=1)
        monkeypatch.setattr(tenant_budgets, "today", lambda: tomorrow)
        result = await handle.result()
        assert (result["status"], result["cost"]) == ("completed", 2)
        assert await office.spent() == 1
        handle = office.lab.client.get_workflow_handle(budget_id(office.tenant, tomorrow))
        assert (await handle.query(SPENT_QUERY)) == {"day": tomorrow.isoformat(), "usd": 1.0, "calls": 1}


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_a_run_that_waits_can_be_ended(office: Office, end: str) -> None:
    office.lab.model.script("paid", [call("look"), DONE])
    async with office.worker():
        handle = await office.start()
        await waits(handle)
        if end == "stop":
            await handle.execute_update("stop", {})
            assert (await handle.result())["status"] == "stopped"
        else:
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()


async def test_a_run_and_the_sum_continue_as_new(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits, and with the money that was spent before."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    monkeypatch.setattr(limits, "BUDGET_SIGNALS", 2)
    office.lab.model.script("paid", [call("look")] * 4 + [DONE])
    office.set(4)
    async with office.worker():
        handle = await office.start()
        first = (await handle.describe()).run_id
        while (await office.lab.client.get_workflow_handle(handle.id).describe()).run_id == first:
            await asyncio.sleep(0.1)
        handle = office.lab.client.get_workflow_handle(handle.id)
        await waits(handle)
        assert await office.spent() == 4
        office.set(5)
        assert (await handle.result())["cost"] == 5


async def test_what_sub_agents_and_summaries_spend_counts(office: Office) -> None:
    office.lab.model.script("paid", [DONE])
    office.lab.model.script("paid-boss", [call("spender", '{"prompt": "Go."}'), DONE])
    office.set(2, "stop")
    async with office.worker():
        result = await (await office.start("boss")).result()
        assert (result["status"], result["steps"], await office.spent()) == ("max_cost", 1, 2)


async def test_a_run_waits_before_a_summary(office: Office) -> None:
    """The summary costs as a step does, and the step after it begins once, though the run waited before it began."""
    office.lab.model.script(
        "paid",
        lambda body, _: Turn("so far") if is_summing_up(body) else Turn(calls=[("read", "{}", None)]),
    )
    office.set(2)
    async with office.worker():
        handle = await office.start("summing_reader", max_steps=3)
        await waits(handle)
        assert await office.spent() == 2
        office.set(100)
        result = await handle.result()
        events = [
            (event["type"], event["step"]) for event in (await handle.query("events"))["events"] if "step" in event
        ]
        assert result["cost"] == await office.spent() == 4
    assert [each for each in events if each[0] in ("compacted", "step_started")] == [
        ("step_started", 1), ("step_started", 2), ("compacted", 3), ("step_started", 3),
    ]  # fmt: skip


async def test_an_answer_is_paid_once_if_the_sum_was_ended(office: Office) -> None:
    """Somebody terminates the workflow that adds up: the next answer continues its sum."""
    office.lab.model.script("paid", [call("look"), call("look"), DONE])
    async with office.worker():
        handle = await office.start()
        await waits(handle)
        day = datetime.now(UTC).date()
        await office.lab.client.get_workflow_handle(budget_id(office.tenant, day)).terminate()
        office.set(3)
        result = await handle.result()
        assert (result["status"], result["cost"], await office.spent()) == ("completed", 3, 3)
        described = await office.lab.client.get_workflow_handle(budget_id(office.tenant, day)).describe()
    assert described.status == WorkflowExecutionStatus.RUNNING


async def test_a_budget_needs_prices(office: Office) -> None:
    async with office.worker():
        with pytest.raises(WorkflowFailureError) as failed:
            await (await office.start("unpriced")).result()
        error = error_of(failed.value)
        assert isinstance(error, InvalidRunInputError)
        assert "the budget of its tenant limits this run, but the price of openai-chat:unpriced" in error.message


async def test_the_command_shows_what_tenants_have_spent(office: Office, mulligan: Run, temporal: DevServer) -> None:
    office.lab.model.script("paid", [DONE])
    async with office.worker():
        await (await office.start()).result()
        env = {**environment_of(temporal), "MULLIGAN_BUDGETS": str(office.file)}
        shown = await mulligan("budget", office.tenant, **env)
        assert f"{office.tenant}: 1.00 of 1.00 USD spent on {datetime.now(UTC).date()} (UTC), 1 model call" in shown.out
        as_json = json.loads((await mulligan("budget", "--json", **env)).out)
        assert {"tenant": office.tenant, "usd": 1.0, "budget": 1.0, "calls": 1}.items() <= next(
            each for each in as_json if each["tenant"] == office.tenant
        ).items()
        nobody = await mulligan("budget", "nobody", **env)
        assert "nobody: 0.00 of 1,000.00 USD" in nobody.out


async def test_calls_of_a_provider_are_counted(office: Office, tmp_path: Path) -> None:
    """Two searches of 0.25 USD, beside the answer of 1 USD."""
    prices = {**PRICES["models"], "anthropic:web_search": {"input": 0, "output": 0, "calls": 250}}
    (tmp_path / "prices.json").write_text(json.dumps({"models": prices}))
    again = {**USE, "id": "srv_2"}
    body = message(USE, FOUND, again, {**FOUND, "tool_use_id": "srv_2"}, text("Otters swim."))
    office.set(100)
    office.lab.model.script("paid", lambda request, nth: Turn(failure=Failure(status=200, body=body)))
    async with office.worker():
        handle = await office.start("searcher")
        result = await handle.result()
        assert result["cost"] == 1.5
        assert await office.spent() == 1.5
