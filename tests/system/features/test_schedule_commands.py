"""`mulligan schedule`, on Temporal's own schedules."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.acceptance.test_people_commands import QUEUE, clerk_client, in_process
from tests.support.command_fixtures import Run

PAGE = Path(__file__).parents[3] / "docs/schedules.md"
__all__ = ["clerk_client", "in_process"]


@pytest.fixture
def name() -> str:
    return f"nightly-{uuid.uuid4().hex[:6]}"


async def test_a_schedule_starts_runs_until_it_is_paused_and_deleted(
    in_process: Run, clerk_client: Client, name: str
) -> None:
    """Create, list, show, trigger, pause, resume, delete; the run has the schedule's input, tenant and priority."""
    words = ("schedule", "create", name, "clerk", "Help.", "--every", "12h", "--jitter", "1s", "--overlap", "allow-all")
    options = ("--tenant", "acme", "--priority", "2", "--catchup-window", "1h", "--task-queue", QUEUE)
    created = await in_process(*words, *options)
    assert (created.code, created.out.strip()) == (0, name), created.err
    twice = await in_process(*words)
    assert (twice.code, f"there is a schedule '{name}' already" in twice.err) == (2, True)
    shown = json.loads((await in_process("schedule", "show", name, "--json")).out)
    assert (shown["agent"], shown["tenant"], shown["timing"]) == ("clerk", "acme", "every 12:00:00")
    assert (shown["overlap"], shown["jitter_seconds"], shown["catchup_window_seconds"]) == ("allow-all", 1, 3600)
    assert (shown["paused"], len(shown["next_times"])) == (False, 5)
    while name not in (await in_process("schedule", "list")).out:  # lists may be late
        await asyncio.sleep(0.2)
    assert (await in_process("schedule", "pause", name, "--reason", "holiday")).code == 0
    shown = json.loads((await in_process("schedule", "show", name, "--json")).out)
    assert (shown["paused"], shown["note"]) == (True, "holiday")
    assert (await in_process("schedule", "trigger", name)).code == 0
    while not (recent := json.loads((await in_process("schedule", "show", name, "--json")).out)["recent"]):
        await asyncio.sleep(0.2)
    assert recent[0].startswith(f"{name}-")
    handle = clerk_client.get_workflow_handle(recent[0])
    while not (await handle.query("pending")):
        await asyncio.sleep(0.1)
    described = await handle.describe()
    assert (await described.memo())["tenant"] == "acme"
    priority = described.raw_description.workflow_execution_info.priority
    assert (priority.priority_key, priority.fairness_key) == (2, "acme")
    assert (await handle.query("messages"))["messages"][0]["text"] == "Help."
    listed = json.loads((await in_process("list", "--tenant", "acme", "--json")).out)
    assert recent[0] in [run["id"] for run in listed]
    assert {run["tenant"] for run in listed} == {"acme"}
    assert recent[0] not in (await in_process("list", "--tenant", "other")).out
    await handle.terminate()
    assert (await in_process("schedule", "resume", name)).code == 0
    assert "paused: False" in (await in_process("schedule", "show", name)).out
    assert (await in_process("schedule", "delete", name)).code == 0
    gone = await in_process("schedule", "show", name)
    assert (gone.code, f"there is no schedule '{name}'" in gone.err) == (2, True)


async def test_a_cron_expression_has_a_time_zone(in_process: Run, name: str) -> None:
    words = ("schedule", "create", name, "clerk", "Help.", "--cron", "30 9 * * MON", "--timezone", "Asia/Kolkata")
    assert (await in_process(*words)).code == 0
    shown = json.loads((await in_process("schedule", "show", name, "--json")).out)
    assert shown["next_times"][0].endswith("T04:00:00Z")
    assert (await in_process("schedule", "delete", name)).code == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "--every is None, --cron is None; give one of them."),
        (("--every", "1h", "--cron", "* * * * *"), "--every is '1h', --cron is '* * * * *'; give one of them."),
        (("--every", "soon"), "--every is 'soon'; give a duration such as"),
        (("--every", "0s"), "give a duration such as"),
        (("--every", "1h", "--timezone", "UTC"), "--timezone is 'UTC', which is for --cron"),
        (("--cron", "every day"), "has 2 fields; give five"),
        (("--cron", "0 9 * * *", "--timezone", "Mars/Base"), "Temporal refused this"),
        (("--every", "1h", "--input", '{"max_steps": 0}'), "max_steps"),
        (("--every", "1h", "--jitter", "x"), "--jitter is 'x'"),
    ],
)
async def test_a_schedule_that_cannot_work_is_refused(
    in_process: Run, name: str, options: tuple[str, ...], sentence: str
) -> None:
    refused = await in_process("schedule", "create", name, "clerk", "Help.", *options)
    assert (refused.code, refused.out) == (2, "")
    assert sentence in refused.err


async def test_the_commands_of_the_page_do_what_it_says(
    in_process: Run, clerk_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The run must stay open. On the default task queue, a worker of another test file may end it: it does not serve the agent.
    monkeypatch.setenv("MULLIGAN_TASK_QUEUE", "unserved")
    [block] = re.findall(r"```sh\n(uv run mulligan schedule create.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [shlex.split(line, comments=True)[3:] for line in block.splitlines()]
    assert [words[1] for words in commands].count("create") == 2
    try:
        for words in commands:
            done = await in_process(*words)
            assert done.code == 0, (words, done.err)
            if words[1] == "trigger":
                while not (
                    recent := json.loads((await in_process("schedule", "show", "news", "--json")).out)["recent"]
                ):
                    await asyncio.sleep(0.2)
                await clerk_client.get_workflow_handle(recent[0]).terminate()
    finally:
        await in_process("schedule", "delete", "sweep")
