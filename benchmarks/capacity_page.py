"""Prints docs/capacity.md from what was counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import capacity_words as words
from benchmarks.contenders import ALL, RIVAL_NAMES
from benchmarks.load_model import (
    CACHED,
    CLOUD_APS,
    CLOUD_LOOKS,
    CLOUD_RPS,
    CONTINUES_AFTER,
    CPU_SHARE,
    DATABASE_QPS,
    FRONTENDS_RPS,
    IDLE,
    PARTITION_RPS,
    PARTITIONS,
    SHARDS,
    SLOTS,
    WATCHERS,
    Counted,
    Demand,
    Limit,
    Load,
    total,
)
from benchmarks.page import SHORTEST, short_title, table
from benchmarks.reading import Reading
from benchmarks.results import Results

SIZES = (1_000, 100_000, 1_000_000)
STEPS = (10, 40, 160)
NAMES = ("floor", "mulligan", "mulligan-local", *RIVAL_NAMES)
KINDS = ("person", "callback", "timer")

LIMITS = (
    Limit("Temporal Cloud: actions a second of a namespace", CLOUD_APS, lambda d: d.actions, "limits", "cloud"),
    Limit("Temporal Cloud: requests a second of a namespace", CLOUD_RPS, lambda d: d.cloud_requests, "modes", "cloud"),
    Limit(
        "your server: requests a second of a namespace, for each frontend",
        FRONTENDS_RPS, lambda d: d.requests, "config", "frontends",
    ),
    Limit(
        "your server: database requests a second, for each history host",
        DATABASE_QPS, lambda d: d.database, "config", "history",
    ),
    Limit(
        "your server: tasks a second of a task queue",
        PARTITIONS * PARTITION_RPS, lambda d: d.tasks, "config", "queues",
    ),
    Limit("two worker processes: runs in memory", 2 * CACHED, lambda d: d.runs, "page", "cache"),
    Limit("two worker processes: calls that are open", 2 * SLOTS, lambda d: d.calls, "page", "workers"),
    Limit("two worker processes: cores", 2 * CPU_SHARE, lambda d: d.cores_with(2), "page", "workers"),
    Limit("two replicas of `mulligan serve`: watchers", 2 * WATCHERS, lambda d: d.watchers, "page", "serve"),
)  # fmt: skip


def render(results: Results, measured: Results, load: Load) -> str:
    """The page's text. `measured`: the results of `make bench`, for memory."""
    counted = Counted(results, measured)
    waiting = _json_lines(results.folder / "waiting.jsonl")
    sections = [
        words.HEAD,
        _facts(results),
        words.IN_SHORT.format(**_in_short(counted, load)),
        words.COUNTED,
        words.STEP,
        _steps(counted),
        words.STEP_AFTER,
        words.WAIT.format(seconds=counted.line("wait", "person")["idle_seconds"]),
        _waits(counted),
        words.WAIT_AFTER,
        words.LIVE,
        _live(counted),
        words.LIVE_AFTER,
        words.OPEN,
        _open(counted, Reading(measured)),
        words.LOAD.format(**load.__dict__, load=load),
        _sizes(counted, load),
        words.LIMITS,
        _limits(counted, load),
        words.THEN,
        _checked(counted, waiting),
        words.METHOD,
    ]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _facts(results: Results) -> str:
    loads = sorted(line["load"] for line in results.lines)
    days = sorted({line["at"][:10] for line in results.lines})
    commits = sorted({line["commit"] for line in results.lines})
    servers = sorted({line["server"] for line in results.lines})
    rows = [
        ("counted", f"{' and '.join(dict.fromkeys([days[0], days[-1]]))}, commit {', '.join(commits)}"),
        ("server", "; ".join(servers)),
        ("load of the machine (2 cores)", f"{loads[0]} to {loads[-1]}, median {loads[len(loads) // 2]}"),
        ("raw numbers", "[benchmarks/results/capacity.jsonl](../benchmarks/results/capacity.jsonl)"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in rows)])


def _in_short(counted: Counted, load: Load) -> dict[str, str]:
    step = counted.step("mulligan", 160)
    cloud = min(LIMITS[:2], key=lambda limit: limit.met_at(load, counted))
    own = min(LIMITS[2:5], key=lambda limit: limit.met_at(load, counted))
    return {
        "actions": _number(step.actions),
        "requests": _number(step.requests),
        "cloud": cloud.name.partition(": ")[2],
        "cloud_at": f"{cloud.met_at(load, counted):,}",
        "own": own.name.partition(": ")[2],
        "own_at": f"{own.met_at(load, counted):,}",
        "heartbeats": _number(counted.heartbeats()),
        "cloud_heartbeats": _number(counted.heartbeats("watched, Temporal Cloud")),
    }


