"""The measurements: one JSON line each, written at once, so that none is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.contenders import ROOT


@dataclass(frozen=True)
class Job:
    """One measurement that is repeated. The size is a number of steps or of concurrent runs, depending on the figure."""

    figure: str
    contender: str
    size: int
    repeats: int = 1
    against: Sequence[str] = ()
    """The contenders that are measured alternately with it in each repeat."""

    def __str__(self) -> str:
        return f"{self.figure} {self.contender} {self.size}"


class Results:
    """The measurements so far, in a file of a folder; `machine.json` is beside `measurements.jsonl`."""

    def __init__(self, folder: Path, name: str = "measurements.jsonl") -> None:
        self.folder = folder
        self._file = folder / name
        self.about: dict[str, str] = {}
        """What each measurement says as well, such as the version of the server."""
        text = self._file.read_text() if self._file.exists() else ""
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line.strip()]

    def of(self, figure: str, contender: str, size: int | None = None) -> list[dict[str, Any]]:
        """The lines of a figure of a contender, in the order of measurement."""
        return [
            line
            for line in self.lines
            if (line["figure"], line["contender"]) == (figure, contender) and size in (None, line["size"])
        ]

    def missing(self, job: Job) -> list[int]:
        """The numbers of the missing repeats."""
        there = {line["repeat"] for line in self.of(job.figure, job.contender, job.size)}
        return [repeat for repeat in range(job.repeats) if repeat not in there]

    def add(self, job: Job, repeat: int, **values: Any) -> dict[str, Any]:
        """Append a measurement to the file."""
        line = {
            "figure": job.figure,
            "contender": job.contender,
            "size": job.size,
            "repeat": repeat,
            **values,
            **self.about,
            "load": round(os.getloadavg()[0], 2),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
        }
        self.lines.append(line)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def forget(self, jobs: Sequence[Job]) -> None:
        """Delete the measurements of these jobs, so that they are repeated."""
        dropped = {(job.figure, job.contender, job.size) for job in jobs}
        self.lines = [line for line in self.lines if (line["figure"], line["contender"], line["size"]) not in dropped]
        if self._file.exists():
            self._file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))


@cache
def commit() -> str:
    """Mulligan's commit at the start of this process, with a `+` if files have changed since; empty outside of git."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    # The files that the benchmark itself writes do not count as changes of the code.
    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs", ":!README.md")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
