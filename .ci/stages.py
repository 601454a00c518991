"""The stages of CI: targets of the Makefile, as far side by side as two cores allow.

Tests with a server wait for most of their time, so two floors of them share the cores. README's test command runs last, by
itself, as a new user runs it. A stage that fails stops none of the others: one run names all that is wrong. The last line is
like pytest's summary, the sum of all of its runs; a stage that has none, such as `lint`, counts as an error where it fails.
"""

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST = (("lint",),)
"""It brings all packages, too: no two stages install them at the same time."""
SIDE_BY_SIDE = (("test-system",), ("docs-site", "test-live", "test-sdk ARGS=--others"))
"""The longest stage, and beside it the others, one after the other."""
LAST = (("test",),)
COUNTED = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "errors")
SUMMARY = re.compile(r"(?:=+ )?((?:\d+ [a-z]+, )*\d+ [a-z]+) in [\d.]+s(?: \([\d:]+\))?(?: =+)?")

printing = threading.Lock()


def main() -> int:
    """Run them; returns 1 if one has failed."""
    began = time.monotonic()
    found: Counter[str] = Counter()
    for queues in (FIRST, SIDE_BY_SIDE, LAST):
        threads = [
            threading.Thread(target=run_queue, args=(queue, found, queue is queues[0]), name=queue[0])
            for queue in queues
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(sum_of(found, time.monotonic() - began), flush=True)
    return 1 if found["failed"] or found["errors"] else 0


def run_queue(stages: tuple[str, ...], found: Counter[str], prints_at_once: bool) -> None:
    """Run one stage after the other, and add what they count."""
    for stage in stages:
        counted = run_stage(stage, prints_at_once)
        with printing:
            found.update(counted)


def run_stage(stage: str, prints_at_once: bool) -> Counter[str]:
    """Run a stage and print its output: line by line, or all of it at its end, where another stage prints meanwhile."""
    began = time.monotonic()
    make = subprocess.Popen(
        ["make", "--no-print-directory", *stage.split()],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    assert make.stdout is not None
    lines = []
    for line in make.stdout:
        lines.append(line)
        if prints_at_once:
            say(line)
    code = make.wait()
    if not prints_at_once:
        say("".join(lines))
    say(f"{stage}: {'passed' if code == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s\n")
    counted = counts(lines)
    if code and not counted["failed"] + counted["errors"]:
        counted["errors"] += 1
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
        summary = SUMMARY.fullmatch(line.strip())
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
