"""Recorders of runs whose model calls wait, fail or are not made: batches, budgets of tenants, lists of models."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio.client import Client

from mulligan import Agent, CallsInText, Skills, connect
from mulligan.devserver import temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.wire.batch import BATCH_COLLECTOR, BATCH_WORKFLOW
from mulligan.wire.budgets import ADD_COST, SPENT_QUERY, TENANT_BUDGET, Cost, Spent
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from mulligan.workflows.budgets.budgets import BudgetWait
from tests.replay.recording import MESSAGES, QUEUE, ROOT, Handle, run_and_save, save, say, serving, support
from tests.support.batch_server import BatchServer
from tests.support.lab import DONE, call
from tests.support.openai_turn import Failure, Turn
from tests.support.shop_agents import click, now

CALL_IN_TEXT = 'I look.\n```json\n{"action": "click", "action_input": {"selector": "#a"}}\n```'


@asynccontextmanager
async def batching(seconds: int, continue_after: int | None = None) -> AsyncIterator[tuple[Client, BatchServer]]:
    """A worker whose agents are called in batches. `seconds`: how long requests are gathered."""
    suggests = [f"limit.historyCount.suggestContinueAsNew={continue_after}"] if continue_after else []
    async with temporal_server(dynamic_config=suggests) as server, BatchServer() as provider:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "test-key"}
            os.environ |= {
                "MULLIGAN_CONTENT_DIR": folder,
                "MULLIGAN_BATCH_SECONDS": str(seconds),
                "MULLIGAN_BATCH_POLL_SECONDS": "0.5",
            }
            client = await connect(server.address, identity="recorder")
            async with running_worker(client, support("batch_agents"), Telemetry(), QUEUE):
                yield client, provider


async def start_batched(client: Client, name: str, prompt: str, agent: str = "clerk") -> Handle:
    """Start a run; its request is answered by its prompt (`BatchServer`)."""
    start = {"agent": agent, "prompt": prompt}
    return await client.start_workflow("AgentWorkflow", start, id=name, task_queue=QUEUE)


async def waits_for(handle: Handle, *words: str) -> None:
    """Wait until a run says, with these words, what it waits for."""
    while True:
        detail = str((await handle.query("progress"))["waiting_for"])
        if all(word in detail for word in words):
            return
        await asyncio.sleep(0.05)


async def ids_by_type(client: Client) -> dict[str, str]:
    """An id of a workflow of each type."""
    return {run.workflow_type: run.id async for run in client.list_workflows()}


async def record_batches(prefix: str) -> None:
    """Record a run whose model is called in batches, its collector, and one of the batches."""
    async with batching(1) as (client, _):
        await (await start_batched(client, "batched", "count")).result()
        await save(client, "batched", f"{prefix}-batched")
        found = await ids_by_type(client)
        await save(client, found[BATCH_COLLECTOR], f"{prefix}-batch_collector")
        await save(client, found[BATCH_WORKFLOW], f"{prefix}-batch")


async def record_withdrawn_call(prefix: str) -> None:
    """Record a run that is stopped before its request is submitted, and a collector that continues as new, and ends."""
    changed: dict[str, Any] = {"COLLECTOR_SIGNALS": 2}
    with patch.multiple(limits, **changed, COLLECTOR_IDLE=1.0):
        async with batching(4) as (client, _):
            kept, withdrawn = [await start_batched(client, f"batch_{name}", "x") for name in ("kept", "withdrawn")]
            for handle in (kept, withdrawn):
                await waits_for(handle, "in a batch")
            await withdrawn.execute_update("stop", {"reason": "lunch"})
            await asyncio.gather(withdrawn.result(), kept.result())
            await save(client, withdrawn.id, f"{prefix}-batch_withdrawn")
            collector = (await ids_by_type(client))[BATCH_COLLECTOR]
            await client.get_workflow_handle(collector).result()
            await save(client, collector, f"{prefix}-batch_collector_continued", changed)


async def record_fallbacks(prefix: str) -> None:
    """Record a run whose first model refuses, and one that continues as new while it waits for its second model."""
    agents = [Agent(name="weigher", model=["openai-chat:refuses", "openai-chat:answers"], tools=[now])]
    async with serving(load_agents(agents, [])) as (client, model):
        model.script("refuses", [Turn(failure=Failure(status=400))])
        model.script("answers", [call("now"), DONE])
        start = {"agent": "weigher", "prompt": "Go."}
        await client.execute_workflow("AgentWorkflow", start, id="fallback", task_queue=QUEUE)
        await save(client, "fallback", f"{prefix}-fallback")
    async with batching(2, continue_after=60) as (client, provider):
        provider.refuses_batches = provider.holds = True
        handle = await start_batched(client, "fallback_in_batches", "x", "careful_clerk")
        await waits_for(handle, "openai-chat:", "in a batch")
        provider.refuses_batches = False
        for update, argument in MESSAGES:
            await say(handle, update, argument)
        provider.holds = False
        await handle.result()
        await save(client, handle.id, f"{prefix}-fallback_in_batches")


@asynccontextmanager
async def spending(continue_after: int | None = None) -> AsyncIterator[tuple[Client, Path]]:
    """A worker whose tenant may spend 1 USD a day, which one model call costs, and the file that says so."""
    with tempfile.TemporaryDirectory() as folder:
        prices, budgets = Path(folder) / "prices.json", Path(folder) / "budgets.toml"
        prices.write_text('{"models": {"paid": {"input": 100000, "output": 0}}}')
        budgets.write_text("[usd_per_day]\nacme = 1\n")
        environment = {"MULLIGAN_PRICES": str(prices), "MULLIGAN_BUDGETS": str(budgets)}
        async with serving(support("budget_agents"), continue_after, **environment) as (client, model):
            model.script("paid", [call("look"), DONE])
            yield client, budgets


async def start_spender(client: Client, name: str) -> Handle:
    """Start a run, and wait until it waits for its tenant's budget."""
    start = {"agent": "spender", "prompt": "Go.", "tenant": "acme"}
    handle = await client.start_workflow("AgentWorkflow", start, id=name, task_queue=QUEUE)
    await waits_for(handle, "USD")
    return handle


