"""Record histories for test_replay.py, all or those with a name: each kind of thing that a history contains, once.

uv run python -m tests.replay.record PREFIX [NAME]…

Before the first release they are recorded again whenever the code schedules something else. The prefix is the date.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mulligan import Agent, ToolCall, ToolContext, connect, fork_run
from mulligan.client.callback_tokens import RESPONSE, callback_tokens
from mulligan.client.served_agents import ServedAgents, read_other_workers
from mulligan.devserver import temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.conftest import DONE, call
from tests.support.batch_server import BatchServer
from tests.support.compaction_agents import read_before, reading
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.people_agents import refund

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent / "histories"

UPDATES, MODULE, REFUND = "updates", "module", '{"order": 7, "amount": {"euros": 12.5}}'

SCRIPT = """import asyncio
found = await asyncio.gather(get_order(1), get_order(-2), note("x"))
try:
    await get_order(99)
except ToolError as error:
    print(error)
print(await refund(7))
found[1]["total"]
"""

RUNS: dict[str, dict[str, Any]] = {
    "recovered": {
        "turns": [
            Turn(
                text="Let me see.",
                calls=[("click", '{"element": "#a"}', None), ("clik", "{}", None), ("explode", "{}", None)],
            ),
            call("search_orders", "{'customer': 'Ada',}"),
            call("hang_thread"),
            call("flaky"),
            DONE,
        ],
    },
    "out_of_steps": {"turns": [call("now")] * 3, "max_steps": 2},
    "policy_fails_the_run": {"turns": [call("clik")], "agent": "strict"},
    "continued": {"turns": [call("now")] * 12 + [DONE], "max_steps": 20},
    "structured": {
        "turns": [
            Turn(text="Twelve fifty."),
            Turn(calls=[("Refund", '{"order": 7, "amount": 12.5}', None), ("now", "{}", None)]),
            call("Refund", '{"order": 7, "amount": -1}'),
            call("Refund", "{'order': 7, 'amount': 12.5}"),
        ],
        "agent": "refund",
    },
    "written": {"turns": [Turn(text="Twelve."), Turn(text='{"order": 7, "amount": 12.5}')], "agent": "written"},
    "elsewhere": {"turns": [Turn(calls=[("deserted", "{}", None), ("now", "{}", None)]), DONE], "agent": "far"},
    "compacted": {"turns": reading(12), "agent": "page_reader", "max_steps": 20},
    "pictured": {"turns": reading(8), "agent": "album", "api": "openai", "max_steps": 20},
    "given": {"turns": reading(8), "agent": "page_reader", "messages": read_before(6), "prompt": "Which word was it?"},
    "sub_agents": {
        "turns": [
            Turn(
                calls=[
                    ("researcher", '{"prompt": "note 2"}', "a"),
                    ("lazy", '{"prompt": "What?"}', "b"),
                    ("hasty", '{"prompt": "wait /nowhere/at/all"}', "c"),
                    ("note", '{"text": "x"}', "d"),
                ]
            ),
            call("chief", '{"prompt": "deep What?"}', "e"),
            DONE,
        ],
        "agent": "lead",
        "max_total_tokens": 100_000,
    },
    "sub_agents_fail_the_run": {
        "turns": [
            Turn(
                calls=[
                    ("researcher", '{"prompt": "wait /nowhere/at/all"}', "a"),
                    ("lazy", '{"prompt": "What?"}', "b"),
                ]
            )
        ],
        "agent": "strict_lead",
    },
    "sub_agent_failed": {"turns": [Turn(calls=[("brittle", '{"prompt": "Go."}', "a")]), DONE], "agent": "lead"},
    "people": {
        "turns": [
            Turn(calls=[("refund", REFUND, "yes"), ("ask_person", '{"question": "?"}', "q"), ("refund", REFUND, "no")]),
            Turn(calls=[("hasty", "{}", "late"), ("discount", '{"percent": 5}', None)]),
            DONE,
        ],
        "agent": "desk",
        UPDATES: [
            ("send_message", {"text": "And hurry!", "id": "m"}),
            (
                "decide",
                {
                    "call_id": "yes",
                    "decision": "approve",
                    "by": "Ada",
                    "arguments": {"order": 7, "amount": {"euros": 5}},
                },
            ),
            ("answer", {"call_id": "q", "text": "!"}),
            ("decide", {"call_id": "no", "decision": "deny", "reason": "No."}),
        ],
    },
    "asked": {
        "turns": [Turn(calls=[("ask__book", '{"city": "Rome"}', "b"), ("ask__open_page", "{}", "p")]), DONE],
        "agent": "booker",
        UPDATES: [
            ("decide", {"call_id": "p", "decision": "approve"}),
            ("answer", {"call_id": "b", "text": '{"nights": 2}'}),
            ("decide", {"call_id": "p", "decision": "deny"}),
        ],
    },
    "waited": {
        "turns": [
            Turn(
                calls=[
                    ("discount", '{"percent": 5}', "d"),
                    ("refund", REFUND, "r"),
                    ("ask__book", '{"city": "Rome"}', "b"),
                ]
            ),
            DONE,
        ],
        "agent": "clerk",
        UPDATES: [
            *(("send_message", {"text": f"message {number}", "id": f"m{number}"}) for number in range(22)),
            ("decide", {"call_id": "r", "decision": "approve", "by": "Ada"}),
            ("answer", {"call_id": "b", "text": '{"nights": 2}'}),
        ],
    },
    "stopped": {
        "turns": [Turn(calls=[("refund", REFUND, "r"), ("nap", '{"seconds": 1}', "n")])],
        "agent": "desk",
        UPDATES: [("decide", {"call_id": "r", "decision": "approve"}), ("stop", {"reason": "lunch"})],
    },
    "cancelled": {
        "turns": [
            Turn(calls=[("nap", '{"seconds": 60}', "a"), ("refund", REFUND, "r"), ("nap", '{"seconds": 60}', "b")])
        ],
        "agent": "desk",
        UPDATES: [("cancel", {})],
    },
    "deferred": {
        "turns": [
            Turn(
                calls=[
                    ("order_report", '{"name": "a"}', "r"),
                    ("slow_start", "{}", "s"),
                    ("order_report", '{"name": 7}', "bad"),
                    ("note", "{}", "n"),
                ]
            ),
            Turn(calls=[("wait_until", '{"seconds": 3000}', "w"), ("quick_job", "{}", "q")]),
            Turn(calls=[("order_report", '{"name": "b"}', "x"), ("wait_until", '{"seconds": 0.1}', "t")]),
        ],
        "agent": "job_clerk",
        UPDATES: [
            ("complete", {"call_id": "s", "error": "Not today."}),
            *(("send_message", {"text": f"message {number}", "id": f"m{number}"}) for number in range(22)),
            ("complete", {"call_id": "r", "result": {"rows": 7}}),
            ("complete", {"call_id": "q", "result": "done"}),
            ("waits", {"call_id": "w"}),
            ("send_message", {"text": "Wake up!", "id": "w"}),
            ("waits", {"call_id": "x"}),
            ("stop", {"reason": "lunch"}),
        ],
    },
    "reminded": {
        "turns": [call("sign"), Turn(calls=[("sign", "{}", "s"), ("sign", "{}", "t")])],
        "agent": "desk",
        UPDATES: [
            ("reminded", {"times": 2}),
            *(("send_message", {"text": f"message {number}", "id": f"m{number}"}) for number in range(22)),
            ("reminded", {"times": 3}),
            ("decide_first", {"decision": "approve"}),
            ("decide", {"call_id": "s", "decision": "approve"}),
            ("reminded", {"times": 4}),
            ("stop", {"reason": "lunch"}),
        ],
    },
    "once": {
        "turns": [
            Turn(
                calls=[
                    ("pay", '{"amount": 5}', "a"),
                    ("pay", '{"amount": 5.0}', "b"),
                    ("note", '{"text": "x"}', "n"),
                    ("refund", '{"order": 7}', "r"),
                    ("refund", '{"order": 7}', "s"),
                ]
            ),
            Turn(calls=[("pay", '{"amount": 5}', "c"), ("pay", '{"amount": 6}', "d")]),
            DONE,
        ],
        "agent": "writer",
        UPDATES: [
            *(("send_message", {"text": f"message {number}", "id": f"m{number}"}) for number in range(22)),
            ("decide", {"call_id": "r", "decision": "approve", "arguments": {"order": 8}}),
        ],
    },
    "background": {
        "turns": [
            Turn(calls=[("count_words", '{"text": "a b"}', None)], delay=1, background_ends=["server_error"]),
            Turn(text="Two.", delay=8),
        ],
        "agent": "thinker",
        "api": "openai",
        UPDATES: [("response_ended_of", {"response": 1}), ("send_message", {"text": "And?", "id": "m"})],
    },
    "background_stopped": {
        "turns": [Turn(text="Never.", delay=3600)],
        "agent": "thinker",
        "api": "openai",
        UPDATES: [("response_ended_of", {"response": 0}), ("stop", {"reason": "lunch"})],
    },
    "silent": {"turns": [Turn(text=""), Turn(text="")]},
}
ALONE: dict[str, dict[str, Any]] = {
    "scripted": {
        MODULE: "code_agents",
        "turns": [
            call("run_code", json.dumps({"code": "oops("}), "s"),
            call("run_code", json.dumps({"code": SCRIPT}), "t"),
            DONE,
        ],
        "agent": "coder",
        UPDATES: [("decide", {"call_id": "t.5", "decision": "approve", "arguments": {"order": 8}})],
    },
    "handed_over": {
        MODULE: "handoff_agents",
        "turns": [
            Turn(calls=[("look_up", '{"order": 7}', "l"), ("transfer_to_desk", "{}", "d")]),
            Turn(calls=[("refund", '{"order": 7}', "r"), ("transfer_to_reception", "{}", "b")]),
            DONE,
        ],
        "agent": "reception",
        "api": "openai",
        UPDATES: [("decide", {"call_id": "r", "decision": "approve"})],
    },
    "found": {
        MODULE: "tool_search_agents",
        "turns": [
            call("find_tools", '{"query": "weather in a city"}'),
            call("get_weather", '{"city": "Rome"}'),
            call("get_trains", '{"place": "Rome"}'),
            DONE,
        ],
        "agent": "guide",
    },
    "guarded": {
        MODULE: "guarded_agents",
        "turns": [
            call("read_mail", '{"box": "in"}', "m"),
            call("read_account", "{}", "a"),
            call("pay", '{"to": "Ada", "euros": 5}', "p"),
            DONE,
        ],
        "agent": "clerk",
        UPDATES: [("decide", {"call_id": "p", "decision": "approve"})],
    },
}
"""Runs on a server and a worker of their own, as agents of several modules have equal names."""
TWO_TURNS = "two_turns"


async def record(prefix: str, names: Sequence[str]) -> None:
    """Record the named runs, or all of them if none is named. Each run of a chain has a file of its own."""
    # These are durations of timers only, which a replay does not compare.
    limits.POLL_FIRST, limits.POLL_LONGEST = 0.1, 5.0
    async with (
        temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=60"]) as server,
        OpenAIServer() as model,
    ):
        os.environ.update(model.environment())
        client = await connect(server.address, identity="recorder")
        modules = (
            "shop_agents",
            "structured_output_agents",
            "remote_tool_agents",
            "sequential_turns_workflow",
            "compaction_agents",
            "sub_agent_teams",
            "people_agents",
            "mcp_agents",
            "deferred_agents",
            "background_agents",
            "once_agents",
        )
        loaded = load([f"tests.support.{name}" for name in modules])
        async with running_worker(client, loaded, Telemetry(), "agents"):
            for name, given in RUNS.items():
                if names and name not in names:
                    continue
                await run_and_save(client, model, prefix, name, given)
            if names and TWO_TURNS not in names:
                return
            models = []
            for letter, turns in {"a": [call("now"), DONE, call("clik"), DONE], "b": [DONE]}.items():
                model.script(f"two-{letter}", turns)
                models.append(f"openai-chat:two-{letter}")
            handle = await client.start_workflow("TwoTurns", models, id="two", task_queue="agents")
            await handle.result()
            await save(client, "two", f"{prefix}-{TWO_TURNS}")


async def record_batches(prefix: str) -> None:
    """Record a run whose model is called in batches, its collector, and one of the batches."""
    async with temporal_server() as server, BatchServer() as provider:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "test-key"}
            os.environ |= {
                "MULLIGAN_CONTENT_DIR": folder,
                "MULLIGAN_BATCH_SECONDS": "1",
                "MULLIGAN_BATCH_POLL_SECONDS": "0.5",
            }
            client = await connect(server.address, identity="recorder")
            async with running_worker(client, load(["tests.support.batch_agents"]), Telemetry(), "agents"):
                start = {"agent": "clerk", "prompt": "count"}
                handle = await client.start_workflow("AgentWorkflow", start, id="batched", task_queue="agents")
                await handle.result()
                await save(client, "batched", f"{prefix}-batched")
                found = {run.workflow_type: run.id async for run in client.list_workflows()}
                await save(client, found["MulliganBatchCollector"], f"{prefix}-batch_collector")
                await save(client, found["MulliganBatch"], f"{prefix}-batch")


async def record_budgets(prefix: str) -> None:
    """Record a run that waits because its tenant's budget is spent, and the workflow of the tenant's day."""
    limits.BUDGET_FIRST = limits.BUDGET_LONGEST = 0.5
    async with temporal_server() as server, OpenAIServer() as model:
        with tempfile.TemporaryDirectory() as folder:
            prices, budgets = Path(folder) / "prices.json", Path(folder) / "budgets.toml"
            prices.write_text('{"models": {"paid": {"input": 100000, "output": 0}}}')
            budgets.write_text("[usd_per_day]\nacme = 1\n")
            os.environ |= {**model.environment(), "MULLIGAN_PRICES": str(prices), "MULLIGAN_BUDGETS": str(budgets)}
            model.script("paid", [call("look"), DONE])
            client = await connect(server.address, identity="recorder")
            async with running_worker(client, load(["tests.support.budget_agents"]), Telemetry(), "agents"):
                start = {"agent": "spender", "prompt": "Go.", "tenant": "acme"}
                handle = await client.start_workflow("AgentWorkflow", start, id="over_budget", task_queue="agents")
                while "USD" not in str((await handle.query("progress"))["waiting_for"]):
                    await asyncio.sleep(0.1)
                await asyncio.sleep(2)
                budgets.write_text("[usd_per_day]\nacme = 2\n")
                await handle.result()
                await save(client, "over_budget", f"{prefix}-over_budget")
                found = {run.workflow_type: run.id async for run in client.list_workflows()}
                await save(client, found["MulliganTenantBudget"], f"{prefix}-tenant_budget")


async def record_other_agents(prefix: str) -> None:
    """Record a run whose agent one of two workers serves: it waits while only the other one runs."""
    limits.AGENT_START_TIMEOUT = timedelta(seconds=2)
    served = ServedAgents("agents", frozenset())
    async with temporal_server() as server:
        clients = [await connect(server.address, identity="recorder") for _ in range(2)]
        east, west = (load([f"tests.support.{side}_agents"]) for side in ("east", "west"))
        async with running_worker(clients[0], west, Telemetry(), "agents"):
            async with running_worker(clients[1], east, Telemetry(), "agents"):
                while len(await read_other_workers(clients[0], served)) < 2:
                    await asyncio.sleep(0.1)
                start = {"agent": "east_shipper", "prompt": "Go."}
                handle = await clients[0].start_workflow("AgentWorkflow", start, id="shipper", task_queue="agents")
                while not await handle.query("pending"):
                    await asyncio.sleep(0.1)
            await handle.execute_update("decide", {"call_id": "s", "decision": "approve"})
            while ((await handle.query("progress"))["waiting_for"] or {}).get("kind") != "worker":
                await asyncio.sleep(0.1)
            async with running_worker(clients[1], east, Telemetry(), "agents"):
                await handle.result()
        await save(clients[0], "shipper", f"{prefix}-other_agents")


async def record_cancelled_check(prefix: str) -> None:
    """Record a run that is cancelled while arguments that a person has edited are checked."""
    is_checking, is_recorded = threading.Event(), threading.Event()  # guards run on an event loop of their own

    async def slow_guard(checked: ToolCall, _: ToolContext) -> str | None:
        if '"order": 8' in checked.arguments:
            is_checking.set()
            await asyncio.to_thread(is_recorded.wait)
        return None

    async with temporal_server() as server, OpenAIServer() as model:
        os.environ.update(model.environment())
        client = await connect(server.address, identity="recorder")
        model.script("checked", [Turn(calls=[("refund", REFUND, "r")]), DONE])
        agent = Agent(name="slow", model="openai-chat:checked", tools=[refund], guard=slow_guard)
        async with running_worker(client, load_agents([agent], []), Telemetry(), "agents"):
            start = {"agent": "slow", "prompt": "Go."}
            handle = await client.start_workflow("AgentWorkflow", start, id="checked", task_queue="agents")
            edit = {"call_id": "r", "decision": "approve", "arguments": {"order": 8, "amount": {"euros": 5}}}
            update = asyncio.create_task(say(handle, "decide", edit))
            await asyncio.to_thread(is_checking.wait)
            await handle.cancel()
            await asyncio.gather(update, handle.result(), return_exceptions=True)
            is_recorded.set()
        await save(client, "checked", f"{prefix}-cancelled_during_check")


async def record_forks(prefix: str) -> None:
    """Record forks of a run: to its end with recorded results, and to a call that was not recorded."""
    async with temporal_server() as server, OpenAIServer() as model:
        os.environ.update(model.environment())
        client = await connect(server.address, identity="recorder")
        async with running_worker(client, load(["tests.support.shop_agents"]), Telemetry(), "agents"):
            model.script("original", [call("now"), call("search_orders", '{"customer": "Ada"}'), DONE])
            start = {"agent": "shop", "prompt": "Go.", "model": "openai-chat:original"}
            await (await client.start_workflow("AgentWorkflow", start, id="o", task_queue="agents")).result()
            for name, turns in {"forked": [call("now"), DONE], "diverged": [call("now"), call("flaky")]}.items():
                model.script(name, turns)
                edits = {"prompt": "Go on.", "model": f"openai-chat:{name}"}
                handle = await fork_run(client, "o", at=1, edits=edits, new_id=name)
                await asyncio.gather(handle.result(), return_exceptions=True)
                await save(client, name, f"{prefix}-{name}")


async def record_alone(name: str, prefix: str) -> None:
    """Record a run of `ALONE`."""
    async with temporal_server() as server, OpenAIServer() as model:
        os.environ.update(model.environment())
        client = await connect(server.address, identity="recorder")
        async with running_worker(client, load([f"tests.support.{ALONE[name][MODULE]}"]), Telemetry(), "agents"):
            await run_and_save(client, model, prefix, name, ALONE[name])


async def run_and_save(client: Any, model: OpenAIServer, prefix: str, name: str, given: dict[str, Any]) -> None:
    """Start a run, send its updates, and save its history when it has ended."""
    run_id = f"{name}-{uuid.uuid4().hex[:6]}"
    model.script(run_id, given["turns"])
    start = {"agent": "shop", "prompt": "Go.", "model": f"{given.get('api', 'openai-chat')}:{run_id}"}
    start |= {key: value for key, value in given.items() if key not in ("turns", "api", UPDATES, MODULE)}
    handle = await client.start_workflow("AgentWorkflow", start, id=run_id, task_queue="agents")
    for update, argument in given.get(UPDATES, ()):
        if update == "response_ended_of":
            await say_ended(handle, model, argument["response"])
        else:
            await say(handle, update, argument)
    await asyncio.gather(handle.result(), return_exceptions=True)
    await save(client, run_id, f"{prefix}-{name}")


OTHERS: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    **{name: partial(record_alone, name) for name in ALONE},
    "forks": record_forks,
    "batches": record_batches,
    "budgets": record_budgets,
    "other_agents": record_other_agents,
    "cancelled_during_check": record_cancelled_check,
}
"""What is recorded on a server of its own, by name."""


def record_named(prefix: str, names: Sequence[str]) -> None:
    """Record what is named, or everything if nothing is."""
    if not names or set(names) - OTHERS.keys():
        with patch.dict(os.environ):
            asyncio.run(record(prefix, [name for name in names if name not in OTHERS]))
    for name, recorder in OTHERS.items():
        if not names or name in names:
            with patch.dict(os.environ):
                asyncio.run(recorder(prefix))


async def say(handle: Any, update: str, argument: dict[str, Any]) -> None:
    """Send an update once its call waits, or a cancellation once calls run."""
    if update == "cancel":
        while len((await handle.query("progress"))["running"]) < 2:
            await asyncio.sleep(0.2)
        await handle.cancel()
        return
    if update == "reminded":
        while await reminders(handle) < argument["times"]:
            await asyncio.sleep(0.2)
        return
    if update == "decide_first":
        argument, update = {**argument, "call_id": (await handle.query("pending"))[0]["call_id"]}, "decide"
    if update in ("complete", "waits"):
        while not await deferred(handle, argument["call_id"]):
            await asyncio.sleep(0.02)
        if update == "complete":
            await handle.execute_update(update, argument)
        return
    kind = "question" if update == "answer" else None
    while "call_id" in argument and not any(
        wait["call_id"] == argument["call_id"]
        and kind in (None, wait["kind"])
        and (argument.get("decision") != "deny" or wait["kind"] == "approval" or wait.get("can_deny"))
        for wait in await handle.query("pending")
    ):
        await asyncio.sleep(0.1)
    await handle.execute_update(update, argument)


async def say_ended(handle: Any, model: OpenAIServer, number: int) -> None:
    """Say that the background response of that number has ended, as a webhook does."""
    while True:
        stored = model.background.of(handle.id)
        waits = (await handle.query("progress"))["waiting_for"] or {"detail": ""}
        if len(stored) > number and stored[number].id in waits["detail"]:
            break
        await asyncio.sleep(0.05)
    token = stored[number].request["metadata"]["mulligan"]
    call = await callback_tokens(lambda: handle._client).open(token, RESPONSE)
    assert call is not None
    fields = {"response_id": stored[number].id, "conversation": call.conversation, "trace_id": call.trace_id}
    await handle.execute_update("response_ended", fields)


async def reminders(handle: Any) -> int:
    """How many reminders the run has sent."""
    return sum(event["type"] == "reminder" for event in (await handle.query("events"))["events"])


async def deferred(handle: Any, call_id: str) -> bool:
    """Whether a deferred call waits."""
    steps = (await handle.query("steps"))["steps"]
    return any(call["id"] == call_id and call.get("deferred") for step in steps for call in step["tool_calls"])


async def save(client: Any, workflow_id: str, name: str) -> None:
    runs = [run async for run in client.list_workflows(f'WorkflowId = "{workflow_id}"')]
    for number, run in enumerate(sorted(runs, key=lambda run: run.start_time), 1):
        history = await client.get_workflow_handle(workflow_id, run_id=run.run_id).fetch_history()
        data = {"workflow_id": workflow_id, **json.loads(history.to_json())}
        file = FOLDER / (f"{name}.json" if len(runs) == 1 else f"{name}-{number}.json")
        # Names of task queues contain the name of the machine, stack traces its folders.
        text = json.dumps(data, indent=1)
        for ours, shown in ((f"@{socket.gethostname()}", "@recorder"), (f"{ROOT}/", ""), (sys.base_prefix, "python")):
            text = text.replace(ours, shown)
        file.write_text(text + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    record_named(sys.argv[1], sys.argv[2:])
