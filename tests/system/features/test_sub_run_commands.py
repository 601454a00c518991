"""What the runs of sub-agents wait for, seen and decided from the run above them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client
from typer.testing import CliRunner

from mulligan import connect
from mulligan.cli.app import app
from tests.support.command_fixtures import Outcome, Run
from tests.support.command_server import PIPE, start_command

QUEUE = "team"


@pytest.fixture(scope="module")
async def team_client(environment: dict[str, str]) -> AsyncIterator[Client]:
    """A worker that serves the team, and a client to start its runs."""
    process = await start_command(
        "worker", "--load", "tests.acceptance.asking_team", "--task-queue", QUEUE,
        env=environment, stderr=PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    await process.stderr.readline()
    yield await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
    process.terminate()
    await process.stderr.read()
    assert await process.wait() == 0


@pytest.fixture
def in_process(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`mulligan …` in this process, one command at a time."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"):
        monkeypatch.setenv(name, environment[name])

    async def run(*words: str) -> Outcome:
        ran = await asyncio.to_thread(CliRunner().invoke, app, words, catch_exceptions=False)
        return Outcome(ran.exit_code, ran.stdout, ran.stderr)

    return run


async def start_chief(client: Client, run_id: str, prompt: str, waiting: list[str]) -> Any:
    """Start a run of the chief, and wait until these sub-runs wait for a person."""
    handle = await client.start_workflow(
        "AgentWorkflow", {"agent": "team_chief", "prompt": prompt}, id=run_id, task_queue=QUEUE
    )
    await until_waiting(client, waiting)
    return handle


async def until_waiting(client: Client, run_ids: list[str]) -> None:
    async with asyncio.timeout(60):
        for run_id in run_ids:
            while True:
                try:
                    if await client.get_workflow_handle(run_id).query("pending"):
                        break
                except Exception as error:
                    if "not found" not in str(error):
                        raise
                await asyncio.sleep(0.05)


async def test_a_wait_two_levels_below_is_shown_and_decided_from_the_run_at_the_top(
    environment: dict[str, str], in_process: Run, team_client: Client
) -> None:
    below = "s-1/head_0/clerk"
    handle = await start_chief(team_client, "s-1", "once", [below])
    said = f"sub-agent's run {below}: waiting for approval of `refund` since "
    command = f": mulligan approve {below} refund_7"
    tail = await start_command("tail", "s-1", env=environment, stdout=PIPE)
    assert tail.stdout is not None
    async for line in tail.stdout:  # decided before it shows the wait, it would have nothing to show
        if said in line.decode():
            break
    assert line.decode().rstrip().endswith(command)
    shown, deep, listed = await in_process("show", "s-1"), await in_process("show", "s-1", "--deep"), None
    last = [line for line in shown.out.splitlines() if line.startswith("step 1 of ")]
    assert len(last) == 1
    assert said in last[0]
    assert last[0].endswith(command)
    assert deep.out.count("waiting for approval of `refund`") == 2
    inside = next(line for line in deep.out.splitlines() if line.strip().startswith("… waiting for approval"))
    assert inside.startswith(" " * 12)
    as_json = json.loads((await in_process("show", "s-1", "--deep", "--json")).out)
    waiting = as_json["waiting_for"]
    assert (waiting["kind"], waiting["run"]) == ("person", below)
    [head] = as_json["sub_agents"]
    [clerk] = head["sub_agents"]
    assert (clerk["run"]["id"], clerk["waiting_for"]["kind"]) == (below, "person")
    listed = json.loads((await in_process("list", "--json")).out)
    assert [each["waiting_for"]["run"] for each in listed if each["id"] == "s-1"] == [below]

    pending = json.loads((await in_process("pending", "s-1", "--json")).out)
    assert [(wait["id"], wait["call_id"], wait["kind"]) for wait in pending] == [(below, "refund_7", "approval")]
    table = (await in_process("pending", "s-1")).out
    assert all(word in table for word in ("approval", "refund_7", "refund"))
    other = await in_process("approve", "s-1", "call_9")
    assert (other.code, f"waiting calls: refund_7 (refund in {below})" in other.err) == (2, True)
    approved = await in_process("approve", "s-1", "refund_7", "--json")
    assert (approved.code, json.loads(approved.out)["run"]) == (0, below)

    await until_waiting(team_client, [below])
    answered = await in_process("answer", "s-1", "Green.")
    assert answered.code == 0, answered.err
    assert answered.out.splitlines()[0] == f"The answer was sent to {below}."
    assert (await handle.result())["output"] == "order 7 is refunded / Green."
    await tail.stdout.read()
    assert await tail.wait() == 0


async def test_an_id_that_waits_in_two_sub_runs_is_refused_with_both_and_named_by_its_run(
    in_process: Run, team_client: Client
) -> None:
    below = ["s-2/head_0/clerk", "s-2/head_1/clerk"]
    handle = await start_chief(team_client, "s-2", "twice", below)
    shown = await in_process("show", "s-2", "--json")
    waiting = json.loads(shown.out)["waiting_for"]
    assert waiting["kind"] == "person"
    assert all(f"sub-agent's run {each}: waiting for approval" in waiting["detail"] for each in below)
    both = await in_process("approve", "s-2", "refund_7")
    assert both.code == 2
    assert "the call 'refund_7' waits in several runs; name the run in place of 's-2': " in both.err
    assert all(repr(each) in both.err for each in below)
    denied = [await in_process("deny", each, "refund_7") for each in below]
    assert [each.code for each in denied] == [0, 0]
    await handle.terminate()
