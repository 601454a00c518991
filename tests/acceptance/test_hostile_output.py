"""Every command, in a terminal, in a pipe and with --json: no control character of a text by others reaches the output."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import unicodedata
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from temporalio.client import Client, WorkflowFailureError

from mulligan import connect
from mulligan.cli.app import app
from tests.acceptance.hostile_agent import HOSTILE, NAME
from tests.support.command_server import PIPE, start_command

QUEUE, MODULE = "hostile", "tests.acceptance.hostile_agent"
RUN = "run \x1b]0;x\x07\x9b\u202e"
"""The beginning of the runs' ids."""
USAGE = (f"--{HOSTILE}",)
OWN_COLOURS = re.compile(r"\x1b\[(?!8m)[0-9;]*m")
JSON = ("demo", "dev", "doctor", "agents", "content prune")
"""Their --json prints none of these texts, or the command would not end."""
READ_ONLY = ("export", "show", "rules", "pending")
"""Commands after which a run waits as before, so that one run is enough for them."""
AT_ONCE = 4
COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "demo": [],
    "new": [(f"/nonexistent/{HOSTILE}",)],
    "dev": [("--port", NAME)],
    "doctor": [("--task-queue", NAME)],
    "worker": [("--load", NAME)],
    "start": [("hostile", "ends", "--wait"), ("hostile", NAME, "--model", "scripted:broken", "--wait"), (NAME, NAME)],
    "resume": [("{ended}", NAME, "--wait"), (NAME,)],
    "fork": [("{ended}", "--message", NAME, "--wait"), ("{ended}", "--result", f"{NAME}=1"), (NAME,)],
    "rerun": [("{ended}", "--wait"), ("{waits}", "--tools", "live"), (NAME,)],
    "undo": [("{ended}",), ("{failed}", "--continue", "--lost"), ("{waits}",), (NAME,)],
    "whatif": [("--runs", "{ended}"), ("--runs", "{ended}", "--name", NAME), ("--agent", NAME), ("--runs", NAME)],
    "eval": [(f"/nonexistent/{NAME}", "--agent", "hostile"), (f"/nonexistent/{NAME}.jsonl", "--agent", NAME)],
    "experiments": [(), (NAME,)],
    "export": [("{ended}",), ("{failed}",), ("{waits}",), ("{ended}", "--content", f"/nonexistent/{NAME}"), (NAME,)],
    "show": [("{ended}",), ("{failed}",), ("{unknown}",), ("{waits}",), ("{ended}", "--trace"), ("{ended}", "--deep"),
             ("{ended}", "--context", "1"), ("{ended}", "--context", "1", "--conversation", NAME), (NAME,)],
    "tail": [("{ended}",), ("{failed}",), ("{unknown}",), (NAME,)],
    "list": [(), ("--agent", NAME), ("--status", NAME)],
    "rules": [(), ("{waits}",), ("{ended}",), ("--tenant", NAME), ("--delete", NAME), (NAME,)],
    "pending": [("{waits}",), (), (NAME,)],
    "approve": [("{waits}", "a", "--by", NAME, "--reason", NAME, "--yes"), ("{waits}",), ("{waits}", NAME)],
    "deny": [("{waits}", "a", "--by", NAME, "--reason", NAME), ("{waits}", NAME)],
    "answer": [("{waits}", "q", NAME, "--by", NAME), ("{waits}", NAME, NAME)],
    "complete": [("{waits}", "l", "--error", NAME), ("{waits}", NAME, "--result", NAME)],
    "send": [("{waits}", NAME), ("{ended}", NAME)],
    "stop": [("{waits}", "--reason", NAME, "--by", NAME), ("{ended}",)],
    "cancel": [("{waits}",), ("{ended}",)],
    "agents": [("--load", MODULE), ("--load", "tests.acceptance.printing_agent"), ("--load", NAME),
               ("--load", MODULE, "--agents", f"/nonexistent/{NAME}", "--versions")],
    "budget": [(NAME,), ("--day", NAME)],
    "serve": [("--host", NAME)],
    "codec-server": [("--host", NAME)],
    "schedule create": [(f"{NAME} {{mark}}", "hostile", NAME, "--every", "1h"), (NAME, "hostile", NAME, "--every", NAME)],
    "schedule list": [()],
    "schedule show": [("{schedule}",), (NAME,)],
    "schedule pause": [("{schedule}", "--reason", NAME), (NAME,)],
    "schedule resume": [("{schedule}",), (NAME,)],
    "schedule trigger": [("{schedule}",), (NAME,)],
    "schedule delete": [(NAME,)],
    "content prune": [("--older-than", NAME)],
    "mcp login": [(NAME, "--load", MODULE)],
}  # fmt: skip


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """The name of each command of the application, and whether it has --json."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from commands(inner, (*path, name))
        else:
            yield " ".join((*path, name)), any("--json" in parameter.opts for parameter in inner.params)


def test_the_table_has_every_command() -> None:
    assert {name for name, _ in commands()} == COMMANDS.keys()


@pytest.fixture(scope="module")
async def hostile(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A worker that serves the agent, and a client."""
    log = tmp_path_factory.mktemp("hostile") / "worker.log"
    with log.open("wb") as file:
        process = await start_command(
            "worker", "--load", MODULE, "--task-queue", QUEUE, env=environment, stderr=file.fileno()
        )
    yield await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
    process.terminate()
    assert await process.wait() == 0
    check(log.read_text(), in_terminal=False)
    # Each record is a line: those of stack traces are indented.
    lines = [line for line in log.read_text().splitlines() if not line.startswith(" ")]
    assert [line for line in lines if not re.match(r"(WARNING|ERROR) [\w.]+: |Serving |Draining: ", line)] == []


