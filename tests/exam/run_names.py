"""The names of runs, and of the tool that the exam adds. Imported in every environment: it needs nothing."""

from __future__ import annotations

import re

CHANGES = "list_changes"
"""A tool beside those of the benchmark, which reads: a model that is told that a call may or may not have run can look."""
NAME = re.compile(r"exam-(\d+)-(\d+)-[a-z-]+")


def run_name(seed: int, task: int, contender: str) -> str:
    """The name of a run, which is its workflow id, and the first line of its prompt. `task`: its place in the domain's list."""
    return f"exam-{seed}-{task}-{contender}"


def seed_and_task(name: str) -> tuple[int, int]:
    """The seed and the task of the run whose name a text begins with."""
    found = NAME.match(name)
    if found is None:
        raise ValueError(f"no run of the exam has the name {name[:80]!r}")
    return int(found[1]), int(found[2])
