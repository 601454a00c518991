"""Prints docs/benchmarks.md and its plots from the measurements alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import words
from benchmarks.contenders import ALL, RIVAL_NAMES
from benchmarks.goals import goals, inverse, marginal
from benchmarks.plan import FLOORS, LOCAL, OURS
from benchmarks.reading import Reading, Spread
from benchmarks.results import Results

EVERYBODY = (*FLOORS, *OURS, *RIVAL_NAMES)
PLOTS = "benchmarks"
"""The folder of the plots, beside the page."""


IN_SHORT = ("<!-- of the benchmarks, by `make bench` -->", "<!-- so far -->")
"""The marks around the table in the README."""


def write_page(results: Results, docs: Path, readme: Path | None = None) -> Path:
    """Write the page and its plots, and the table of the README; needs matplotlib (`uv run --group bench`)."""
    from benchmarks.plots import draw

    read = Reading(results)
    plots = draw(read, docs / PLOTS)
    file = docs / "benchmarks.md"
    facts = json.loads((results.folder / "machine.json").read_text())
    file.write_text(render(read, facts, plots))
    if readme is not None:
        before, _, rest = readme.read_text().partition(IN_SHORT[0])
        after = rest.partition(IN_SHORT[1])[2]
        readme.write_text("".join((before, IN_SHORT[0], "\n", in_short(read), "\n", IN_SHORT[1], after)))
    return file


def in_short(read: Reading) -> str:
    """The short table: Mulligan and its rivals, with exact values and medians."""
    names = ("mulligan", *RIVAL_NAMES)
    ends = {True: "not ended: {:,} completed", False: "{:,}"}
    survived = [
        ends[line["outcome"] == "completed"].format(line["steps"]) if (line := read.survival(name)) else ""
        for name in names
    ]
    kilobytes = [f"{line['bytes'] / 1000:,.0f} KB" if (line := read.history(name, 40)) else "" for name in names]
    times = [_median(read.times("speed", name, "floor", 40), "{:.1f}") for name in names]
    rates = [_median(read.steps_a_second(name, 20), "{:.0f}") for name in names]
    memory = [_median(read.memory(name), "{:,.0f} KiB") for name in names]
    rows = [
        ("steps until Temporal ends the run", *survived),
        ("history of 40 steps", *kilobytes),
        ("time of a step in a run of 40 steps; a bare workflow is 1", *times),
        ("steps a second, 20 runs at once", *rates),
        ("memory of an open run of 100 steps", *memory),
    ]
    head = ("one tool call with a result of 1 KB per step", *(ALL[name].title for name in names))
    return table(head, [[cell or "not measured" for cell in row] for row in rows if any(row[1:])])


def render(read: Reading, facts: dict[str, Any], plots: Sequence[str] = ()) -> str:
    """The page's text."""
    pictures = {name.removesuffix(".svg"): f"![]({PLOTS}/{name})" for name in plots}
    sections = [
        words.HEAD,
        _facts(read, facts),
        _section("Goals", words.GOALS, _goals(read)),
        _section("History", words.HISTORY, _history(read), pictures.get("history")),
        _section("How far a run goes", words.SURVIVAL, _survival(read)),
        _section("The time of a step", words.SPEED, _speed(read), pictures.get("speed")),
        _section("Local tools", words.LOCAL, _local(read)),
        _section("Many runs at once", words.THROUGHPUT, _throughput(read), pictures.get("throughput")),
        _section("Memory of open runs", words.MEMORY, _memory(read), pictures.get("memory")),
        _section("Replay", words.REPLAY, _replay(read)),
        words.METHOD,
        words.UNFAIR,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with numbers aligned to the right; empty without rows."""
    if not rows:
        return ""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _section(title: str, says: str, figures: str, picture: str | None = None) -> str:
    return "\n\n".join(part for part in (f"## {title}", says, figures, picture) if part) if figures else ""


def _facts(read: Reading, facts: dict[str, Any]) -> str:
    commits = sorted({line["commit"] for line in read.results.lines})
    days = sorted({line["at"][:10] for line in read.results.lines})
    loads = read.loads()
    rows = [
        ("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}"),
        ("Python", facts["python"]),
        ("server", facts["server"]),
        ("Mulligan", f"commit {', '.join(commits)}; {_versions(facts['versions'])}"),
        *((ALL[_of(name)].title, _versions(versions)) for name, versions in sorted(facts["rivals"].items())),
        ("measured", f"{days[0]} to {days[-1]}" if days[1:] else "".join(days)),
        (
            "load of the machine",
            f"{loads.text(1)}: median, minimum and maximum, at the end of each measurement" if loads else "",
        ),
        ("raw numbers", "[benchmarks/results/measurements.jsonl](../benchmarks/results/measurements.jsonl)"),
    ]
    noisy = words.NOISY if loads and loads.median > facts["cores"] * 1.5 else ""
    told = "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in rows)])
    return "\n\n".join(part for part in (told, noisy) if part)


def _of(kind: str) -> str:
    """The first contender that a kind of worker serves."""
    return next(name for name, contender in ALL.items() if contender.worker.name == kind)


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _goals(read: Reading) -> str:
    verdicts = {True: "yes", False: "**no**", None: ""}
    rows = [(goal.figure, goal.aim, goal.measured, verdicts[goal.reached]) for goal in goals(read)]
    return table(("figure", "goal", "measured", "reached"), rows).replace("---:", "---")


def _history(read: Reading) -> str:
    sizes = read.sizes("history")
    rows = []
    for name in ("floor", "mulligan", "mulligan-local", *RIVAL_NAMES):
        lines = [read.history(name, size) for size in sizes]
        if any(lines):
            steps = marginal(read, name)
            growth = f"{steps[0]:,.0f} → {steps[1]:,.0f}" if steps else "–"
            rows.append((ALL[name].title, *(f"{line['bytes']:,}" if line else "–" for line in lines), growth))
    head = ("bytes, hand-overs included", *(f"{size:,} steps" for size in sizes), "bytes a step adds, 10–40 → 40–160")
    return table(head, rows)


def _survival(read: Reading) -> str:
    rows = []
    for name in ("mulligan", *RIVAL_NAMES, "pydantic-ai-continued"):
        if line := read.survival(name):
            sizes = [f"{line[kind] / 2**20:,.1f}" for kind in ("bytes", "carried_bytes")]
            ended = line["outcome"].replace("|", "/")
            rows.append(
                (ALL[name].title, f"{line['steps']:,}", ended, str(line["runs"]), *sizes, f"{line['seconds']:,}")
            )
    return table(("", "steps", "how it ended", "runs in the chain", "MiB of history", "MiB handed over", "s"), rows)


def _speed(read: Reading) -> str:
    rows = []
    for size in read.sizes("speed"):
        for name in EVERYBODY:
            if ms := read.ms_a_step(name, size):
                over = [_text(read.times("speed", name, base, size)) for base in FLOORS]
                cpu = [_text(read.cpu_ms_a_step(name, size, of), 1) for of in ("worker", "server", "endpoint")]
                rows.append((f"{ALL[name].title}, {size:,} steps", ms.text(1), *over, *cpu))
    head = ("", "ms a step", "times the floor", "times the floor with HTTP")
    return table((*head, "worker's CPU ms", "server's", "endpoint's"), rows)


def _local(read: Reading) -> str:
    rows = []
    for name, whole in LOCAL.items():
        for size in read.sizes("speed"):
            if times := read.times("speed", name, whole, size):
                both = [_text(read.ms_a_step_beside(name, of, size), 1) for of in (name, whole)]
                rows.append((f"{ALL[name].title}, {size:,} steps", *both, times.text()))
    return table(("", "ms a step", "the ordinary tool, in turn with it", "times"), rows)


def _throughput(read: Reading) -> str:
    rows = []
    for runs in read.sizes("throughput"):
        for name in EVERYBODY:
            if rate := read.steps_a_second(name, runs):
                shares = [_text(inverse(read.times("throughput", name, base, runs))) for base in FLOORS]
                rows.append((f"{ALL[name].title}, {runs} runs", rate.text(0), *shares))
    return table(("", "steps a second", "of the floor's", "of the floor's with HTTP"), rows)


def _memory(read: Reading) -> str:
    rows = [
        (ALL[name].title, each.text(0), _text(read.memory(name, "resident"), 0), _text(read.idle(name), 0))
        for name in ("floor", "mulligan", *RIVAL_NAMES)
        if (each := read.memory(name))
    ]
    return table(("", "KiB an open run (private)", "KiB an open run (resident)", "MiB of the idle worker"), rows)


def _replay(read: Reading) -> str:
    rows = []
    for size in read.sizes("replay"):
        for name in ("floor", "mulligan", *RIVAL_NAMES):
            if told := read.replay(name, size):
                rate, of_cpu, line = told
                row = (f"{ALL[name].title}, {size:,} steps", f"{line['events']:,}", f"{line['bytes'] / 2**20:,.2f}")
                rows.append((*row, rate.text(0), of_cpu.text(0)))
    return table(("", "events", "MiB", "events a second", "events a second of CPU time"), rows)


def _median(value: Spread | None, form: str) -> str:
    return form.format(value.median) if value else ""


def _text(value: Spread | None, digits: int = 2) -> str:
    return value.text(digits) if value else "–"
