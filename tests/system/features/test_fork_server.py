"""The worker processes of a supervisor are forked from one that has imported everything, where that is safe."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mulligan.devserver import DevServer
from mulligan.supervisor.forked_processes import ForkServer
from mulligan.worker.fork_server import MAX_MESSAGE_BYTES
from tests.support.processes import children_of, is_running
from tests.support.worker_process import Process
from tests.system.features.test_supervisor import line_with, supervised

MODULE = """
import json, os, random, threading, time
from contextlib import asynccontextmanager
from mulligan import Agent, Say, Script

def note(what, **values):
    with open({notes!r}, "a") as file:
        file.write(json.dumps({{"what": what, "pid": os.getpid(), **values}}) + "\\n")

WORD = "first"
note("import")
{more}

@asynccontextmanager
async def resources():
    note("open", number=random.random(), word=WORD)
    yield {{}}
    note("close")

said = Script("said", [Say("Done.")])
agent = Agent(name="forked", model="scripted:said", instructions="Say it.")
"""
LEFT_OPEN = {
    "a thread": (
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "has started 1 thread, which",
    ),
    "threads, one of which ends": (
        "threading.Thread(target=time.sleep, args=(0.3,)).start(); "
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "has started 1 thread, which",
    ),
    "a file": ("kept = open(__file__)", "which forks would share"),
    "a process": ("import subprocess; child = subprocess.Popen(['sleep', '20'])", "whose end a fork would not see"),
    "a folder": ("import tempfile; folder = tempfile.TemporaryDirectory()", "to be done at the end of a process"),
    "a connection": ("import socket; pair = socket.socketpair()", "which forks would share"),
}

FORK_SERVERS = """
import os, sys
from mulligan.worker import fork_server, process
for number, descriptor in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        os.environ[fork_server.FORK_SERVER_VARIABLE] = descriptor
        fork_server.serve_forks([f"left_{number}"], with_shipped=False, agents=None)
for _ in sys.argv[1:]:
    assert os.wait()[1] == 0
