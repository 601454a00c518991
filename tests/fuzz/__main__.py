"""`make fuzz ARGS="--minutes 10 'JSON repair'"`: each target in a process of its own. Failing inputs are kept and tried again."""

from __future__ import annotations

import argparse
import faulthandler
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from platformdirs import user_cache_path

from tests.fuzz.run_target import limit_memory, run_target
from tests.fuzz.targets import TARGETS

CORPUS = user_cache_path("mulligan") / "fuzz"
MAX_PROCESS_BYTES = 2_000_000_000
STUCK_SECONDS = 120


def main() -> int:
    """Run the targets that are named, or all, one after the other; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="which targets; all where none is named")
    parser.add_argument("--minutes", type=float, default=1.0, help="time for each target")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        [name] = options.targets
        limit_memory(MAX_PROCESS_BYTES)
        faulthandler.dump_traceback_later(options.minutes * 60 + STUCK_SECONDS, exit=True)
        report = run_target(TARGETS[name], options.minutes * 60, CORPUS / name.replace(" ", "-"))
        print(json.dumps(asdict(report)))
        return 0
    return max([_run(name, options.minutes) for name in options.targets or TARGETS])


def _run(name: str, minutes: float) -> int:
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--in-process", "--minutes", str(minutes), name],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    took = time.monotonic() - began
    if process.returncode != 0:
        print(f"{name}: its process ended with {process.returncode} after {took:.0f} s\n{process.stderr[-3000:]}")
        return 1
    report = json.loads(process.stdout.splitlines()[-1])
    print(
        f"{name}: {report['inputs']:,} inputs in {took:.0f} s, {len(report['findings'])} findings; at most "
        f"{report['most_seconds']:.2f} s and {report['most_bytes'] / 1e6:.0f} MB for one"
        + (f"; hypothesis ended {report['aborted']} batches itself" if report["aborted"] else ""),
        *report["findings"], sep="\n", flush=True,
    )  # fmt: skip
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
