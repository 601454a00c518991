"""Record histories for test_replay.py, all or those with a name: each kind of thing that a history contains, once.

uv run python -m tests.replay.record VERSION [NAME]…

The files of a release (released.sha256) stay as they are: only its own checkout could record what it did. What a later version schedules in
another way is recorded as files of that version, which may be recorded again until its release.
One is not recorded here, since a busy server has to bring it about (decided_as_it_continues): updates came to a continued run
with its first task, and stand behind that task in its history.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from mulligan import Agent, ToolCall, ToolContext, connect, fork_run, resume_run
from mulligan.client.read_agents import AgentReader
from mulligan.client.served_agents import ServedAgents, read_other_workers
from mulligan.devserver import temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.wire.agent_list import AGENTS_WORKFLOW
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.replay.record_models import (
    record_batches,
    record_budgets,
    record_fallbacks,
    record_features_without_commands,
    record_tenant_days,
    record_withdrawn_call,
)
from tests.replay.record_workflows import (
    record_agent_file,
    record_clean_ups,
    record_experiment,
    record_question_in_call,
    record_removed_attributes,
    record_rules,
    record_sub_runs,
    record_undos,
    record_user_workflow,
)
from tests.replay.recording import (
    CONTINUE_AFTER,
    MESSAGES,
    MODULE,
    UPDATES,
    Handle,
    run_and_save,
    save,
    say,
    serving,
    start_run,
    support,
)
from tests.support.compaction_agents import read_before, reading
from tests.support.lab import DONE, call
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.people_agents import refund

REFUND = '{"order": 7, "amount": {"euros": 12.5}}'

SCRIPT = """import asyncio
found = await asyncio.gather(get_order(1), get_order(-2), note("x"))
try:
    await get_order(99)
except ToolError as error:
    print(error)
print(await refund(7))
found[1]["total"]
"""

LONG_SCRIPT = """await note("x")
print(await refund(7))
await pay(3)
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
            *MESSAGES,
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
            *MESSAGES,
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
            *MESSAGES,
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
            *MESSAGES,
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
    "code_mode": {
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
    "edited_for_a_role": {
        MODULE: "edited_agents",
        "turns": [call("buy", '{"what": "lamps", "euros": 50}', "b"), DONE],
        "agent": "buyer",
        CONTINUE_AFTER: 60,
        UPDATES: [
            (
                "decide",
                {"call_id": "b", "decision": "approve", "roles": [], "arguments": {"what": "lamps", "euros": 500}},
            ),
            *MESSAGES,
            ("decide", {"call_id": "b", "decision": "approve"}),
        ],
    },
    "code_mode_continued": {
        MODULE: "code_agents",
        "turns": [call("run_code", json.dumps({"code": LONG_SCRIPT}), "t"), DONE],
        "agent": "coder",
        CONTINUE_AFTER: 60,
        UPDATES: [
            ("asked", {"call_id": "t.2"}),
            *MESSAGES,
            ("decide", {"call_id": "t.2", "decision": "approve"}),
        ],
    },
    "handed_over_continued": {
        MODULE: "handoff_agents",
        "turns": [
            call("transfer_to_desk"),
            call("transfer_to_reception"),
            *[call("look_up", '{"order": 7}')] * 4,
            DONE,
        ],
        "agent": "reception",
        "api": "openai",
        CONTINUE_AFTER: 40,
    },
    "found_continued": {
        MODULE: "tool_search_agents",
        "turns": [
            call("find_tools", '{"query": "weather in a city"}'),
            *[call("get_weather", '{"city": "Rome"}')] * 6,
            DONE,
        ],
        "agent": "guide",
        CONTINUE_AFTER: 40,
    },
    "cleared": {
        MODULE: "compaction_agents",
        "turns": reading(9),
        "agent": "forgetful_page_reader",
        "max_steps": 20,
        CONTINUE_AFTER: 60,
    },
    "input_refused": {
        MODULE: "guardrail_agents",
        "turns": [DONE],
        "agent": "teacher",
        "prompt": "Solve 2x = 4.",
    },
    "answer_refused": {
        MODULE: "guardrail_agents",
        "turns": [call("add", '{"a": 1, "b": 2}'), Turn(text="Call 555.")],
        "agent": "teacher",
    },
    "output_validated": {
        MODULE: "guardrail_agents",
        "turns": [call("Query", '{"sql": "DROP x"}'), call("Query", '{"sql": "SELECT 1"}')],
        "agent": "analyst",
    },
    "answer_validated": {
        MODULE: "guardrail_agents",
        "turns": [Turn(text="hm"), Turn(text="hm"), Turn(text="Well.")],
        "agent": "shouter",
        CONTINUE_AFTER: 30,
    },
    "isolated": {
        MODULE: "isolated_agents",
        "turns": [call("greet", '{"name": "Ada"}'), DONE],
        "agent": "isolated",
    },
    "own_feature": {MODULE: "one_word_feature", "turns": [Turn(text="Two words.")], "agent": "strict"},
}
"""Runs on a server and a worker of their own, as agents of several modules have equal names."""
TWO_TURNS = "two_turns"