"""


class Forked:
    """A supervisor of two processes with a module that notes what happens to it."""

    def __init__(self, supervisor: Process, module: Path, notes: Path) -> None:
        self.supervisor, self.module, self._notes = supervisor, module, notes

    def noted(self, what: str) -> list[dict[str, Any]]:
        notes = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [each for each in notes if each["what"] == what]

    async def until_opened(self, times: int) -> list[dict[str, Any]]:
        """The notes of all processes that have opened their resources, when there are so many."""
        while len(opened := self.noted("open")) < times:
            await asyncio.sleep(0.05)
        return opened

    @property
    def pids(self) -> list[int]:
        return children_of(self.supervisor.pid, "worker")

    @property
    def server(self) -> int:
        [pid] = children_of(self.supervisor.pid, "forked")
        return pid

    async def replaced(self, pid: int) -> str:
        """Kill a process; the line in which its end is said."""
        os.kill(pid, signal.SIGKILL)
        return await line_with(self.supervisor, "has ended")


@asynccontextmanager
async def running(temporal: DevServer, folder: Path, more: str = "") -> AsyncIterator[Forked]:
    name, notes = f"forked_{uuid.uuid4().hex[:8]}", folder / "notes"
    module = folder / f"{name}.py"
    notes.touch()
    module.write_text(MODULE.format(notes=str(notes), more=more))
    path = os.pathsep.join([str(folder), *sys.path])
    async with supervised(name, temporal, module=name, PYTHONPATH=path, MULLIGAN_PROCESSES="2") as supervisor:
        forked = Forked(supervisor, module, notes)
        yield forked
        if supervisor.returncode is None:
            supervisor.terminate()
            assert await supervisor.wait() == 0


async def test_what_a_module_imports_is_imported_once_and_each_process_opens_its_own(
    temporal: DevServer, tmp_path: Path
) -> None:
    async with running(temporal, tmp_path) as forked:
        await forked.until_opened(2)
        before = forked.pids
        await asyncio.sleep(1.1)  # one that ends sooner is replaced after a delay
        assert "It is replaced now" in await forked.replaced(before[0])
        opened = await forked.until_opened(3)
        assert len(forked.noted("import")) == 1
        assert len({each["pid"] for each in opened}) == len({each["number"] for each in opened}) == 3
        after = forked.pids
        assert len(after) == 2
        assert before[1] in after
        server = forked.server
    assert len(forked.noted("close")) == 2
    assert not [pid for pid in (*after, server) if is_running(pid)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What fork servers answer, by what importing leaves open: forks of one process that has imported a worker."""
    folder, pairs = tmp_path_factory.mktemp("left-open"), {}
    for number, (name, more) in enumerate(
        {"nothing": "", **{name: more for name, (more, _) in LEFT_OPEN.items()}}.items()
    ):
        (folder / f"left_{number}.py").write_text(MODULE.format(notes=str(folder / "notes"), more=more))
        pairs[name] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = [str(theirs.fileno()) for _, theirs in pairs.values()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    servers = subprocess.Popen(
        [sys.executable, "-c", FORK_SERVERS, *given], env=environment, pass_fds=[*map(int, given)]
    )
    found = {}
    for name, (ours, theirs) in pairs.items():
        with ours:
            theirs.close()
            found[name] = json.loads(ours.recv(MAX_MESSAGE_BYTES))
    assert servers.wait() == 0
    return found


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_a_fork_server_refuses_where_importing_leaves_what_a_fork_must_not_have(
    answers: dict[str, dict[str, str]], name: str
) -> None:
    assert answers["nothing"]["state"] == "ready"
    assert answers[name]["state"] == "refused"
    assert LEFT_OPEN[name][1] in answers[name]["reason"]


async def test_nothing_is_forked_where_it_refuses(temporal: DevServer, tmp_path: Path) -> None:
    more, reason = LEFT_OPEN["a thread"]
    async with running(temporal, tmp_path, more) as forked:
        assert reason in await line_with(forked.supervisor, "Worker processes are started, not forked")
        opened = await forked.until_opened(2)
        assert {each["pid"] for each in opened} <= {each["pid"] for each in forked.noted("import")}
        await forked.replaced(forked.pids[0])
        await forked.until_opened(3)
        assert not children_of(forked.supervisor.pid, "forked")


async def test_a_changed_module_is_imported_again(temporal: DevServer, tmp_path: Path) -> None:
    async with running(temporal, tmp_path) as forked:
        await forked.until_opened(2)
        forked.module.write_text(forked.module.read_text().replace('WORD = "first"', 'WORD = "second"'))
        await forked.replaced(forked.pids[0])
        assert [each["word"] for each in await forked.until_opened(3)] == ["first", "first", "second"]
        forked.module.write_text("This is no Python.")
        await forked.replaced(forked.pids[0])
        await line_with(forked.supervisor, "has ended: exit code 2")
        assert len(forked.pids) >= 1, "the other process serves on"


async def test_a_fork_server_that_dies_or_hangs_is_replaced_and_nothing_else_ends(
    temporal: DevServer, tmp_path: Path
) -> None:
    async with running(temporal, tmp_path) as forked:
        await forked.until_opened(2)
        pids, first = forked.pids, forked.server
        os.kill(first, signal.SIGKILL)
        while len(forked.noted("import")) < 2:
            await asyncio.sleep(0.1)
        assert set(pids) <= set(forked.pids)
        await forked.replaced(pids[0])
        await forked.until_opened(3)
        assert len(forked.noted("import")) == 2
        os.kill(forked.server, signal.SIGSTOP)
        await forked.replaced(pids[1])
        await forked.until_opened(4)


DIES_BEFORE_THE_ANSWER = """
from mulligan.worker import fork_server
answer = fork_server._answer
def die_or_answer(control, said):
    if said["state"] == "forked":
        os._exit(1)
    answer(control, said)
fork_server._answer = die_or_answer
"""


async def test_of_a_fork_that_nobody_knows_nothing_is_left(temporal: DevServer, tmp_path: Path) -> None:
    """The server dies when it has forked, and before it has answered."""
    async with running(temporal, tmp_path, DIES_BEFORE_THE_ANSWER) as forked:
        await line_with(forked.supervisor, "Supervising 2")
        opened = await forked.until_opened(2)
        assert {each["pid"] for each in opened} == set(forked.pids)


async def test_a_supervisor_that_is_stopped_does_not_wait_for_imports(temporal: DevServer, tmp_path: Path) -> None:
    async with running(temporal, tmp_path, "time.sleep(3_000)") as forked:
        while not forked.noted("import"):
            await asyncio.sleep(0.1)
        forked.supervisor.terminate()
        assert await forked.supervisor.wait() == 0


async def test_a_module_that_is_saved_while_it_is_imported_is_imported_again(
    temporal: DevServer, tmp_path: Path
) -> None:
    saved = "__import__('pathlib').Path(__file__).touch() if not os.path.exists(__file__ + '1') else None"
    async with running(temporal, tmp_path, f"{saved}; open(__file__ + '1', 'w').close()") as forked:
        await forked.until_opened(2)
        assert len(forked.noted("import")) == 2
        assert {each["pid"] for each in forked.noted("import")} & {
            each["pid"] for each in forked.noted("open")
        } == set()


async def test_what_a_killed_process_leaves_is_waited_for() -> None:
    """An orphan becomes a child of this process, and no zombie remains of it; a process of this one keeps its status."""
    forks = ForkServer()
    program = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.3)']).pid)"
    )
    async with forks_adopting(forks):
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        assert parent.stdout is not None
        orphan = int(await parent.stdout.read(20))
        own = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)")
        while os.path.exists(f"/proc/{orphan}"):
            forks.reap({parent.pid, own.pid})
            await asyncio.sleep(0.05)
        assert await own.wait() == 7


@asynccontextmanager
async def forks_adopting(forks: ForkServer) -> AsyncIterator[None]:
    from mulligan.activities.tool_running.process_tree import adopt_orphans

    adopt_orphans()
    try:
        yield
    finally:
        await forks.close()
