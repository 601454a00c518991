"""The load of many open runs, from what one costs, and the limit that it meets first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import mean
from typing import Any

from benchmarks.contenders import ROOT
from benchmarks.reading import Reading
from benchmarks.results import Results
from mulligan.client import follow_events
from mulligan.client.live_pace import FASTEST, MOST_PER_SECOND, SLOWEST

A_DAY = 86_400
SLOTS, CACHED, CPU_SHARE = 500, 1_000, 0.5
"""Of a worker process: calls at once and runs in memory, by default; and the share of a core that it is given here."""
WATCHERS = 1_000
"""Of a replica of `mulligan serve`: as many as were measured on two cores."""
SHARDS = 512
CONTINUES_AFTER = 4_000
"""Events after which a run continues as new."""
FRONTENDS_RPS, DATABASE_QPS, PARTITIONS, PARTITION_RPS = 2_400, 9_000, 4, 1_000
CLOUD_APS, CLOUD_RPS = 500, 1_500
CLOUD_LOOKS = 1 / follow_events._PACE.slowest
"""Looks of `mulligan serve` in a second at what a model writes, on Temporal Cloud."""


@dataclass(frozen=True)
class Load:
    """What each open run does."""

    steps_a_day: float = 20
    waits_a_day: float = 4
    """How often it waits for a person, a callback or a point in time, and goes on."""
    silent_seconds: float = 5
    """How long calls of a step run without text: a model that thinks, and tools."""
    live_seconds: float = 5
    """How long a model writes in a step."""
    watched: float = 0.25
    """The share of that time in which somebody watches."""
    days_open: float = 7
    peak: float = 4
    """The busiest second, in times of the mean."""

    def __str__(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in asdict(self).items())

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read `steps_a_day=200,peak=10`; what is not there is as usual.

        Raises:
            ValueError: a name is not known, or a value is not a number above 0.
        """
        given = dict(part.split("=", 1) for part in text.split(",") if part)
        if unknown := [name for name in given if name not in asdict(cls())]:
            raise ValueError(f"{unknown[0]!r} is not known; a load has {cls()}.")
        values = {name: float(value) for name, value in given.items()}
        if wrong := [name for name, value in values.items() if not value > 0]:
            raise ValueError(f"{wrong[0]} is {given[wrong[0]]}; it must be above 0.")
        return cls(**values)


