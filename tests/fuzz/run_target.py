"""Runs a target for a time with inputs by hypothesis. An input may take a second of CPU time and 200 MB of memory."""

from __future__ import annotations

import gc
import random
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, target
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.targets import Target

MAX_SECONDS = 1.0
MAX_BYTES = 200_000_000
TRIES = 3
"""Of an input that took too long: the shortest counts, as a busy machine may slow down any of them."""
_PHASES = (Phase.reuse, Phase.generate, Phase.target)
"""Without the search for a smaller input, which takes minutes where each one takes a second."""


class TooExpensive(AssertionError):
    """An input took more time or memory than it may."""


class _TimeIsOver(BaseException):
    """Ends a batch at once: hypothesis goes on after an Exception."""


@dataclass
class Report:
    """What one target was given, and what was found."""

    inputs: int = 0
    most_seconds: float = 0.0
    most_bytes: int = 0
    aborted: int = 0
    """Batches that hypothesis itself ended, by an error of its own (an IndexError of its optimiser, in 6.150)."""
    findings: list[str] = field(default_factory=list)


def run_target(
    tested: Target, seconds: float, corpus: Path | None = None, batch: int = 200, at_least: int = 1
) -> Report:
    """Try inputs until the time is over, or one fails.

    Args:
        tested: The target.
        seconds: The time.
        batch: How many inputs hypothesis tries together: it makes each batch harder as it goes.
        at_least: How many inputs are tried even if that takes longer: on a busy machine, hypothesis needs seconds to begin.
        corpus: A folder in which failing inputs are kept; they are tried first the next time.
    """
    report = Report()
    is_shrinking = False
    until = time.monotonic() + seconds

    def check(value: Any) -> None:
        nonlocal is_shrinking
        if time.monotonic() > until and report.inputs >= at_least and not is_shrinking:
            raise _TimeIsOver
        report.inputs += not is_shrinking
        try:
            took, size = _measured(tested, value)
            for _ in range(TRIES - 1):
                if took > MAX_SECONDS:
                    took = min(took, _measured(tested, value)[0])
            report.most_seconds, report.most_bytes = max(report.most_seconds, took), max(report.most_bytes, size)
            if took > MAX_SECONDS or size > MAX_BYTES:
                raise TooExpensive(f"{took:.1f} s of CPU time, {size // 1_000_000:,} MB")
            target(took, label="seconds")
        except BaseException:
            is_shrinking = True
            raise

    database = DirectoryBasedExampleDatabase(corpus) if corpus is not None else None
    while (time.monotonic() < until or report.inputs < at_least) and not report.findings:
        options = settings(
            max_examples=batch, deadline=None, report_multiple_bugs=False, phases=_PHASES, database=database, suppress_health_check=list(HealthCheck), print_blob=False
        )  # fmt: skip
        try:
            seed(random.getrandbits(64))(options(given(tested.inputs)(check)))()
        except _TimeIsOver:
            break
        except Exception as error:  # whatever a parser raises
            if not is_shrinking:
                report.aborted += 1
                continue
            report.findings.append(
                "\n".join([f"{type(error).__name__}: {error}"[:500], *getattr(error, "__notes__", [])])
            )
    return report


def _measured(tested: Target, value: Any) -> tuple[float, int]:
    """Seconds of CPU time, and bytes of memory, for one input."""
    # The garbage collector would look at the millions of objects of hypothesis meanwhile.
    gc.disable()
    before, started = _reset_peak(), time.process_time()
    try:
        tested.run(value)
        return time.process_time() - started, max(0, _peak() - before)
    finally:
        gc.enable()


def limit_memory(most_bytes: int) -> None:
    """Limit this process, so that an input that takes all memory ends it and not others."""
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


def _reset_peak() -> int:
    """Begin to measure the peak of resident memory anew (Linux). Returns the present size."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
