"""When a supervisor replaces its processes, on a simulated clock: at once after service, later and later after none."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict, deque
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.client.settings import settings as mulligan_settings
from mulligan.supervisor import supervisor
from mulligan.supervisor.forked_processes import ForkServer
from mulligan.supervisor.supervisor import FIRST_DELAY, LONGEST_DELAY, SECONDS_TO_LAST
from mulligan.supervisor.worker_process import WorkerProcess
from tests.support.virtual_time import VirtualTimeLoop

End = Literal["dies at start", "dies after service", "retires"]
SECONDS_TO_START = 5.0
LIVES = st.lists(
    st.tuples(
        st.sampled_from(["dies at start", "dies at start", "dies after service", "retires"]),
        st.floats(0.1, 100).map(lambda seconds: round(seconds, 1)),
        st.floats(0.1, 20).map(lambda seconds: round(seconds, 1)),
    ),
    max_size=12,
)
"""Of the processes of one place: how each ends, its seconds of service, and its seconds of draining. The next one serves for ever."""


@dataclasses.dataclass
class Life:
    """What became of one process, in seconds of the simulated clock. `left_at`: when it died, or began to drain."""

    process: WorkerProcess
    end: End | None = None
    started_at: float = 0
    left_at: float = 0
    ended_at: float = 0
    others_served: bool = False


class Simulated(WorkerProcess):
    """A process that is not started: it serves, retires and dies by the plan of its place."""

    plans: defaultdict[int, deque[tuple[End, float, float]]]
    lives: defaultdict[int, list[Life]]

    async def start(self, forks: ForkServer, *, is_first: bool) -> None:
        del forks, is_first
        self.life = Life(self, started_at=asyncio.get_running_loop().time())
        self.lives[self.index].append(self.life)
        self._living = asyncio.create_task(self._live())

    @property
    def pid(self) -> int:
        return id(self)

    async def wait(self) -> int:
        await self._living
        self.ended.set()
        return 1

    async def _live(self) -> None:
        clock, plan = asyncio.get_running_loop().time, self.plans[self.index]
        self.life.end, service, drain = plan.popleft() if plan else (None, 0.0, 0.0)
        if self.life.end == "dies at start":
            await asyncio.sleep(service / 50)
        else:
            await asyncio.sleep(SECONDS_TO_START)
            self._state(0, b'{"unready": "", "retires": false}')
            if self.life.end is None:
                await asyncio.Event().wait()
            await asyncio.sleep(service)
        self.life.left_at = clock()
        if self.life.end == "retires":
            self._state(0, b'{"unready": "no threads left", "retires": true}')
            await asyncio.sleep(drain)
        self.unready = "ended"
        self.life.ended_at = clock()
        living = [each[-1].process for index, each in self.lives.items() if index != self.index]
        self.life.others_served = any(not each.unready for each in living)


async def no_server() -> None:
    raise RuntimeError("there is no server")


def lives_of(plans: list[list[tuple[End, float, float]]]) -> list[list[Life]]:
    """Supervise until all places have a process that serves for ever; the lives of each place's processes."""
    Simulated.lives = defaultdict(list)
    Simulated.plans = defaultdict(deque, {index: deque(plan) for index, plan in enumerate(plans, 1)})

    async def serve() -> None:
        supervising = supervisor._Supervisor(len(plans), mulligan_settings())
        keeping = [asyncio.create_task(supervising._keep(index, is_first=False)) for index in range(1, len(plans) + 1)]
        while not all(each and each[-1].end is None and not each[-1].process.unready for each in lives()):
            await asyncio.sleep(1)
        assert not await supervising._unready()
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)

    def lives() -> list[list[Life]]:
        return [Simulated.lives[index] for index in range(1, len(plans) + 1)]

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        patch.setattr(supervisor, "WorkerProcess", Simulated)
        patch.setattr(supervisor, "say", lambda _: None)
        patch.setattr(supervisor, "connect", no_server)
        runner.run(serve())
    return lives()


@settings(max_examples=100, deadline=None)
@given(st.lists(LIVES, min_size=1, max_size=4))
def test_a_process_that_has_served_is_replaced_at_once_and_starts_without_service_are_bounded(
    plans: list[list[tuple[End, float, float]]],
) -> None:
    """However short its service was, and however often its place failed before.

    A process that retires is not waited for, but its predecessor may have retired as early: then there is a pause.
    """
    for lives in lives_of(plans):
        failures, left_before, pause = 0, 0.0, 0.0
        for life, following in pairwise(lives):
            waited = following.started_at - life.left_at
            if life.end == "retires":
                # A place has no more than two processes.
                is_brief = life.left_at - life.started_at < SECONDS_TO_LAST
                wait = pause if is_brief else 0.0
                assert following.started_at == pytest.approx(max(life.left_at, left_before) + wait)
                pause = (min(LONGEST_DELAY, wait * 2) or FIRST_DELAY) if is_brief else 0.0
                failures, left_before = 0, life.ended_at
            elif life.end == "dies after service":
                assert waited <= (FIRST_DELAY if life.others_served else 0) + 1e-6
                failures = 1
            else:
                expected = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1)) if failures else 0.0
                assert expected - 1e-6 <= waited <= max(expected, FIRST_DELAY) + 1e-6
                failures += 1


def test_processes_that_die_again_and_again_after_short_service_leave_no_pause() -> None:
    """All at the same time, within a minute of service each: a new process of each place starts at once."""
    plans: list[list[tuple[End, float, float]]] = [[("dies after service", 10.0, 0.0)] * 8 for _ in range(4)]
    for lives in lives_of(plans):
        starts = [each.started_at for each in lives]
        assert starts == pytest.approx([15.0 * number for number in range(9)], abs=FIRST_DELAY * 8)


def test_processes_that_retire_again_and_again_soon_after_their_start_are_replaced_after_pauses() -> None:
    """As where the server refuses their polls for ever. The first is replaced at once, also while no other serves."""
    plans: list[list[tuple[End, float, float]]] = [[("retires", 1.0, 0.1)] * 9 for _ in range(2)]
    for lives in lives_of(plans):
        waits = [following.started_at - life.left_at for life, following in pairwise(lives)]
        assert waits == pytest.approx([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])


def test_processes_that_retire_after_a_minute_are_replaced_at_once() -> None:
    plans: list[list[tuple[End, float, float]]] = [[("retires", SECONDS_TO_LAST, 0.1)] * 4]
    for lives in lives_of(plans):
        assert all(following.started_at == life.left_at for life, following in pairwise(lives))


async def test_a_process_that_fails_before_it_has_served_does_not_retire() -> None:
    """Its end is that of a start that led to no service."""
    process = WorkerProcess(1, lambda *_: None, lambda *_: None)
    process._state(0, b'{"unready": "no polls", "retires": true}')
    assert not process.retires.is_set()
    process._state(0, b'{"unready": "", "retires": false}')
    process._state(0, b'{"unready": "no polls", "retires": true}')
    assert process.retires.is_set()
