"""Half a surrogate pair, as `os.fsdecode` makes it of a file's name, in all that tools with effects tell a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from mulligan import Agent, ToolContext, ToolError, tool
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call

NAME = "caf\udce9"
QUEUE = "hostile-texts"
reported = asyncio.Event()
effects: list[str] = []


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError(NAME)


@tool(attempts=3)
def save(how: str) -> Any:
    """Save a file, whose name is not valid UTF-8."""
    effects.append(how)
    match how:
        case "raises ToolError":
            raise ToolError(f"There is already a file {NAME}")
        case "raises":
            raise OSError(2, NAME, NAME)
        case "raises without a text":
            raise NoText from NoText()
    return {NAME: NAME}


@tool(attempts=3, retry_on=OSError)
def read(path: str) -> str:
    """Read a file that is not there."""
    effects.append(path)
    error: BaseException = OSError(2, NAME, NAME)
    for _ in range(300):  # more than a failure of Temporal can have
        error.__cause__ = cause = OSError(NAME)
        error = cause
    raise OSError(2, NAME, NAME) from error


@tool(attempts=3, timeout=60)
async def report(what: str, ctx: ToolContext) -> str:
    """Report something, and go on until the test has seen it."""
    effects.append(what)
    reports: dict[str, Any] = {"a name": {NAME: NAME}, "an object": object(), "much": "x" * 10_000_000}
    ctx.heartbeat(reports[what])
    while not reported.is_set():
        await asyncio.sleep(0.05)
    return "reported"


clerk = Agent(name="clerk", model="openai:m", tools=[save, read, report])


@pytest.fixture(scope="module")
async def clerks(lab: Lab) -> AsyncIterator[Lab]:
    async with running_worker(lab.client, load_agents([clerk], []), lab.telemetry, QUEUE):
        yield replace(lab, task_queue=QUEUE)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raises ToolError", "tool_error", "There is already a file caf�"),
        ("raises", "tool_exception", "caf�"),
        ("raises without a text", "tool_exception", "`save` raised NoText"),
        ("returns", None, '{"caf�": "caf�"}'),
    ],
)
async def test_a_tool_with_attempts_runs_once_whatever_its_text(
    clerks: Lab, how: str, kind: str | None, text: str
) -> None:
    effects.clear()
    ran = await clerks.run([call("save", json.dumps({"how": how})), DONE], agent="clerk")
    [done] = ran.calls
    error = done["result"].get("error")
    assert (error and error["kind"], effects) == (kind, [how])
    assert text in done["result"]["text"]


async def test_an_exception_that_is_retried_has_all_its_attempts(clerks: Lab) -> None:
    effects.clear()
    ran = await clerks.run([call("read", '{"path": "a"}'), DONE], agent="clerk")
    [done] = ran.calls
    assert (done["result"]["error"]["kind"], effects) == ("tool_exception", ["a"] * 3)


@pytest.mark.parametrize("what", ["a name", "an object", "much"])
async def test_a_report_ends_no_attempt(clerks: Lab, what: str) -> None:
    effects.clear()
    reported.clear()
    handle = await clerks.start([call("report", json.dumps({"what": what})), DONE], agent="clerk")
    run = asyncio.create_task(clerks.look(handle))
    while not run.done() and not reported.is_set():
        described = await handle.describe()
        if any(each.HasField("heartbeat_details") for each in described.raw_description.pending_activities):
            reported.set()
        await asyncio.sleep(0.05)
    ran = await run
    assert ([done["result"]["text"] for done in ran.calls], effects) == (["reported"], [what])