def _steps(counted: Counted) -> str:
    """A row for each contender: the counts of the longest run, and what differs between runs."""
    sizes = [size for size in STEPS if size >= SHORTEST]
    rows = []
    for name in NAMES:
        steps = [counted.step(name, size) for size in sizes]
        counts = (steps[-1].events, steps[-1].actions, steps[-1].requests, steps[-1].database)
        loads = (f"{counted.line('steps', name, size)['load']:.0f}" for size in sizes)
        rows.append(
            (
                short_title(name),
                *(_number(value) for value in counts),
                *(f"{step.bytes:,.0f}" for step in steps),
                *(_number(step.worker_ms) for step in steps),
                ", ".join(loads),
            )
        )
    head = ("a step, mean of a run", "events", "actions", "requests", "database")
    more = (f"{what}, {size} steps" for what in ("bytes", "CPU ms") for size in sizes)
    return table((*head, *more, "load"), rows)


def _waits(counted: Counted) -> str:
    rows = []
    titles = {"until it waits": "until it waits", "end": "from the wait to the end"}
    for kind in KINDS:
        line = counted.line("wait", kind)
        for name, title in titles.items():
            phase = line["phases"][name]
            counts = (total(phase[of], *IDLE) / line["size"] for of in ("actions", "requests", "database"))
            cells = (_number(line["events"][name]), *(_number(value) for value in counts), f"{line['bytes'][name]:,}")
            ms = line["cpu"][name]["worker"] * 1000 / line["size"]
            rows.append((f"{kind}: {title}", *cells, _number(ms)))
        waiting = line["phases"]["waiting"]
        idle = total(waiting["actions"]), total(waiting["requests"], *IDLE, "PollWorkflowTaskQueue")
        if any(idle):  # the text says that a wait costs nothing
            rows.append((f"{kind}: while it waits", "0", *map(str, idle), "0", "0", "0"))
    return table(("one run", "events", "actions", "requests", "database", "bytes", "worker's CPU ms"), rows)


def _live(counted: Counted) -> str:
    named = {
        "unwatched": "a model writes, nobody watches",
        "watched": "a model writes, one watches",
        "10 watchers": "a model writes, ten watch at one `mulligan serve`",
        "watched, Temporal Cloud": "a model writes, one watches, at the pace on Temporal Cloud",
    }
    rows = []
    for name, title in named.items():
        line = counted.line("live", name)
        looks = (CLOUD_LOOKS if "Cloud" in name else counted.looks(name)) if line["watchers"] else 0.0
        rows.append((title, *(_number(each) for each in (counted.heartbeats(name), looks, counted.queries(name)))))
    rows.append(("a call runs and writes nothing", _number(counted.silent()), "0", "0"))
    return table(
        ("in each second", "heartbeats: actions, requests, writes", "looks: requests", "queries: actions"), rows
    )


def _open(counted: Counted, read: Reading) -> str:
    rows = []
    for kind in KINDS:
        memory = counted.line("wait", kind)["memory_kib"]
        rows.append((f"a waiting run of a step ({kind}), in a worker's memory", f"{memory['worker']:,.0f} KiB"))
    for name in NAMES:
        if each := read.memory(name):
            rows.append((f"a run of 100 steps of 1 KB there: {short_title(name)}", f"{each.median:,.0f} KiB"))
    rows.append(("a worker process without runs", f"{_number(counted.idle())} requests a second, no action"))
    serve = counted.line("idle", "serve")
    more = total(serve["requests"]) / serve["seconds"] - counted.idle()
    rows.append(("`mulligan serve` without requests", f"{_number(max(0.0, more))} requests a second, no action"))
    listed = counted.line("list", "serve")
    per_list = {name: count / listed["size"] for name, count in listed["requests"].items() if count >= listed["size"]}
    told = ", ".join(f"{_number(count)} {name}" for name, count in per_list.items())
    actions = total(listed["actions"]) / listed["size"]
    rows.append(("a look at the list of runs (`GET /api/runs`, one run)", f"{told}; {_number(actions)} actions"))
    return table(("what is there", "what it takes"), rows).replace("---:", "---")