async def started(client: Client, run_id: str, **run_input: Any) -> str:
    await client.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=QUEUE)
    return run_id


@pytest.fixture(scope="module")
async def runs(hostile: Client) -> dict[str, str]:
    """The ids of runs that have ended, and the name of a schedule."""
    ids = {
        "ended": await started(hostile, f"{RUN} ended", agent="hostile", prompt="ends", metadata={"a": HOSTILE}, tenant=NAME[:60]),
        "failed": await started(hostile, f"{RUN} failed", agent="hostile", prompt=NAME, model="scripted:broken"),
        "unknown": await started(hostile, f"{RUN} unknown", agent=NAME, prompt=NAME),
    }  # fmt: skip
    for run_id in ids.values():
        try:
            await hostile.get_workflow_handle(run_id).result()
        except WorkflowFailureError:
            assert not run_id.endswith("ended")
    return ids


async def waiting_run(client: Client) -> str:
    run_id = await started(client, f"{RUN} {uuid.uuid4().hex[:6]}", agent="hostile", prompt=f"waits {NAME}")
    while len(await client.get_workflow_handle(run_id).query("pending")) < 4:
        await asyncio.sleep(0.05)
    return run_id


async def output_of(words: tuple[str, ...], environment: dict[str, str], *, in_terminal: bool) -> tuple[str, str]:
    """Stdout and stderr of a command; of one in a terminal, what the terminal gets."""
    if not in_terminal:
        process = await start_command(*words, env=environment, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
        return out.decode(), err.decode()
    ours, theirs = pty.openpty()
    process = await start_command(*words, env=environment | {"TERM": "xterm-256color"}, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while piece := await asyncio.to_thread(read_terminal, ours):
        written += piece
    os.close(ours)
    return written.decode().replace("\r\n", "\n"), ""


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other end is closed
        return b""


def check(written: str, *, in_terminal: bool) -> None:
    """Assert that nothing of it is interpreted by a terminal but our own colours, in a terminal, and nothing is hidden."""
    left = OWN_COLOURS.sub("", written) if in_terminal else written
    found = {char for char in left if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")} - set("\n\t")
    assert found == set(), written
    assert not re.search(r"^\W{0,3}FORGED", left, re.MULTILINE), written


def modes_of(command: str) -> list[str]:
    has_json = dict(commands())[command]
    return ["pipe", "terminal", *(["json"] if has_json and command not in JSON else [])]


@pytest.mark.parametrize("command", sorted(COMMANDS))
async def test_no_command_prints_control_characters_of_others(
    command: str, hostile: Client, runs: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """In each mode. Usage errors quote arguments, too."""
    place = environment | {"MULLIGAN_TASK_QUEUE": QUEUE, "MULLIGAN_WORKSPACE": str(tmp_path)}
    shared = {**runs, "schedule": f"{NAME} schedule {uuid.uuid4().hex[:6]}"}
    if command.startswith("schedule "):
        words = ("schedule", "create", shared["schedule"], "hostile", NAME, "--every", "1h")
        await output_of(words, place, in_terminal=False)
    if command in READ_ONLY and any("{waits}" in words for words in COMMANDS[command]):
        shared["waits"] = await waiting_run(hostile)
    gate = asyncio.Semaphore(AT_ONCE)

    async def run(words: tuple[str, ...], mode: str) -> str:
        async with gate:
            return await checked_output(command, words, mode, hostile, place, {**shared, "mark": uuid.uuid4().hex})

    for mode in modes_of(command):
        of_mode = [*COMMANDS[command], *([USAGE] if mode != "json" else [])]
        written = "".join(await asyncio.gather(*(run(words, mode) for words in of_mode)))
        if command in ("show", "tail", "start", "pending"):
            assert (HOSTILE if mode == "json" else "\\x1b]52;c;") in written


async def checked_output(
    command: str, words: tuple[str, ...], mode: str, client: Client, place: dict[str, str], texts: dict[str, str]
) -> str:
    """What a command prints, which a terminal does not interpret."""
    if "{waits}" in words and "waits" not in texts:
        texts["waits"] = await waiting_run(client)
    filled = [re.sub(r"\{(\w+)\}", lambda found: texts[found[1]], word) for word in words]
    more = ("--json",) if mode == "json" else ()
    out, err = await output_of((*command.split(), *filled, *more), place, in_terminal=mode == "terminal")
    check(out, in_terminal=mode == "terminal")
    check(err, in_terminal=False)
    if more and out:
        out = "".join(flattened([json.loads(line) for line in out.splitlines()]))
    return out + err


async def test_events_with_the_same_texts_are_the_same_json(
    hostile: Client, runs: dict[str, str], environment: dict[str, str]
) -> None:
    out, _ = await output_of(("tail", runs["ended"], "--events"), environment, in_terminal=False)
    check(out, in_terminal=False)
    texts = list(flattened([json.loads(line) for line in out.splitlines()]))
    assert HOSTILE in texts
    assert NAME in texts


def flattened(value: Any) -> Iterator[str]:
    """All texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from flattened(inner)
