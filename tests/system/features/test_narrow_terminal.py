"""The commands in a real terminal of 80 columns, with ids as `mulligan serve` makes them."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType

from mulligan import connect
from mulligan.client.pollers import last_polls
from tests.support.command_fixtures import Run
from tests.support.tmux import screen_of
from tests.system.features.test_waiting_commands import QUEUE, following, line_with, serving

WORKFLOWS = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
MULLIGAN = Path(sys.executable).with_name("mulligan")


async def test_list_and_pending_keep_ids_and_columns_whole_in_a_terminal_of_80_columns(
    mulligan: Run, environment: dict[str, str]
) -> None:
    """An id stands on a line of its own, so that it can be copied; nothing is cut off, and a pipe gets a line for each run."""
    chat, response = f"chat-thread-{uuid.uuid4().hex}", f"resp_{uuid.uuid4().hex}"
    async with serving(environment):
        for run_id in (chat, response):
            ran = await mulligan("start", "teller", "Go", "--id", run_id, "--task-queue", QUEUE)
            assert ran.code == 0, ran.err
        async with following(environment, "tail", chat) as tail:
            await line_with(tail.stdout, "waiting for approval of `refund` since")
        listed = await screen_of(MULLIGAN, "list", "--limit", "2", env=environment, width=80)
        wide = await screen_of(MULLIGAN, "list", "--limit", "2", env=environment, width=160)
        pending = await screen_of(MULLIGAN, "pending", env=environment, width=80)
        piped = await mulligan("pending")
        client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
        await asyncio.gather(*(client.get_workflow_handle(each).terminate() for each in (chat, response)))
    at = listed.index(chat)
    agent, status, day, clock, seconds = listed[at + 1].split()
    assert (agent, status, len(day), len(clock)) == ("teller", "waiting", 10, 8)
    assert float(seconds) > 0
    assert listed[at + 2].startswith("  waiting for approval of `refund` since ")
    for line in (*listed, *pending):  # a terminal breaks what is too long for it within a word
        assert len(line) < 80
    assert response in listed
    assert wide[0].split() == ["id", "agent", "status", "started", "seconds"]
    assert any(line.split()[:3] == [chat, "teller", "waiting"] for line in wide)
    below = pending[pending.index(chat) + 1]
    assert below.startswith("  needs approval  c3 ")
    assert below.endswith('teller: refund {"order": 7}')
    [line] = [line for line in piped.out.splitlines() if response in line]
    assert "needs approval" in line


async def test_list_breaks_what_is_too_long_between_words_and_leaves_the_command_whole(
    mulligan: Run, environment: dict[str, str]
) -> None:
    """Below a table that is too wide for the terminal, and below one that fits."""
    queue = f"nobody-{uuid.uuid4().hex}"
    client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
    for run_id in (f"chat-thread-{uuid.uuid4().hex}", f"r-{uuid.uuid4().hex[:6]}"):
        ran = await mulligan("start", "teller", "Go", "--id", run_id, "--task-queue", queue)
        assert ran.code == 0, ran.err
        listed = await screen_of(MULLIGAN, "list", "--limit", "1", env=environment, width=80)
        await client.get_workflow_handle(run_id).terminate()
        said = listed[next(number for number, line in enumerate(listed) if "no worker polls" in line) :]
        assert said[-1] == f"  mulligan worker --task-queue {queue} --load …"
        note = f"no worker polls task queue '{queue}'; start one:"
        assert " ".join(" ".join(said[:-1]).split()).removeprefix(f"… {run_id}: ") == note


def squeezed(text: str) -> str:
    """A text without spaces: the terminal breaks a long line anywhere."""
    return "".join(text.split())


async def test_list_tells_nobody_to_start_a_worker_after_the_death_of_one_of_two(
    mulligan: Run, environment: dict[str, str]
) -> None:
    """The one that died had the run, and the other one is held up: whoever looks reads that two have polled. Then it answers."""
    run_id = f"chat-thread-{uuid.uuid4().hex}"
    client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])

    async def look() -> str:
        return squeezed("".join(await screen_of(MULLIGAN, "list", "--limit", "1", env=environment, width=80)))

    async with serving(environment, "two") as first:
        ran = await mulligan("start", "teller", "Go", "--id", run_id, "--task-queue", "two")
        assert ran.code == 0, ran.err
        async with following(environment, "tail", run_id) as tail:
            await line_with(tail.stdout, "waiting for approval of `refund` since")
        async with serving(environment, "two") as second:
            while len(await last_polls(client, "two", WORKFLOWS, timedelta(seconds=5))) < 2:
                await asyncio.sleep(0.1)
            second.send_signal(signal.SIGSTOP)
            first.kill()
            seen = [await look()]
            second.send_signal(signal.SIGCONT)
            while squeezed("waiting for approval of `refund` since") not in seen[-1]:
                seen.append(await look())
            await client.get_workflow_handle(run_id).terminate()
    assert squeezed("no worker has answered yet, but 2 have polled task queue 'two'") in seen[0]
    wrong = squeezed("start one"), squeezed("no worker polls")
    assert [each for each in seen if run_id not in each or any(words in each for words in wrong)] == []
