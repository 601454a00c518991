"""What `start --wait`, `tail`, `show` and `list` say of a run that waits."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from temporalio.service import RPCError

from mulligan import connect
from tests.support.command_fixtures import Run
from tests.support.command_server import PIPE, CommandProcess, start_command

QUEUE = "waiting"


@pytest.fixture
async def env(environment: dict[str, str]) -> AsyncIterator[dict[str, str]]:
    """The worker's model endpoint is down. Runs end with their test: `list` and `pending` of the next would wait for their worker."""
    yield environment | {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k", "COLUMNS": "500"}
    client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
    for run in ("alone", "mortal", "pair", "w-teller", "w-crawler", "w-offline"):
        with suppress(RPCError):  # it is not of this test, or has ended
            await client.get_workflow_handle(run).terminate()


@asynccontextmanager
async def serving(env: dict[str, str], queue: str = QUEUE) -> AsyncIterator[CommandProcess]:
    process = await start_command(
        *("worker", "--load", "tests.acceptance.waiting_agent", "--load", "examples.refund_desk", "--task-queue", queue),
        env=env, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    await process.stderr.readline()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def following(env: dict[str, str], *words: str) -> AsyncIterator[CommandProcess]:
    process = await start_command(*words, env=env, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """The first line that contains a text."""
    assert stream is not None
    lines = []
    while line := (await stream.readline()).decode():
        lines.append(line)
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}: {lines}")


async def test_a_queue_without_workers_is_reported_at_once_and_ctrl_c_leaves_the_run(
    mulligan: Run, env: dict[str, str]
) -> None:
    async with following(env, "start", "teller", "Go", "--id", "alone", "--task-queue", "nobody", "--wait") as start:
        line = await line_with(start.stderr, "no worker polls task queue 'nobody'")
        assert "start one: mulligan worker --task-queue nobody --load …" in line
        start.send_signal(signal.SIGINT)
        await line_with(start.stderr, "The run continues: mulligan tail alone")
        assert await start.wait() != 0
    shown, listed = await asyncio.gather(
        mulligan("show", "alone", "--json"), mulligan("list", "--json", "--limit", "200")
    )
    state = json.loads(shown.out)
    assert (state["status"], state["waiting_for"]["kind"]) == ("running", "worker")
    said = " ".join(shown.err.split())
    assert (
        "only a worker of the run's task queue can tell the steps of an open run, and none answers. Start one" in said
    )
    read = await mulligan("show", "alone")
    assert "start one: mulligan worker --task-queue nobody --load …" in " ".join(read.out.split())
    traced = await mulligan("show", "alone", "--trace")
    assert (traced.code, "has no trace yet: no worker has opened the run" in traced.err) == (0, True)
    assert {run["id"]: run for run in json.loads(listed.out)}["alone"]["waiting_for"]["kind"] == "worker"


async def test_the_death_of_the_last_worker_is_reported_in_mid_run(env: dict[str, str]) -> None:
    async with serving(env, "mortal") as worker:
        words = ("start", "teller", "Go", "--id", "mortal", "--task-queue", "mortal", "--wait")
        async with following(env, *words) as start:
            await line_with(start.stderr, "waiting for approval of `refund`")
            worker.kill()
            line = await line_with(start.stderr, "no worker answers; the only one of task queue 'mortal' polled at")
            assert "if it has ended, start one: mulligan worker --task-queue mortal --load …" in line


async def test_after_the_death_of_one_of_two_workers_nobody_is_told_to_start_one(
    mulligan: Run, env: dict[str, str]
) -> None:
    """The run waits for a person, so that its worker has it cached; the other one takes it over when it is asked."""
    async with serving(env, "pair") as first:
        ran = await mulligan("start", "teller", "Go", "--id", "pair", "--task-queue", "pair")
        assert ran.code == 0, ran.err
        async with following(env, "tail", "pair") as tail:
            await line_with(tail.stdout, "waiting for approval of `refund` since")
        async with serving(env, "pair") as second:
            first.kill()
            listed = await mulligan("list", "--json", "--limit", "200")
            wait = {run["id"]: run for run in json.loads(listed.out)}["pair"]["waiting_for"]
            assert wait["kind"] in ("worker", "person"), wait
            assert "start one" not in wait["detail"]
            assert second.returncode is None


async def test_each_command_says_what_a_run_waits_for(mulligan: Run, env: dict[str, str]) -> None:
    """A person, with the command to type; a tool with attempt and heartbeat; a model with failure, next attempt and end."""
    async with serving(env):
        for agent in ("teller", "crawler", "offline"):
            ran = await mulligan("start", agent, "Go", "--id", f"w-{agent}", "--task-queue", QUEUE)
            assert ran.code == 0, ran.err
        async with following(env, "tail", "w-teller") as tail:
            line = await line_with(tail.stdout, "waiting for approval of `refund` since")
            assert line.rstrip().endswith(": mulligan approve w-teller c3")
            tail.send_signal(signal.SIGINT)
            await line_with(tail.stderr, "The run continues: mulligan tail w-teller")
        # A command that people copy has no line break, and programs read the same.
        async with following(env | {"COLUMNS": "30"}, "tail", "w-teller") as tail:
            assert "mulligan approve w-teller c3" in await line_with(tail.stdout, "? waiting for a person")
        async with following(env, "tail", "w-teller", "--json") as tail:
            waiting = json.loads(await line_with(tail.stdout, "waiting_for"))["waiting_for"]
            assert (waiting["kind"], waiting["detail"].endswith(": mulligan approve w-teller c3")) == ("person", True)
        async with following(env, "tail", "w-crawler") as tail:
            line = await line_with(tail.stdout, "last heartbeat: page 3 of 7")
            assert "running `crawl` since" in line
            assert "attempt 2 of 2" in line
        async with following(env, "tail", "w-offline") as tail:
            line = await line_with(tail.stdout, "last failure: the connection to 127.0.0.1 failed")
            assert "waiting for `openai-chat:none` (step 1) since" in line
            assert "retried until " in line
        shown = await mulligan("show", "w-crawler", COLUMNS="500")
        assert "step 1 of" in shown.out
        assert "last heartbeat: page 3 of 7" in shown.out
        offline = json.loads((await mulligan("show", "w-offline", "--json")).out)
        waiting = offline["progress"]["waiting_for"]
        assert waiting == offline["waiting_for"]
        assert (waiting["kind"], "127.0.0.1" in waiting["last_failure"]) == ("model", True)
        listed = await mulligan("list", "--limit", "200", COLUMNS="40")
        assert "mulligan approve w-teller c3" in listed.out, listed.err
        rows = json.loads((await mulligan("list", "--limit", "200", "--json")).out)
        statuses = {row["id"]: row["status"] for row in rows}
        assert (statuses["w-teller"], statuses["w-offline"]) == ("waiting", "running")


async def test_the_commands_work_on_a_workflow_of_ones_own(mulligan: Run, env: dict[str, str]) -> None:
    client = await connect(env["TEMPORAL_ADDRESS"], namespace=env["TEMPORAL_NAMESPACE"])
    # Its own queue: for a while the server hands tasks to the polls of a worker that was killed, and waits 10 s for each.
    async with serving(env, "desk"):
        handle: Any = await client.start_workflow("RefundDesk", "Order 7!", id="desk", task_queue="desk")
        tail = await mulligan("tail", "desk")
        assert tail.code == 0, tail.err
        for text in ("reader (0)", "clerk (1)", "price_of", "have paid 40 euros back", "completed"):
            assert text in tail.out
        assert (await handle.result())["decision"] == "refunded"
        late = await mulligan("stop", "desk")
        assert (late.code, "resume" in late.err) == (2, False)
        assert "the workflow 'desk' (RefundDesk) has ended; `mulligan show desk` shows how" in late.err
        shown, pending, listed = await asyncio.gather(
            mulligan("show", "desk"), mulligan("pending"), mulligan("list", "--json", "--limit", "200")
        )
        assert (shown.code, pending.code) == (0, 0), shown.err
        assert shown.out.index("reader (0)") < shown.out.index("price_of") < shown.out.index("clerk (1)")
        assert {run["id"]: run for run in json.loads(listed.out)}["desk"]["type"] == "RefundDesk"
