"""What is measured, of whom, how often: the whole, or the quick one of minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contenders import RIVAL_NAMES
from benchmarks.results import Job

FIGURES = ("history", "speed", "throughput", "memory", "replay", "survival")
"""In the order in which they are measured: what takes longest comes last."""

FLOORS = ("floor", "floor-http")
OURS = ("mulligan", "mulligan-scripted")
LOCAL = {"mulligan-local": "mulligan", "mulligan-scripted-local": "mulligan-scripted"}
"""With local tools, and what that is compared to."""


@dataclass(frozen=True)
class Sizes:
    """How much of each."""

    steps: tuple[int, ...]
    far: int
    """Steps that floors and ours alone are measured at, for whether time stays flat."""
    history_far: int
    runs: tuple[int, ...]
    open_runs: int
    replayed: int
    replayed_far: int
    survived: int
    repeats: int
    memory_repeats: int


WHOLE = Sizes((10, 40, 160), 2000, 1000, (20, 100), 30, 100, 1000, 10_000, 5, 3)
QUICK = Sizes((10, 40), 160, 160, (20,), 10, 20, 100, 200, 2, 1)


def jobs(sizes: Sizes) -> list[Job]:
    """All of it, in order."""
    all_of_them = (*OURS, *RIVAL_NAMES)
    made = [
        Job("history", name, steps)
        for name in ("floor", "mulligan", "mulligan-local", *RIVAL_NAMES)
        for steps in sizes.steps
    ]
    made.append(Job("history", "mulligan", sizes.history_far))
    for steps in sizes.steps:
        made += [Job("speed", name, steps, sizes.repeats, FLOORS) for name in all_of_them]
    made += [Job("speed", name, sizes.far, sizes.repeats, FLOORS) for name in OURS]
    made += [Job("speed", name, sizes.steps[-1], sizes.repeats, (whole,)) for name, whole in LOCAL.items()]
    for runs in sizes.runs:
        made += [Job("throughput", name, runs, sizes.repeats, FLOORS) for name in all_of_them]
    made += [Job("memory", name, sizes.open_runs, sizes.memory_repeats) for name in ("floor", "mulligan", *RIVAL_NAMES)]
    made += [Job("replay", name, sizes.replayed) for name in ("floor", "mulligan", *RIVAL_NAMES)]
    made += [Job("replay", name, sizes.replayed_far) for name in ("floor", "mulligan")]
    endless = [*RIVAL_NAMES, "pydantic-ai-continued"] if sizes is WHOLE else []
    made += [Job("survival", name, sizes.survived) for name in (*endless, "mulligan")]
    return made


def chosen(
    made: Sequence[Job], figures: Sequence[str] = (), contenders: Sequence[str] = (), sizes: Sequence[int] = ()
) -> list[Job]:
    """Those of these figures, contenders and sizes; of all where none is named."""
    return [
        job
        for job in made
        if (not figures or job.figure in figures)
        and (not contenders or job.contender in contenders)
        and (not sizes or job.size in sizes)
    ]