async def record_budgets(prefix: str) -> None:
    """Record runs that wait because their tenant's budget is spent, and the workflow of the tenant's day.

    One continues as new between two tries, and one while it waits.
    """
    shapes: dict[str, tuple[float, int | None, list[Any]]] = {
        "over_budget": (0.5, None, []),
        "over_budget_for_long": (0.3, 40, []),
        "over_budget_with_messages": (5.0, 60, MESSAGES),
    }
    for name, seconds, continue_after, said in ((name, *shape) for name, shape in shapes.items()):
        # The default of the field was read from limits.py when the class was made.
        first = patch.dict(BudgetWait.__init__.__kwdefaults__, interval=seconds)
        with first, patch.multiple(limits, BUDGET_LONGEST=seconds):
            async with spending(continue_after) as (client, budgets):
                handle = await start_spender(client, name)
                for update, argument in said:
                    await say(handle, update, argument)
                if not said:
                    await asyncio.sleep(8 * seconds)
                budgets.write_text("[usd_per_day]\nacme = 20\n")
                await handle.result()
                await save(client, name, f"{prefix}-{name}")
                if name == "over_budget":
                    await save(client, (await ids_by_type(client))[TENANT_BUDGET], f"{prefix}-tenant_budget")


async def record_tenant_days(prefix: str) -> None:
    """Record the workflow of a tenant's day that continues as new, and that of a day that is over."""
    changed: dict[str, Any] = {"BUDGET_SIGNALS": 2}
    today = datetime.now(UTC).date()
    with patch.multiple(limits, **changed):
        async with serving(support("budget_agents")) as (client, _):
            handles = {
                days: await client.start_workflow(
                    TENANT_BUDGET,
                    Spent(day=today - timedelta(days=days)),
                    id=f"budget-{days}",
                    task_queue=QUEUE,
                    start_signal=ADD_COST,
                    start_signal_args=[Cost(usd=1, key="0")],
                )
                for days in (0, 3)
            }
            await handles[3].result()
            continued = client.get_workflow_handle(handles[0].id)
            for number in (1, 2):
                await continued.signal(ADD_COST, Cost(usd=1, key=f"{number}"))
                while (await continued.query(SPENT_QUERY))["usd"] <= number:
                    await asyncio.sleep(0.05)
            await save(client, "budget-0", f"{prefix}-tenant_budget_continued", changed)
            await save(client, "budget-3", f"{prefix}-tenant_budget_of_an_earlier_day", changed)


async def record_features_without_commands(prefix: str) -> None:
    """Record runs with features that schedule nothing of their own: skills, calls in the text of answers."""
    skills = ROOT / "tests/support/step_cost_skills"
    agents = [
        Agent(name="skilled", model="openai:m", features=[Skills(skills)]),
        Agent(name="writing", model="openai:m", tools=[click], features=[CallsInText()]),
    ]
    turns = {"skilled": call("read_skill", '{"name": "looking"}'), "writing": Turn(text=CALL_IN_TEXT)}
    names = {"skilled": "skills", "writing": "calls_in_text"}
    async with serving(load_agents(agents, [])) as (client, model):
        for agent, turn in turns.items():
            given = {"agent": agent, "turns": [turn, DONE]}
            await run_and_save(client, model, prefix, names[agent], given)
