"""The plan: which figures are measured for which contenders and how often, in full or in a quick version of minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.contenders import RIVAL_NAMES
from benchmarks.results import Job

FIGURES = ("start", "history", "speed", "throughput", "memory", "replay", "survival")
"""The figures in the order of measurement; the longest comes last."""

FLOORS = ("floor", "floor-http")
OURS = ("mulligan", "mulligan-scripted")
NO_REPLAY = "agent-harness"
"""The histories of its version 0.8.0 do not replay in a new process; why is not known (its worker.py)."""
LOCAL = {"mulligan-local": "mulligan", "mulligan-scripted-local": "mulligan-scripted"}
"""Contenders with local tools, and those they are compared to."""


@dataclass(frozen=True)
class Sizes:
    """The sizes and repeats of each figure."""

    steps: tuple[int, ...]
    far: int
    """The numbers of steps at which only the floors and Mulligan are measured, to see whether the time of a step grows."""
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
    """All jobs in their order."""
    all_of_them = (*OURS, *RIVAL_NAMES)
    made = [Job("start", "mulligan", 1, sizes.repeats)]
    made += [
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
    made += [Job("replay", name, sizes.replayed) for name in ("floor", "mulligan", *RIVAL_NAMES) if name != NO_REPLAY]
    made += [Job("replay", name, sizes.replayed_far) for name in ("floor", "mulligan")]
    endless = [*RIVAL_NAMES, "pydantic-ai-continued"] if sizes is WHOLE else []
    made += [Job("survival", name, sizes.survived) for name in (*endless, "mulligan")]
    return made


def chosen(
    made: Sequence[Job],
    figures: Sequence[str] = (),
    contenders: Sequence[str] = (),
    sizes: Sequence[int] = (),
    repeats: int | None = None,
) -> list[Job]:
    """The jobs of these figures, contenders and sizes, each repeated at most so often; an empty list selects all."""
    return [
        replace(job, repeats=min(job.repeats, repeats or job.repeats))
        for job in made
        if (not figures or job.figure in figures)
        and (not contenders or job.contender in contenders)
        and (not sizes or job.size in sizes)
    ]
