"""Explores the schedules of a case: depth first, each schedule from its start, without those that differ in nothing.

Two events of different runs (of a run and its sub-agent) change nothing for each other, so of schedules that differ only
in the order of such neighbours, one is explored (sleep sets; Godefroid 1996).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from temporalio.client import WorkflowQueryFailedError

from mulligan.testing._workflow_run import WorkflowTaskFailedError
from tests.schedules.cases import Case
from tests.schedules.invariants import faults_of
from tests.schedules.real_activities import RealActivities
from tests.schedules.world import Event, World

MOST_EVENTS = 200
"""A schedule with more is a run that does not end."""
MOST_FAULTS = 5


@dataclass
class Explored:
    """What the exploration of a case found."""

    case: Case
    schedules: int = 0
    events: int = 0
    longest: int = 0
    skipped: int = 0
    """Schedules that were left because they differ in nothing from others."""
    is_complete: bool = False
    """Whether all schedules were explored."""
    seconds: float = 0
    endings: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def explore(
    case: Case, activities: RealActivities, *, most: int, seconds: float, seed: int | None = None, replay_each: int = 1
) -> Explored:
    """Run schedules until all are done, or `most`, or for `seconds`.

    Args:
        case: The run, and what may happen to it.
        activities: Those of all cases.
        most: Of schedules.
        seconds: When to end at the latest.
        seed: In a random order, for a case with too many.
        replay_each: Every how many schedules one is replayed from its history.
    """
    found, begin = Explored(case), time.monotonic()
    chance = random.Random(seed) if seed is not None else None
    waiting: list[tuple[tuple[Event, ...], frozenset[Event]]] = [((), frozenset())]
    while waiting and found.schedules < most and time.monotonic() - begin < seconds and len(found.faults) < MOST_FAULTS:
        index = chance.randrange(len(waiting)) if chance else len(waiting) - 1
        waiting[index], waiting[-1] = waiting[-1], waiting[index]
        prefix, sleeping = waiting.pop()
        world = World(case, activities)
        try:
            if _run(world, prefix, sleeping, waiting):
                _take(found, world, replay_each)
            else:
                found.skipped += 1
        except (WorkflowTaskFailedError, WorkflowQueryFailedError) as error:
            found.faults.append(f"an activation failed: {error}\nafter {_text(world.path)}")
        finally:
            world.close()
    found.is_complete, found.seconds = not waiting, time.monotonic() - begin
    return found


def _run(
    world: World,
    prefix: Iterable[Event],
    sleeping: frozenset[Event],
    waiting: list[tuple[tuple[Event, ...], frozenset[Event]]],
) -> bool:
    """Run one schedule that begins as given; what else could have happened is added to `waiting`. False: it is a repetition."""
    for event in prefix:
        world.happen(event)
    while not world.is_over and len(world.path) < MOST_EVENTS:
        enabled = world.enabled()
        if not enabled:
            return True
        options = [event for event in enabled if event not in sleeping]
        if not options:
            return False
        for index in range(len(options) - 1, 0, -1):
            event = options[index]
            asleep = frozenset(each for each in sleeping.union(options[:index]) if _is_independent(each, event))
            waiting.append(((*world.path, event), asleep))
        world.happen(options[0])
        sleeping = frozenset(each for each in sleeping if _is_independent(each, options[0]))
    return True


def _is_independent(one: Event, other: Event) -> bool:
    """Whether their order makes no difference: they are of different runs, and share no budget of the case."""
    shares = (one.how == "lost" and other.how == "lost") or (one.second is not None and other.second is not None)
    return one.run != other.run and not shares


def _take(found: Explored, world: World, replay_each: int) -> None:
    found.schedules += 1
    found.events += len(world.path)
    found.longest = max(found.longest, len(world.path))
    if not world.is_over:
        found.faults.append(f"stuck after {_text(world.path)}")
        return
    number, rest = divmod(found.schedules, replay_each)
    faults, ending = faults_of(world, None if rest else number)
    found.endings[ending] = found.endings.get(ending, 0) + 1
    found.faults += [f"{fault}\nafter {_text(world.path)}" for fault in faults]


def _text(path: Iterable[Event]) -> str:
    def words(event: Event) -> str:
        both = f" together with {event.second}" if event.second else ""
        return f"{event.run}: {event.kind} {event.number} {event.how}{both}".rstrip()

    return "; ".join(map(words, path))
