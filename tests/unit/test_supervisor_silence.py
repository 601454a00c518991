"""A worker process that sends nothing is killed, unless it was the supervisor that did not read; no wait is without a limit."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from mulligan.activities.tool_running.process_tree import end_tree
from mulligan.client.settings import settings
from mulligan.supervisor import forked_processes, supervisor
from mulligan.supervisor.worker_process import WorkerProcess


class Recorded(WorkerProcess):
    """A process that is not started: it records the signals that it is sent."""

    def __init__(self, identity: str = "1@here") -> None:
        super().__init__(1, lambda *_: None, lambda *_: None)
        self.identity, self.unready, self.is_there = identity, "", True
        self.signals: list[signal.Signals] = []
        self.child = 1

    @property
    def pid(self) -> int:
        return self.child

    @property
    def is_started(self) -> bool:
        return self.is_there

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


async def test_a_supervisor_that_was_frozen_hears_its_processes_again_before_it_kills_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "SECONDS_OF_SILENCE", 1.0)
    process, supervising = Recorded(), supervisor._Supervisor(1, settings())
    supervising._processes[1] = process
    watching = asyncio.create_task(supervising._kill_the_silent())
    try:
        await asyncio.sleep(0.05)
        time.sleep(1.5)  # noqa: ASYNC251 - the event loop is frozen
        await asyncio.sleep(0.3)
        assert process.signals == []
        async with asyncio.timeout(60):
            while not process.signals:
                await asyncio.sleep(0.05)
        assert process.signals[0] == signal.SIGKILL
    finally:
        watching.cancel()


async def test_a_process_that_never_sends_anything_is_killed_once_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It looks every 0.2 s. If that takes a second on a busy machine, it takes itself to have been frozen, and waits anew.
    monkeypatch.setattr(supervisor, "SECONDS_OF_SILENCE", 2.0)
    monkeypatch.setattr(supervisor, "SECONDS_TO_BEGIN", 1.0)
    hangs, waits, supervising = Recorded(""), Recorded(""), supervisor._Supervisor(2, settings())
    waits.is_there = False  # for the fork server
    supervising._processes = {1: hangs, 2: waits}
    watching = asyncio.create_task(supervising._kill_the_silent())
    try:
        async with asyncio.timeout(60):
            while not hangs.signals:
                await asyncio.sleep(0.01)
        assert (hangs.signals[0], waits.signals) == (signal.SIGKILL, [])
    finally:
        watching.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells nothing of the work of processes")
async def test_of_processes_that_have_not_begun_only_one_that_does_nothing_is_killed_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "SECONDS_OF_SILENCE", 1.0)  # how often it looks
    monkeypatch.setattr(supervisor, "SECONDS_WITHOUT_WORK", 1.5)
    works = "while True: pass"
    compiles = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {works!r}])"
    codes = ("import signal; signal.pause()", works, compiles)
    children = [await asyncio.create_subprocess_exec(sys.executable, "-c", code) for code in codes]
    processes: list[WorkerProcess] = []
    signals: list[list[signal.Signals]] = []
    for child in children:
        process = Recorded("")
        process.child = child.pid
        processes.append(process)
        signals.append(process.signals)
    supervising = supervisor._Supervisor(2, settings())
    supervising._processes = dict(enumerate(processes, 1))
    watching = asyncio.create_task(supervising._kill_the_silent())
    try:
        async with asyncio.timeout(60):
            while not signals[0]:
                await asyncio.sleep(0.01)
        assert signals[1:] == [[], []]
    finally:
        watching.cancel()
        for child in children:
            end_tree([child.pid])
            await child.wait()


async def test_a_process_begins_to_be_silent_when_it_is_started() -> None:
    process = WorkerProcess(1, lambda *_: None, lambda *_: None)
    created = process.heard_at
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.sleep(0.02)
        await process.connect(ours)
        assert process.heard_at > created
        process.close()


async def test_a_fork_server_that_hangs_at_an_import_stops_no_replacement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, whoever wanted a process waited for it for ever, one after the other."""
    begun = tmp_path / "begun"
    code = f"import os, signal; open({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n'); signal.pause()"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", code])
    monkeypatch.setattr(forked_processes, "SECONDS_TO_IMPORT", 0.5)
    forks = forked_processes.ForkServer()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with asyncio.timeout(60):
            places = [forks.fork({}, "LINK", theirs) for _ in range(3)]
            assert await asyncio.gather(*places) == [None, None, None]
            await forks.start_again()
            assert await forks.fork({}, "LINK", theirs) is None
            await forks.close()
    pids = begun.read_text().split() if begun.exists() else []
    assert len(pids) <= 1  # it is not started again and again
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert capfd.readouterr().err.count("Importing has not ended within 0.5 s") == 1
