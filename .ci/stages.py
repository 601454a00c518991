"""The stages of CI: targets of the Makefile, as far side by side as two cores allow.

Tests with a server wait for most of their time, so two floors of them share the cores. README's test command runs last, by
itself, as a new user runs it. A stage that fails stops none of the others: one run names all that is wrong. The last line is
like pytest's summary, the sum of all of its runs; a stage that has none, such as `lint`, counts as an error where it fails.

Where a few tests failed, they run once more, by themselves: on a machine whose neighbours take its cores, tests fail that
wait for a process. What passes then is named in the output, and counts as passed.
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
AGAIN = "test-again"
MOST_AGAIN = 12
"""Failures that may come from a slow machine. More of them have another cause."""
ALL_SECONDS = 5100
"""The time of the whole run, of the 5,400 s that it has."""
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
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as failed:
        os.environ["FAILED_TESTS_FILE"] = failed.name
        run_all(found, end)
        lines = failed.read().splitlines()
    found.update(run_again(lines, found, began + ALL_SECONDS))
    print(sum_of(found, time.monotonic() - began), flush=True)
    return 1 if found["failed"] or found["errors"] else 0


def run_all(found: Counter[str], end: float) -> None:
    """Run all stages, which count what they find. `end`: now, in seconds since 1970."""
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


def run_again(failures: list[str], found: Counter[str], until: float) -> Counter[str]:
    """Run a few tests that failed once more, by themselves; returns what that changes in the counts.

    Nothing, unless each failure that was counted is that of such a test, and all of them pass now.

    Args:
        failures: The id of the test of each failure, and of each error of a fixture.
        found: What all stages counted.
        until: The monotonic time at which this has to end.
    """
    tests = [*dict.fromkeys(failures)]
    if not tests or len(tests) > MOST_AGAIN or len(failures) != found["failed"] + found["errors"]:
        return Counter()
    os.environ.pop("FAILED_TESTS_FILE", None)
    os.environ.pop("TESTS_END_AT", None)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
        ids.write("".join(f"{test}\n" for test in tests))
        ids.flush()
        again = run_stage(f"{AGAIN} ARGS=@{ids.name}", max(until - time.monotonic(), 1))
    if again != Counter(passed=len(tests)):
        return Counter()
    say("".join(f"FAILED BESIDE OTHERS, PASSED ALONE: {test}\n" for test in tests))
    return Counter(passed=len(tests), failed=-found["failed"], errors=-found["errors"])


def run_queue(stages: tuple[str, ...]) -> Counter[str]:
    """Run one stage after the other; returns the sum of what they count."""
    return sum((run_stage(stage) for stage in stages), Counter())


def run_stage(stage: str, longest: float = LONGEST) -> Counter[str]:
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
            code: int | str = make.wait(timeout=longest)
        except subprocess.TimeoutExpired:
            code = f"not ended after {longest:.0f} s"
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
