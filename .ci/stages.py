"""The stages of CI: targets of the Makefile, as far side by side as two cores allow.

Tests with a server wait for most of their time, so two floors of them share the cores. README's test command runs last, by
itself, as a new user runs it. A stage that fails stops none of the others: one run names all that is wrong. The last line is
like pytest's summary, the sum of all of its runs; a stage that has none, such as `lint`, counts as an error where it fails.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST = (("lint", "programs"),)
"""Lint brings all packages, too: no two stages install them at the same time. Builds on a new machine would starve tests."""
SIDE_BY_SIDE = (("test-system",), ("docs-site", "test-live", "test-sdk ARGS=--others"))
"""The longest stage, and beside it the others, one after the other."""
LAST = (("test",),)
LONGEST = 4200
"""Seconds that a stage may take: one that hangs must not hide what the others found."""
NO_TEST_AFTER = (3000, 4500)
"""Seconds after which the floors side by side, and the last one, begin no further test: a slow machine would lose the run.

A usual one needs half of that."""
BESIDE = "3"
"""The processes of each of two floors that share the cores."""
COUNTED = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "errors")
SUMMARY = re.compile(r"(?:=+ )?((?:\d+ [a-z]+, )*\d+ [a-z]+) in [\d.]+s(?: \([\d:]+\))?(?: =+)?")
COLOUR = re.compile(r"\x1b\[[\d;]*m")

printing = threading.Lock()


def main() -> int:
    """Run them; returns 1 if one has failed."""
    began, end = time.monotonic(), time.time()
    found: Counter[str] = Counter()
    for queues in (FIRST, SIDE_BY_SIDE, LAST):
        os.environ["TESTS_END_AT"] = str(end + NO_TEST_AFTER[queues is LAST])
        if queues is SIDE_BY_SIDE:
            os.environ["PYTEST_XDIST_AUTO_NUM_WORKERS"] = BESIDE
        else:
            os.environ.pop("PYTEST_XDIST_AUTO_NUM_WORKERS", None)
        with ThreadPoolExecutor(len(queues)) as threads:
            # Whatever goes wrong in a thread is raised here: a queue without a result is not a queue without failures.
            for counted in threads.map(run_queue, queues):
                found.update(counted)
    print(sum_of(found, time.monotonic() - began), flush=True)
    return 1 if found["failed"] or found["errors"] else 0


def run_queue(stages: tuple[str, ...]) -> Counter[str]:
    """Run one stage after the other; returns the sum of what they count."""
    return sum((run_stage(stage) for stage in stages), Counter())


def run_stage(stage: str) -> Counter[str]:
    """Run a stage, and print its output at its end, since another one may print meanwhile.

    The output goes to a file: processes that a stage leaves behind would keep a pipe open, and this waiting. They are ended.
    """
    say(f"{stage}: begins\n")
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        make = subprocess.Popen(
            ["make", "--no-print-directory", *stage.split()],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | str = make.wait(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            code = f"not ended after {LONGEST} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGKILL)
        make.wait()
        output.seek(0)
        lines = output.readlines()
    counted = counts(lines)
    if code and not counted["failed"] + counted["errors"]:
        counted["errors"] += 1
    verdict = f"FAILED ({code})" if code else "passed"
    say("".join(lines) + f"{stage}: {verdict}, {time.monotonic() - began:.0f} s\n")
    return counted


def say(text: str) -> None:
    """Print it, and nothing of another thread within."""
    with printing:
        sys.stdout.write(text)
        sys.stdout.flush()


def counts(lines: list[str]) -> Counter[str]:
    """The sum of pytest's summaries among these lines."""
    found: Counter[str] = Counter()
    for line in lines:
        summary = SUMMARY.fullmatch(COLOUR.sub("", line).strip())
        for each in summary[1].split(", ") if summary else ():
            number, _, word = each.partition(" ")
            found["errors" if word == "error" else word] += int(number)
    return found


def sum_of(found: Counter[str], seconds: float) -> str:
    """`2 failed, 8594 passed, 36 skipped in 795.00s (0:13:15)`."""
    parts = [f"{found[word]} {word if found[word] != 1 else word.rstrip('s')}" for word in COUNTED if found[word]]
    whole = round(seconds)
    clock = f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ({clock})"


if __name__ == "__main__":
    sys.exit(main())
