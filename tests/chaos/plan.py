"""What a seed does, and what was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.otlp_receiver import Span

Victim = Literal["child", "point", "supervisor", "unsupervised", "server", "frozen", "endpoint", "otlp", "postgres"]
TURNS: tuple[Victim, ...] = (
    "child", "child", "point", "child", "supervisor", "child", "point", "server", "child", "frozen", "child",
    "unsupervised", "child", "endpoint", "child", "point", "child", "otlp", "child", "child",
)  # fmt: skip
"""What the seeds hit, in turn: most of them hit supervised processes."""
VICTIMS: dict[Victim, str] = {
    "child": "a supervised process, at a random moment",
    "point": "a supervised process, at a named point",
    "supervisor": "the supervisor",
    "unsupervised": "a worker without a supervisor, or a lost machine",
    "server": "the Temporal server",
    "frozen": "a process frozen for 1 to 12 s (SIGSTOP)",
    "endpoint": "the model's endpoint, cut in mid-answer",
    "otlp": "the OTLP receiver, gone for 1 to 4 s",
    "postgres": "the Temporal server, with PostgreSQL",
}
STEPS: dict[Victim, int] = {
    "child": 40, "point": 16, "supervisor": 40, "unsupervised": 40, "server": 40, "frozen": 40, "endpoint": 12, "otlp": 16,
    "postgres": 40,
}  # fmt: skip
"""The steps of each run: enough for all faults, as the processes are started once for a seed."""
FAULTS: dict[Victim, int] = {
    "child": 20, "point": 16, "supervisor": 5, "server": 5, "postgres": 5, "frozen": 5, "otlp": 5,
}  # fmt: skip
"""The most faults of a seed, if they are not 8."""
KILLS = frozenset({"child", "point", "supervisor", "unsupervised", "server", "postgres"})
"""The victims that are killed."""


@dataclass(frozen=True)
class Plan:
    """What a seed does. `kills`: how many faults at most; `pause`: the least and the most seconds between two."""

    seed: int
    victim: Victim = "child"
    processes: int = 4
    runs: int = 8
    steps: int = 12
    kills: int = 8
    pause: tuple[float, float] = (0.3, 1.2)
    only_agent: str = ""

    @property
    def agent(self) -> str:
        """The agent of the runs."""
        return self.only_agent or ("everything" if self.victim == "point" else "ledger")

    @staticmethod
    def of(seed: int, **options: Any) -> Plan:
        """The plan of a seed, by its number."""
        victim: Victim = options.get("victim", TURNS[seed % len(TURNS)])
        chosen: dict[str, Any] = {"victim": victim, "kills": FAULTS.get(victim, 8), "steps": STEPS[victim]}
        if victim in ("supervisor", "server", "postgres", "unsupervised"):
            chosen["pause"] = (1.0, 5.0)
        return Plan(seed, **{**chosen, **options})


@dataclass(frozen=True)
class Kill:
    """A process that was hit, or 0 for one that is none of the workers; the point, if it has a name."""

    at: float
    pid: int = 0
    point: str = ""


@dataclass
class Outcome:
    """What happened."""

    plan: Plan
    kills: list[Kill] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By workflow id; no entry for a run that did not end."""
    ended_at: dict[str, float] = field(default_factory=dict)
    steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    model_calls: list[tuple[float, str, int]] = field(default_factory=list)
    """When, of which run, for which step (from 0)."""
    broken_model_calls: list[tuple[float, str]] = field(default_factory=list)
    """When the model saw that its caller was gone, or cut its answer, and of which run."""
    requests: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The last conversation that the model saw."""
    spans: list[Span] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    said: list[tuple[float, str]] = field(default_factory=list)
    """When, and what, the workers and their supervisor wrote to stderr after their start."""