async def record(version: str, names: Sequence[str]) -> None:
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
                await run_and_save(client, model, version, name, given)
            if names and TWO_TURNS not in names:
                return
            models = []
            for letter, turns in {"a": [call("now"), DONE, call("clik"), DONE], "b": [DONE]}.items():
                model.script(f"two-{letter}", turns)
                models.append(f"openai-chat:two-{letter}")
            handle = await client.start_workflow("TwoTurns", models, id="two", task_queue="agents")
            await handle.result()
            await save(client, "two", f"{version}-{TWO_TURNS}")


async def record_other_agents(version: str) -> None:
    """Record a run whose agent one of two workers serves, which waits while only the other one runs; and their list."""
    limits.AGENT_START_TIMEOUT = timedelta(seconds=2)
    served = ServedAgents("agents", frozenset())
    async with temporal_server() as server:
        clients = [await connect(server.address, identity="recorder") for _ in range(2)]
        east, west = (load([f"tests.support.{side}_agents"]) for side in ("east", "west"))
        async with running_worker(clients[0], west, Telemetry(), "agents"):
            async with running_worker(clients[1], east, Telemetry(), "agents"):
                while len(await read_other_workers(clients[0], served)) < 2:
                    await asyncio.sleep(0.1)
                await AgentReader(clients[0], "agents").read()
                start = {"agent": "east_shipper", "prompt": "Go."}
                handle = await clients[0].start_workflow("AgentWorkflow", start, id="shipper", task_queue="agents")
                while not await handle.query("pending"):
                    await asyncio.sleep(0.1)
            await handle.execute_update("decide", {"call_id": "s", "decision": "approve"})
            while ((await handle.query("progress"))["waiting_for"] or {}).get("kind") != "worker":
                await asyncio.sleep(0.1)
            async with running_worker(clients[1], east, Telemetry(), "agents"):
                await handle.result()
        await save(clients[0], "shipper", f"{version}-other_agents")
        [listed] = [each.id async for each in clients[0].list_workflows(f'WorkflowType = "{AGENTS_WORKFLOW}"')]
        await save(clients[0], listed, f"{version}-agent_list")


async def record_cancelled_check(version: str) -> None:
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
        await save(client, "checked", f"{version}-cancelled_during_check")


async def record_forks(version: str) -> None:
    """Record forks of a run: to its end with recorded results, to a call that was not recorded, with live tools, and over
    continue-as-new; and a run that resumes it.
    """
    first = [call("now"), call("search_orders", '{"customer": "Ada"}')]
    async with serving(support("shop_agents"), continue_after=60) as (client, model):
        original = await start_run(client, model, "original", {"turns": [*first, DONE]})
        long = await start_run(client, model, "long", {"turns": [call("now")] * 9 + [DONE], "max_steps": 20})
        await asyncio.gather(original.result(), long.result())
        shapes: dict[str, tuple[Handle, list[Turn], dict[str, Any]]] = {
            "forked": (original, [call("now"), DONE], {"at": 1}),
            "diverged": (original, [call("now"), call("flaky")], {"at": 1}),
            "forked_live": (original, [*first, DONE], {"at": 2, "tools": "live"}),
            "forked_continued": (long, [call("now")] * 9 + [DONE], {"at": 1}),
        }
        for name, (source, turns, options) in shapes.items():
            model.script(name, turns)
            edits = {"prompt": "Go on.", "model": f"openai-chat:{name}"}
            handle = await fork_run(client, source.id, edits=edits, new_id=name, **options)
            await asyncio.gather(handle.result(), return_exceptions=True)
            await save(client, name, f"{version}-{name}")
        model.script("resumed", [*first, DONE, call("now"), DONE])
        resumed = await resume_run(client, original.id, "And now?", id="resumed", model="openai-chat:resumed")
        await resumed.result()
        await save(client, "resumed", f"{version}-resumed")


async def record_alone(name: str, version: str) -> None:
    """Record a run of `ALONE`."""
    given = ALONE[name]
    async with serving(support(given[MODULE]), given.get(CONTINUE_AFTER)) as (client, model):
        await run_and_save(client, model, version, name, given)


OTHERS: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    **{name: partial(record_alone, name) for name in ALONE},
    "forks": record_forks,
    "batches": record_batches,
    "batch_withdrawn": record_withdrawn_call,
    "fallbacks": record_fallbacks,
    "budgets": record_budgets,
    "tenant_days": record_tenant_days,
    "features_without_commands": record_features_without_commands,
    "other_agents": record_other_agents,
    "cancelled_during_check": record_cancelled_check,
    "undos": record_undos,
    "experiment": record_experiment,
    "rules": record_rules,
    "clean_ups": record_clean_ups,
    "sub_runs": record_sub_runs,
    "asked_in_call": record_question_in_call,
    "agent_file": record_agent_file,
    "user_workflow": record_user_workflow,
    "unlisted": record_removed_attributes,
}
"""What is recorded on a server of its own, by name."""


def record_named(version: str, names: Sequence[str]) -> None:
    """Record what is named, or everything if nothing is."""
    if not names or set(names) - OTHERS.keys():
        with patch.dict(os.environ):
            asyncio.run(record(version, [name for name in names if name not in OTHERS]))
    for name, recorder in OTHERS.items():
        if not names or name in names:
            with patch.dict(os.environ):
                asyncio.run(recorder(version))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    record_named(sys.argv[1], sys.argv[2:])
