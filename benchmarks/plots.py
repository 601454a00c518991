"""The plots of the page as SVG: deterministic, with colours that are legible on white and on black."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.contenders import ALL, RIVAL_NAMES
from benchmarks.plan import FLOORS, OURS
from benchmarks.reading import Reading, Spread

INK = "#7d8590"
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "mulligan",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
        ),
    }
)


def draw(read: Reading, folder: Path) -> list[str]:
    """Draw the plots; return the names of their files."""
    drawn = {"history.svg": _history, "speed.svg": _speed, "throughput.svg": _throughput, "memory.svg": _memory}
    names = []
    for name, make in drawn.items():
        figure = make(read)
        if figure is not None:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(folder / name, transparent=True, metadata={"Date": None}, bbox_inches="tight")
            names.append(name)
    return names


def _lines(series: dict[str, list[tuple[int, float]]], title: str, unit: str, *, logarithmic: bool) -> Figure | None:
    series = {name: points for name, points in series.items() if len(points) > 1}
    if not series:
        return None
    figure = Figure(figsize=(7.5, 4))
    axes = figure.add_subplot()
    for name, points in series.items():
        xs, ys = zip(*sorted(points), strict=True)
        style: dict[str, Any] = {"linestyle": "--"} if name in FLOORS else {}
        axes.plot(xs, ys, marker="o", markersize=4, color=ALL[name].colour, label=ALL[name].title, **style)
    axes.set_xscale("log")
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    ticks = sorted({x for points in series.values() for x, _ in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set(title=title, xlabel="steps", ylabel=unit)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _history(read: Reading) -> Figure | None:
    series = {
        name: [(size, line["bytes"]) for size in read.sizes("history") if (line := read.history(name, size))]
        for name in ("floor", "mulligan", "mulligan-local", *RIVAL_NAMES)
    }
    return _lines(series, "Bytes of history by steps", "bytes", logarithmic=True)


def _speed(read: Reading) -> Figure | None:
    series = {
        name: [(size, ms.median) for size in read.sizes("speed") if (ms := read.ms_a_step(name, size))]
        for name in (*FLOORS, *OURS, *RIVAL_NAMES)
    }
    return _lines(series, "Milliseconds a step, one run", "ms", logarithmic=False)


def _bars(rows: Sequence[tuple[str, Spread]], title: str) -> Figure | None:
    if not rows:
        return None
    figure = Figure(figsize=(7.5, 0.42 * len(rows) + 0.9))
    axes = figure.add_subplot()
    for place, (name, value) in enumerate(reversed(rows)):
        errors = [[value.median - value.least], [value.most - value.median]]
        bar = {"ecolor": INK, "capsize": 3}
        axes.barh(place, value.median, xerr=errors, color=ALL[name].colour, error_kw=bar, height=0.65)
        axes.text(value.most, place, f"  {value.median:,.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [ALL[name].title for name, _ in reversed(rows)])
    axes.set_title(title)
    axes.margins(x=0.12)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _throughput(read: Reading) -> Figure | None:
    sizes = read.sizes("throughput")
    names = (*FLOORS, *OURS, *RIVAL_NAMES)
    rows = [(name, rate) for name in names if sizes and (rate := read.steps_a_second(name, sizes[-1]))]
    return _bars(rows, f"Steps a second, {sizes[-1] if sizes else 0} runs at once (more is better)")


def _memory(read: Reading) -> Figure | None:
    rows = [(name, memory) for name in ("floor", "mulligan", *RIVAL_NAMES) if (memory := read.memory(name))]
    return _bars(rows, "KiB of a worker's memory for an open run of 100 steps (less is better)")
