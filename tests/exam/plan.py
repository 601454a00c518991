"""What is played, and what was seen."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos.report import EXAM_RESULTS

Victim = Literal["process", "supervisor", "server", "endpoint"]
VICTIMS: dict[Victim, str] = {
    "process": "worker processes",
    "supervisor": "supervisors",
    "server": "the Temporal server",
    "endpoint": "the model's endpoint",
}
ODDS: dict[Victim, int] = {"process": 12, "supervisor": 1, "server": 2, "endpoint": 5}
"""How often each is killed, by comparison. The first kills of a sitting are one of each."""
TASKS: Mapping[str, int | None] = {"retail": None, "airline": None, "telecom": 300}
"""How many tasks of a domain the exam has; None: all."""
RESULTS = EXAM_RESULTS
MULLIGAN = "mulligan"


@dataclass(frozen=True)
class Sitting:
    """Tasks of one domain, played by one contender.

    Attributes:
        domain: The domain of the benchmark.
        tasks: The places of the tasks in the domain's list.
        seed: It decides the mistakes and the kills.
        contender: `mulligan`, or the name of a rival.
        mistakes: Whether the model makes mistakes before each gold call.
        at_once: How many runs are open at the same time.
        processes: How many worker processes serve them.
        pause: The least and the most seconds between two kills.
        kills: How many at most; None: until the tasks have ended.
        until: When no more tasks are begun (Unix time).
    """

    domain: str
    tasks: Sequence[int]
    seed: int = 1
    contender: str = MULLIGAN
    mistakes: bool = True
    at_once: int = 6
    processes: int = 3
    pause: tuple[float, float] = (1.0, 6.0)
    kills: int | None = None
    until: float = math.inf

    def labels(self) -> dict[str, Any]:
        """What each line of the results says of it."""
        return {"contender": self.contender, "mistakes": self.mistakes, "domain": self.domain, "seed": self.seed}


def chosen(facts: Mapping[str, Any], count: int | None) -> list[int]:
    """The places of that many tasks, drawn from the domain's list; None: of all. A smaller number gives the first of a larger.

    A task whose solution makes two equal calls that write is never chosen: the tools are declared with `once`.
    """
    writes = {tool["name"] for tool in facts["tools"] if tool["writes"]}
    possible = []
    for place, task in enumerate(facts["tasks"]):
        made = [
            (call["name"], repr(sorted(call["arguments"].items()))) for call in task["gold"] if call["name"] in writes
        ]
        if len(made) == len(set(made)):
            possible.append(place)
    random.Random("exam").shuffle(possible)
    return possible[:count]
