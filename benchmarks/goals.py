"""The goals, and whether the measurements reach them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contenders import ALL, RIVAL_NAMES
from benchmarks.plan import LOCAL
from benchmarks.reading import Reading, Spread

KB = 1024
SHARES = {"floor": 0.90, "floor-http": 0.95}
"""The required shares of a floor's steps a second."""
TIMES = {"floor": 1.10, "floor-http": 1.05}
"""How many times a floor's time a step may take."""
CPU_TIMES = {40: 1.10, 160: 1.05}
"""How many times the CPU time of the floor with the HTTP request a worker may use, by the steps of the run."""
LOCAL_SHARE = 0.75
BYTES_A_STEP = 2.5 * KB
KIB_A_RUN = 1_024
SECONDS_TO_START = {
    "import mulligan": 0.2,
    "from mulligan import Agent, tool": None,
    "mulligan --help": 0.3,
    "python -c ''": None,
}
SURVIVED = 10_000


@dataclass(frozen=True)
class Goal:
    """A row: the figure, its goal, and the measured value; `reached` is None for rows without a goal."""

    figure: str
    aim: str
    measured: str
    reached: bool | None


PAIRS = (
    ("mulligan", "floor", "over HTTP, against the floor"),
    ("mulligan-scripted", "floor", "model in process, against the floor"),
    ("mulligan", "floor-http", "over HTTP, against the floor with HTTP"),
)


def goals(read: Reading) -> list[Goal]:
    """All rows with measurements."""
    by_figure = (_history, _survival, _speed, _throughput, _local, _memory, _start)
    return [goal for figure in by_figure for goal in figure(read)]


def marginal(read: Reading, name: str) -> tuple[float, float] | None:
    """Bytes that a step adds between the first two sizes, and between the second and the third."""
    found = [(size, line["bytes"]) for size in (10, 40, 160) if (line := read.history(name, size))]
    if len(found) < 3:
        return None
    (a, at_a), (b, at_b), (c, at_c) = found
    return (at_b - at_a) / (b - a), (at_c - at_b) / (c - b)


def _history(read: Reading) -> Iterator[Goal]:
    if steps := marginal(read, "mulligan"):
        told = f"a step adds {steps[0]:,.0f} bytes from 10 to 40 steps, {steps[1]:,.0f} from 40 to 160"
        yield Goal("growth of history", "linear", told, steps[1] <= 1.05 * steps[0])
    if line := read.history("mulligan", 160):
        a_step = line["bytes"] / 160
        told = f"{a_step / KB:.2f} KB at 160 steps"
        yield Goal("history of a step", "at most 2.5 KB", told, a_step <= BYTES_A_STEP)
    rivals = [line["bytes"] for name in RIVAL_NAMES if (line := read.history(name, 40))]
    if rivals and (line := read.history("mulligan", 40)):
        told = (
            f"{line['bytes']:,} bytes; the best rival {min(rivals):,}, {min(rivals) / line['bytes']:.1f} times as much"
        )
        yield Goal("history of 40 steps", "a tenth of the best rival's", told, 10 * line["bytes"] <= min(rivals))


def _survival(read: Reading) -> Iterator[Goal]:
    if line := read.survival("mulligan"):
        told = f"{line['steps']:,} steps in {line['runs']} runs: {line['outcome']}"
        reached = line["outcome"] == "completed" and line["steps"] >= SURVIVED
        yield Goal("steps survived", "no end: 10,000 shown", told, reached)


def _speed(read: Reading) -> Iterator[Goal]:
    for steps in read.sizes("speed")[-2:]:
        for name, base, told in PAIRS:
            if times := read.times("speed", name, base, steps):
                figure = f"time of a step at {steps:,} steps, {told}"
                yield Goal(
                    figure, f"at most {TIMES[base]:.2f} times", f"{times.text()} times", times.median <= TIMES[base]
                )
    for steps, most in CPU_TIMES.items():
        if times := read.cpu_times("mulligan", "floor-http", steps):
            figure = f"the worker's CPU time of a step at {steps} steps, over HTTP, against the floor with HTTP"
            yield Goal(figure, f"at most {most:.2f} times", f"{times.text()} times", times.median <= most)


def _throughput(read: Reading) -> Iterator[Goal]:
    for runs in read.sizes("throughput"):
        for name, base, told in PAIRS:
            if share := inverse(read.times("throughput", name, base, runs)):
                figure = f"steps a second, {runs} runs at once, {told}"
                aim = f"at least {SHARES[base]:.2f} of the floor's"
                yield Goal(figure, aim, share.text(), share.median >= SHARES[base])
        ours = read.times("throughput", "mulligan", "floor", runs)
        others = {name: times for name in RIVAL_NAMES if (times := read.times("throughput", name, "floor", runs))}
        if ours and others:
            best = min(others, key=lambda name: others[name].median)
            told = f"{others[best].median / ours.median:.2f} times the best rival's ({ALL[best].title})"
            reached = ours.median < others[best].median
            yield Goal(f"steps a second, {runs} runs at once", "above every rival", told, reached)


def _local(read: Reading) -> Iterator[Goal]:
    for name, whole in LOCAL.items():
        for steps in read.sizes("speed"):
            if times := read.times("speed", name, whole, steps):
                told = "model in process" if "scripted" in name else "over HTTP"
                figure = f"a step with a local tool, {told}, {steps} steps"
                aim = "at most 0.75 of the ordinary step's time"
                yield Goal(figure, aim, times.text(), times.median <= LOCAL_SHARE)


def _memory(read: Reading) -> Iterator[Goal]:
    ours = read.memory("mulligan")
    others = {name: each for name in RIVAL_NAMES if (each := read.memory(name))}
    if ours:
        yield Goal(
            "memory of an open run of 100 steps",
            f"at most {KIB_A_RUN:,} KiB",
            f"{ours.text(0)} KiB",
            ours.median <= KIB_A_RUN,
        )
    if ours and others:
        best = min(others, key=lambda name: others[name].median)
        told = f"{ours.text(0)} KiB; the best rival {others[best].text(0)} ({ALL[best].title})"
        reached = ours.median < others[best].median
        yield Goal("memory of an open run of 100 steps", "below every rival", told, reached)


def _start(read: Reading) -> Iterator[Goal]:
    for command, most in SECONDS_TO_START.items():
        if seconds := read.start(command):
            aim, reached = (f"at most {most} s", seconds.median <= most) if most else ("", None)
            yield Goal(f"`{command}`", aim, f"{seconds.text()} s", reached)


def inverse(times: Spread | None) -> Spread | None:
    """The share of a speed, converted from the ratio of times."""
    return Spread(1 / times.median, 1 / times.most, 1 / times.least, times.count) if times else None
