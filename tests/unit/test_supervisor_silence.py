"""A worker process that sends nothing is killed, unless it was the supervisor that did not read."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from mulligan.client.settings import settings
from mulligan.supervisor import supervisor
from mulligan.supervisor.worker_process import WorkerProcess


class Recorded(WorkerProcess):
    """A process that is not started: it records the signals that it is sent."""

    def __init__(self) -> None:
        super().__init__(1, lambda *_: None, lambda *_: None)
        self.identity, self.unready = "1@here", ""
        self.signals: list[signal.Signals] = []

    @property
    def pid(self) -> int:
        return 1

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