def _sizes(counted: Counted, load: Load) -> str:
    demands = [Demand(size, load, counted) for size in SIZES]
    rivals = {name: counted.run(name, 40).bytes / counted.run("mulligan", 40).bytes for name in NAMES[3:]}

    def row(name: str, values: Sequence[float], unit: str = "") -> tuple[str, ...]:
        return (name, *(f"{_number(value)}{unit}" for value in values))

    rows = [
        row("steps a second", [d.steps for d in demands]),
        row("waits that end, a second", [d.waits for d in demands]),
        row("calls that are open", [d.calls for d in demands]),
        row("models that write", [d.live for d in demands]),
        row("watchers", [d.watchers for d in demands]),
        row("actions a second, on Temporal Cloud", [d.actions for d in demands]),
        row("actions on a day, in millions", [d.actions / load.peak * 86_400 / 1e6 for d in demands]),
        row("requests a second, on Temporal Cloud", [d.cloud_requests for d in demands]),
        row("requests a second, on your server", [d.requests for d in demands]),
        row("requests to its database a second", [d.database for d in demands]),
        row(f"for each of {SHARDS} shards", [d.database / SHARDS for d in demands]),
        row("workflow tasks a second", [d.tasks for d in demands]),
        row("history on a day", [d.bytes_a_day / 1e9 for d in demands], " GB"),
        row(
            f"history of all open runs, {load.days_open:g} days old",
            [d.bytes_a_day * load.days_open / 1e9 for d in demands],
            " GB",
        ),
        row("worker processes", [d.processes for d in demands]),
        row("their cores", [d.cores for d in demands]),
        row("of these for replays", [d.cores - d.work.worker_ms / 1000 for d in demands]),
        row("replicas of `mulligan serve`", [d.replicas for d in demands]),
    ]
    events = demands[0].events_a_day
    bytes_of = {name: counted.run(name, 40).bytes / 1000 for name in (NAMES[1], *NAMES[3:])}
    least, most = min(rivals.values()), max(rivals.values())
    told = (
        f"A run has {events:,.0f} events a day: it continues as new about every {CONTINUES_AFTER / events:,.0f} days (at "
        f"{CONTINUES_AFTER:,} events). A run of 40 steps "
        f"of 1 KB has {least:.0f} to {most:.0f} times as many bytes with the rivals: a million of "
        f"them are {bytes_of['mulligan']:,.0f} GB, with "
        + ", ".join(f"{ALL[name].title} {bytes_of[name]:,.0f} GB" for name in NAMES[3:])
        + f". To replay a run of this load takes {demands[0].replay:.2f} s of CPU time in the mean: half of its history, at "
        f"{counted.replayed:,.0f} events a second ([measured](benchmarks.md#replay))."
    )
    return table(("in the busiest second", *(f"{size:,} open runs" for size in SIZES)), rows) + "\n\n" + told


def _limits(counted: Counted, load: Load) -> str:
    rows = []
    for limit in sorted(LIMITS, key=lambda each: each.met_at(load, counted)):
        shares = (limit.needed(Demand(size, load, counted)) / limit.most for size in SIZES)
        rows.append(
            (
                f"{limit.name}: {limit.most:,.0f} ({words.SOURCES[limit.source]})",
                f"{limit.met_at(load, counted):,}",
                *(f"{share:.2g}" if share < 10 else f"{share:,.0f}" for share in shares),
                words.REMEDIES[limit.then],
            )
        )
    head = (
        "limit, by default",
        "open runs at which it is met",
        *(f"times: {size:,}" for size in SIZES),
        "then",
    )
    lines = table(head, rows).splitlines()
    return "\n".join([lines[0], lines[1].removesuffix("---: |") + "--- |", *lines[2:]])


def _checked(counted: Counted, waiting: Sequence[dict[str, Any]]) -> str:
    """How far the computed memory of a worker is from the measured one."""
    ratios = []
    for line in {(line["kind"], line["runs"]): line for line in waiting}.values():
        memory = counted.line("wait", line["kind"])["memory_kib"]
        expected = line["worker_idle_mb"] + min(line["in_cache"], line["runs"]) * memory["worker"] * 1.024 / 1000
        ratios.append(line["worker_waiting_mb"] / expected)
    return words.CHECKED.format(least=min(ratios), most=max(ratios)) if ratios else ""


def _number(value: float) -> str:
    """Three digits are enough, and no `0.00`."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2g}"
