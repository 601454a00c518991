"""Recorders of the workflows that workers serve beside runs, and of what runs and their people do with them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client

from mulligan import Agent, McpServer
from mulligan.client.experiments.start_experiment import start_experiment
from mulligan.client.rules import delete_rule, read_rules
from mulligan.client.undo.undo import read_result, start_undo
from mulligan.wire.approval_rules import rules_id
from mulligan.wire.clean_up_request import CLEAN_UP
from mulligan.wire.experiments import ExperimentContent
from mulligan.wire.undo import UndoOptions
from mulligan.worker.agent_folder import AgentFolder
from mulligan.worker.loading import load_agents
from mulligan.workflows import limits
from tests.live.test_removed_attributes import NAMES, approve
from tests.replay.recording import (
    QUEUE,
    UPDATES,
    Handle,
    deferred,
    run_and_save,
    save,
    say,
    serving,
    start_run,
    support,
)
from tests.support.compaction_agents import reading
from tests.support.lab import DONE, call
from tests.support.mcp_fixtures import http_server
from tests.support.openai_turn import Turn
from tests.support.undo_agents import lines

PAY, PAY_MORE = '{"to": "Ada", "euros": 5}', '{"to": "Ada", "euros": 6}'
MAIL = call("read_mail", '{"box": "in"}', "m1")


async def record_undos(prefix: str) -> None:
    """Record a run whose calls are undone, and undos: one that a failure ends, one that goes on, one that is cancelled."""
    turns = [
        Turn(calls=[("book", '{"room": "one"}', "b1"), ("mail", '{"to": "me"}', "m1")]),
        call("fragile", '{"part": "wheel"}', "f1"),
        call("undo_helper", '{"prompt": "Book."}', "h1"),
        call("hang", '{"room": "x"}', "x1"),
        *(call("place", f'{{"number": {number}}}', f"p{number}") for number in range(4)),
        DONE,
    ]
    desk = {"agent": "desk", "metadata": {"ledger": "ledger"}}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # the path of the ledger is in history
        async with serving(support("undo_agents"), continue_after=60) as (client, model):
            run = await run_and_save(client, model, prefix, "undone", {**desk, "turns": turns})
            Path("ledger.broken").touch()
            for name, options in {"undo_failed": {}, "undo": {"go_on": True, "lost": True}}.items():
                undo = await start_undo(client, run.id, UndoOptions(**options))
                await read_result(client, undo)
                await save(client, undo.id, f"{prefix}-{name}")
                Path("ledger.broken").unlink(missing_ok=True)
            slow = {**desk, "turns": [call("long_book", '{"room": "x"}', "l1"), DONE]}
            run = await start_run(client, model, "slow", slow)
            await run.result()
            undo = await start_undo(client, run.id, UndoOptions())
            while ("begin", "l1") not in [(each["what"], each["call"]) for each in lines(Path("ledger"))]:
                await asyncio.sleep(0.05)
            await undo.cancel()
            await asyncio.gather(undo.result(), return_exceptions=True)
            await save(client, undo.id, f"{prefix}-undo_cancelled")


async def record_experiment(prefix: str) -> None:
    """Record an experiment with a score and a limit of its cost, which continues as new."""
    with tempfile.TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.json"
        prices.write_text('{"models": {"paid": {"input": 100000, "output": 0}}}')
        loaded, environment = support("experiment_agents"), {"MULLIGAN_PRICES": str(prices)}
        async with serving(loaded, continue_after=60, **environment) as (client, model):
            run = await start_run(client, model, "source", {"agent": "talker", "turns": [DONE]})
            await run.result()
            model.script("paid", [DONE])
            content = ExperimentContent(runs=[run.id], repeat=8, fork={"edits": {"model": "openai-chat:paid"}})
            score = "tests.support.experiment_agents:is_right"
            plan = {"name": "measured", "concurrency": 2, "max_cost": 100.0, "score": score}
            experiment = await start_experiment(client, content, plan, QUEUE)
            await experiment.result()
            await save(client, experiment.id, f"{prefix}-experiment")


async def record_rules(prefix: str) -> None:
    """Record a run with a rule of its own, runs with rules of their tenant, and the workflow that has those.

    The first one continues as new with its rule, with foreign results and with results that are cleared; the last one with
    its rules, until they are deleted.
    """
    changed: dict[str, Any] = {"RULE_UPDATES": 2}
    reads = [call("read_account", "{}", f"a{number}") for number in range(8)]
    pays = [call("pay", PAY, "p1"), *reads, call("pay", PAY, "p2"), call("pay", PAY_MORE, "p3")]
    with patch.multiple(limits, **changed):
        async with serving(support("guarded_agents"), continue_after=60) as (client, model):
            run = await start_run(client, model, "rules", {"agent": "clerk", "turns": [MAIL, *pays, DONE]})
            await say(run, "decide", {"call_id": "p1", "decision": "approve", "by": "Ada", "remember": "run"})
            await say(run, "asked", {"call_id": "p3"})
            [rule] = await run.query("rules")
            await run.execute_update("forget_rule", {"name": rule["name"]})
            await say(run, "decide", {"call_id": "p3", "decision": "deny"})
            await run.result()
            await save(client, run.id, f"{prefix}-rules")
            turns = [MAIL, pays[0], pays[-1], DONE]
            for name, approved in {"rules_added_for_tenant": ("p1", "p3"), "rules_of_tenant": ()}.items():
                run = await start_run(client, model, name, {"agent": "clerk", "tenant": "acme", "turns": turns})
                for call_id in approved:
                    await say(run, "decide", {"call_id": call_id, "decision": "approve", "remember": "tenant"})
                await run.result()
                await save(client, run.id, f"{prefix}-{name}")
            for each in (await read_rules(client, tenant="acme")).rules:
                await delete_rule(client, each, "Ada")
            await client.get_workflow_handle(rules_id("acme")).result()
            await save(client, rules_id("acme"), f"{prefix}-tenant_rules", changed)


async def record_clean_ups(prefix: str) -> None:
    """Record runs that are cancelled while a response or a job of theirs goes on elsewhere, and the workflows that end it."""
    response = {"agent": "thinker", "api": "openai", "turns": [Turn(text="Never.", delay=3600)]}
    job = {"agent": "job_clerk", "turns": [call("order_report", '{"name": "a"}', "r")]}
    async with serving(support("background_agents", "deferred_agents")) as (client, model):
        for name, given in {"response": response, "job": job}.items():
            run = await start_run(client, model, f"cancelled_{name}", given)
            while not (await deferred(run, "r") if name == "job" else await has_response(run)):
                await asyncio.sleep(0.05)
            await run.cancel()
            await asyncio.gather(run.result(), return_exceptions=True)
            await save(client, run.id, f"{prefix}-cancelled_{name}")
            clean_up = await child_of(client, run, CLEAN_UP)
            await clean_up.result()
            await save(client, clean_up.id, f"{prefix}-clean_up_of_{name}")


async def has_response(run: Handle) -> bool:
    """Whether a background response of the run is open."""
    return "background response" in str((await run.query("progress"))["waiting_for"])


async def child_of(client: Client, run: Handle, kind: str = "AgentWorkflow") -> Handle:
    """The workflow that a run has started, as soon as lists show it."""
    while True:
        query = f'WorkflowId STARTS_WITH "{run.id}/" AND WorkflowType = "{kind}"'
        if found := [each.id async for each in client.list_workflows(query)]:
            return client.get_workflow_handle(found[0])
        await asyncio.sleep(0.1)


async def record_sub_runs(prefix: str) -> None:
    """Record runs with those of their sub-agents: one that is stopped, and one whose sub-agent is in quarantine."""
    desk = [Turn(calls=[("refund", '{"order": 7, "amount": {"euros": 12.5}}', "r")])]
    async with serving(support("people_agents")) as (client, model):
        model.script("none", desk)
        given: dict[str, Any] = {"agent": "front", "turns": [call("desk", '{"prompt": "Refund."}', "d"), DONE]}
        run = await start_run(client, model, "stopped_with_sub_agent", given)
        child = await child_of(client, run)
        await say(child, "asked", {"call_id": "r"})
        await run.execute_update("stop", {"reason": "lunch"})
        await run.result()
        await save(client, run.id, f"{prefix}-stopped_with_sub_agent")
        await save(client, child.id, f"{prefix}-stopped_sub_agent")
    turns = [call("sorter", '{"prompt": "Sort."}', "s"), call("pay", PAY, "p"), DONE]
    async with serving(support("guarded_agents")) as (client, model):
        run = await run_and_save(client, model, prefix, "quarantine", {"agent": "quarantined_office", "turns": turns})
        await save(client, (await child_of(client, run)).id, f"{prefix}-quarantined")


async def record_question_in_call(prefix: str) -> None:
    """Record a run whose MCP server asks while a call runs, as servers of the older protocol do."""
    with patch.dict(os.environ, ASKS="1"), http_server("--sessions") as port:
        web = McpServer("web", url=f"http://127.0.0.1:{port}/mcp", include=["book"])
        agent = Agent(name="booker", model="openai-chat:nobody", mcp=[web])
        async with serving(load_agents([agent], [])) as (client, model):
            given = {
                "agent": "booker",
                "turns": [call("web__book", '{"city": "Rome"}', "b"), DONE],
                UPDATES: [("answer", {"call_id": "b", "text": '{"nights": 2}'})],
            }
            await run_and_save(client, model, prefix, "asked_in_call", given)


async def record_agent_file(prefix: str) -> None:
    """Record a run of an agent that is a file, whose version lists show."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "support.md").write_text("---\nmodel: openai:nobody\ntools: [look_up]\n---\nYou help.\n")
        loaded = support("agent_file_parts")
        await AgentFolder(Path(folder), loaded.registry, (), print).load()
        async with serving(loaded) as (client, model):
            given = {"agent": "support", "turns": [call("look_up", '{"order": 7}'), DONE]}
            await run_and_save(client, model, prefix, "agent_file", given)


async def record_user_workflow(prefix: str) -> None:
    """Record a user's workflow that continues as new with the state of its agent."""
    async with serving(support("compaction_agents"), continue_after=60) as (client, model):
        model.script("club", reading(4))
        arguments = ["openai-chat:club", 3, [], b""]
        await client.execute_workflow("BookClub", args=arguments, id="club", task_queue=QUEUE)
        await save(client, "club", f"{prefix}-user_workflow")


async def record_removed_attributes(prefix: str) -> None:
    """Record a run that goes on without its search attributes, which somebody has removed while it waited."""
    ids = ("a", "b", "c")
    turns = [*(call("sign", "{}", each) for each in ids), DONE]
    async with serving(support("people_agents")) as (client, model):
        run = await start_run(client, model, "unlisted", {"agent": "desk", "turns": turns})
        await say(run, "asked", {"call_id": "a"})
        request = RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=NAMES)
        await client.operator_service.remove_search_attributes(request, retry=True)
        for each in ids:
            await say(run, "asked", {"call_id": each})
            await approve(run, each)
        await run.result()
        await save(client, run.id, f"{prefix}-unlisted")