@dataclass(frozen=True)
class Cost:
    """What something costs a server and a worker."""

    events: float = 0
    bytes: float = 0
    actions: float = 0
    requests: float = 0
    database: float = 0
    worker_ms: float = 0
    """Milliseconds of a worker's CPU time."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + its for mine, its in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def __mul__(self, times: float) -> Cost:
        return Cost(*(value * times for value in asdict(self).values()))


def total(counted: dict[str, int], *without: str) -> int:
    """The sum of counts by kind."""
    return sum(count for name, count in counted.items() if name not in without)


IDLE = ("DescribeTaskQueue", "RecordWorkerHeartbeat", "PollActivityTaskQueue")
"""Requests of a worker that it sends from time to time, whatever runs do."""


class Counted:
    """Costs, from what `benchmarks.capacity` has counted."""

    def __init__(self, results: Results, measured: Results) -> None:
        """`measured`: the results of `make bench`, for the speed of a replay."""
        self.results = results
        replayed = Reading(measured).replay("mulligan", 1_000)
        assert replayed is not None
        self.replayed = replayed[1].median
        """Events that a worker replays in a second of CPU time."""

    def line(self, figure: str, name: str, size: int | None = None) -> dict[str, Any]:
        """What was counted once."""
        return self.results.of(figure, name, size)[-1]

    def run(self, name: str, steps: int) -> Cost:
        """A run of so many steps."""
        line = self.line("steps", name, steps)
        actions, requests, database = (total(line[kind], *IDLE) for kind in ("actions", "requests", "database"))
        return Cost(line["events"], line["bytes"], actions, requests, database, line["cpu"]["worker"] * 1000)

    def step(self, name: str, steps: int) -> Cost:
        """A step, as the mean of a run of so many."""
        return (self.run(name, steps) + self.run(name, 0) * -1) * (1 / steps)

    def wait(self, kind: str) -> Cost:
        """A wait, beyond the step of the call that waits."""
        line = self.line("wait", kind)
        phases = [line["phases"][name] for name in ("until it waits", "end")]
        kinds = ("actions", "requests", "database")
        actions, requests, database = (sum(total(each[of], *IDLE) for each in phases) / line["size"] for of in kinds)
        ms = sum(line["cpu"][name]["worker"] for name in ("until it waits", "end")) * 1000 / line["size"]
        whole = Cost(sum(line["events"].values()), 0, actions, requests, database, ms)
        extra = whole + (self.run("mulligan", 0) + self.step("mulligan", 160)) * -1
        recorded = json.loads((ROOT / "tests" / "live" / "step_costs.json").read_text())
        case = "approvals" if kind == "person" else "deferred"
        size = recorded[case]["history: bytes"] - recorded["no feature"]["history: bytes"]
        return Cost(extra.events, size, extra.actions, extra.requests, extra.database, max(0, extra.worker_ms))

    @cached_property
    def each_step(self) -> Cost:
        """A step of Mulligan, at any length."""
        return self.step("mulligan", 160)

    @cached_property
    def each_wait(self) -> Cost:
        """A wait, as the mean of the three kinds."""
        costs = [self.wait(kind) for kind in ("person", "callback", "timer")]
        return Cost(*(mean(values) for values in zip(*(asdict(each).values() for each in costs), strict=True)))

    def heartbeats(self, name: str = "unwatched") -> float:
        """Heartbeats in a second in which a model writes."""
        line = self.line("live", name)
        return float(line["requests"]["RecordActivityTaskHeartbeat"] / line["seconds"])

    def looks(self, name: str = "watched") -> float:
        """Requests of `mulligan serve` in a second in which somebody watches what a model writes."""
        line = self.line("live", name)
        return float(
            (line["requests"]["DescribeWorkflowExecution"] + line["requests"]["QueryWorkflow"]) / line["seconds"]
        )

    def queries(self, name: str = "watched") -> float:
        """Actions of `mulligan serve` in such a second."""
        line = self.line("live", name)
        return float(line["actions"].get("grpc_QueryWorkflow", 0) / line["seconds"])

    def silent(self) -> float:
        """Heartbeats in a second in which a call runs and writes nothing."""
        line = self.line("call", "mulligan")
        return float(line["requests"]["RecordActivityTaskHeartbeat"] / line["seconds"])

    def idle(self) -> float:
        """Requests in a second of a worker process without runs."""
        line = self.line("idle", "worker")
        return float(total(line["requests"]) / line["seconds"])


def paced(live: float, processes: float) -> float:
    """Heartbeats, or looks, in a second, for so many runs that write, in so many processes: see `LivePace`."""
    each = live / processes
    seconds = min(SLOWEST, max(FASTEST, each / MOST_PER_SECOND))
    return live / seconds


@dataclass(frozen=True)
class Demand:
    """What a number of open runs needs in the busiest second, and on a day."""

    runs: int
    load: Load
    counted: Counted

    @property
    def steps(self) -> float:
        """Steps in the busiest second."""
        return self.runs * self.load.steps_a_day / A_DAY * self.load.peak

    @property
    def waits(self) -> float:
        """Waits that end in that second."""
        return self.runs * self.load.waits_a_day / A_DAY * self.load.peak

    @property
    def live(self) -> float:
        """Models that write in that second."""
        return self.steps * self.load.live_seconds

    @property
    def calls(self) -> float:
        """Calls that are open in that second."""
        return self.steps * (self.load.live_seconds + self.load.silent_seconds)

    @property
    def watchers(self) -> float:
        """Watchers in that second."""
        return self.live * self.load.watched

    @cached_property
    def work(self) -> Cost:
        """Steps and waits of that second."""
        return self.counted.each_step * self.steps + self.counted.each_wait * self.waits

    @property
    def silent(self) -> float:
        """Heartbeats of calls that write nothing, in that second."""
        return self.steps * self.load.silent_seconds * self.counted.silent()

    @property
    def events_a_day(self) -> float:
        """Events of a run on a day."""
        load, counted = self.load, self.counted
        step, wait = counted.each_step.events, counted.each_wait.events
        return step * load.steps_a_day + wait * load.waits_a_day

    @cached_property
    def replay(self) -> float:
        """Seconds of CPU time to replay a run: half of the history that it has at its end, or when it continues as new."""
        return min(CONTINUES_AFTER, self.events_a_day * self.load.days_open) / 2 / self.counted.replayed

    def cores_with(self, processes: float) -> float:
        """Cores of workers, if there are so many processes: runs that none has in memory are replayed when they go on."""
        absent = max(0.0, 1 - CACHED * processes / self.runs)
        return self.work.worker_ms / 1000 + self.waits * absent * self.replay

    @cached_property
    def processes(self) -> float:
        """Worker processes: as many as their CPU time, or the calls that are open, need; two at least."""
        low, high = 2, 1 << 40
        while low < high:
            middle = (low + high) // 2
            is_enough = self.cores_with(middle) <= middle * CPU_SHARE and self.calls <= middle * SLOTS
            low, high = (low, middle) if is_enough else (middle + 1, high)
        return low

    @property
    def cores(self) -> float:
        """Cores of these."""
        return self.cores_with(self.processes)

    @property
    def replicas(self) -> float:
        """Replicas of `mulligan serve`; two at least."""
        return max(2.0, -(-self.watchers // WATCHERS))

    @property
    def heartbeats(self) -> float:
        """Heartbeats with text in that second, on a server of one's own."""
        return paced(self.live, self.processes)

    @property
    def looks(self) -> float:
        """Looks of `mulligan serve` at what is written, in that second."""
        return min(self.counted.looks() * self.watchers, paced(self.watchers, self.replicas))

    @property
    def actions(self) -> float:
        """Actions in that second, at the pace of live text on Temporal Cloud."""
        cloud = "watched, Temporal Cloud"
        text = self.live * self.counted.heartbeats(cloud) + self.watchers * self.counted.queries(cloud)
        return self.work.actions + self.silent + text

    @property
    def cloud_requests(self) -> float:
        """Requests in that second, at that pace."""
        cloud = "watched, Temporal Cloud"
        text = self.live * self.counted.heartbeats(cloud) + self.watchers * CLOUD_LOOKS
        return self.work.requests + self.silent + text + self.processes * self.counted.idle()

    @property
    def requests(self) -> float:
        """Requests in that second to a server of one's own."""
        return self.work.requests + self.silent + self.heartbeats + self.looks + self.processes * self.counted.idle()

    @property
    def database(self) -> float:
        """Requests of that server to its database; each heartbeat is one."""
        return self.work.database + self.silent + self.heartbeats

    @property
    def tasks(self) -> float:
        """Workflow tasks that go through the task queue; each answer to one is a request."""
        return self.work.requests / 3

    @property
    def bytes_a_day(self) -> float:
        """Bytes of history on a day."""
        return self.work.bytes / self.load.peak * A_DAY


@dataclass(frozen=True)
class Limit:
    """A limit: what it bounds, how much there is by default, and how much a number of open runs needs."""

    name: str
    most: float
    needed: Callable[[Demand], float]
    source: str
    then: str

    def met_at(self, load: Load, counted: Counted) -> int:
        """The number of open runs that meets it, to two digits."""
        low, high = 1, 1 << 40
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.needed(Demand(middle, load, counted)) > self.most else (middle + 1, high)
        digits = max(0, len(str(low)) - 2)
        return int(low // 10**digits * 10**digits)
