"""The faults: each hits its victim again and again until it is cancelled, with random pauses that the seed decides."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx2

from tests.chaos import named_points
from tests.chaos.plan import Kill, Outcome
from tests.support.otlp_receiver import OtlpReceiver

Restart = Callable[[], Awaitable[None]]
LEFT = 1
"""Serving processes that a kill leaves alive: without one, the time to start a process would be measured."""


class Faults:
    """Injects the faults of one seed. `processes`: the ids of those that serve, now; `ledger`: the file of effects; `ready`:
    whether all of them serve."""

    def __init__(
        self,
        outcome: Outcome,
        chance: random.Random,
        processes: Callable[[], list[int]],
        ledger: Path,
        ready: Callable[[], Awaitable[bool]],
    ) -> None:
        self._outcome, self._chance, self._processes = outcome, chance, processes
        self._ledger, self._ready = ledger, ready
        self._read_to, self._served = 0, set[int]()

    async def kill_children(self) -> None:
        """Kill one process of the supervisor after the other."""
        for _ in range(self._outcome.plan.kills):
            await self.pause()
            await self.kill_child()

    async def kill_child(self) -> None:
        """Kill a process of the supervisor that has run tools."""
        pid = await self._working_child()
        os.kill(pid, signal.SIGKILL)
        self._note(pid)

    async def freeze_children(self) -> None:
        """Stop a process for a while, and continue it."""
        for _ in range(self._outcome.plan.kills):
            await self.pause()
            pid = await self._working_child()
            os.kill(pid, signal.SIGSTOP)
            self._note(pid)
            try:
                await asyncio.sleep(self._chance.uniform(1, 12))
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    async def kill_and_restart(self, victims: Callable[[], list[int]], restart: Restart) -> None:
        """Kill a process that nothing replaces, and start another one."""
        for _ in range(self._outcome.plan.kills):
            await self.pause()
            await self.kill_once(victims, restart)

    async def kill_once(self, victims: Callable[[], list[int]], restart: Restart) -> None:
        """Kill the first of these processes, and start another one."""
        for pid in victims()[:1]:
            os.kill(pid, signal.SIGKILL)
            self._note(pid if self._outcome.plan.victim == "unsupervised" else 0)
        await restart()

    async def refuse_spans(self, otlp: OtlpReceiver) -> None:
        """Let the OTLP receiver be gone for a while."""
        for _ in range(self._outcome.plan.kills):
            await self.pause()
            otlp.refuse()
            self._note(0)
            try:
                await asyncio.sleep(self._chance.uniform(1, 4))
            finally:
                otlp.accept()

    async def pause(self) -> None:
        """Wait for as long as the seed says."""
        await asyncio.sleep(self._chance.uniform(*self._outcome.plan.pause))

    def _note(self, pid: int) -> None:
        self._outcome.kills.append(Kill(time.time(), pid))

    async def _working_child(self) -> int:
        """A process that has run tools, while another one serves."""
        while True:
            self._read_ledger()
            working = [pid for pid in self._processes() if pid in self._served]
            if len(working) > LEFT or (working and await self._ready()):
                return self._chance.choice(working)
            await asyncio.sleep(0.05)

    def _read_ledger(self) -> None:
        """Note which processes have run tools, from the lines that are new."""
        with self._ledger.open("rb") as file:
            file.seek(self._read_to)
            lines = file.read()
        complete = lines[: lines.rfind(b"\n") + 1]
        self._read_to += len(complete)
        self._served |= {json.loads(line)["pid"] for line in complete.splitlines()}


async def is_ready(address: str | None) -> bool:
    """Whether all processes of a supervisor serve; True without an address."""
    if address is None:
        return True
    async with httpx2.AsyncClient(verify=False) as client:  # plain HTTP: certificates take 20 ms to load
        return (await client.get(f"http://{address}/readyz")).status_code == 200


def plan_points(outcome: Outcome, chance: random.Random, folder: Path) -> dict[str, str]:
    """Choose the named points of a seed; returns the environment of the workers."""
    if outcome.plan.victim != "point":
        return {}
    file = folder / f"points-{outcome.plan.seed}"
    file.write_text(json.dumps(chance.sample(named_points.ALL, outcome.plan.kills)))
    return {named_points.POINTS: str(file)}
