"""`make schedules`: all orders of events of each case; prints what was explored."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.chaos.report import commit
from tests.schedules.cases import FULL, QUICK, agents, scripts
from tests.schedules.explore import Explored, explore
from tests.schedules.real_activities import RealActivities

RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Explore each case; returns 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="at most, for each case")
    parser.add_argument("--most", type=int, default=1_000_000, help="schedules of each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seed", type=int, help="explore in a random order")
    chosen = parser.parse_args()
    found: list[Explored] = []
    with RealActivities(agents, scripts) as activities:
        for case in (*QUICK, *FULL):
            if chosen.only in case.name:
                each = explore(case, activities, most=chosen.most, seconds=chosen.seconds, seed=chosen.seed)
                found.append(each)
                extent = "all" if each.is_complete else "some"
                print(
                    f"{case.name}: {each.schedules} schedules ({extent}), {each.skipped} repetitions skipped, at most"
                    f" {each.longest} events, {each.seconds:.1f} s, {each.endings}",
                    flush=True,
                )
                for fault in each.faults:
                    print(f"  FAULT {fault[:3000]}", flush=True)
    print(f"{sum(each.schedules for each in found)} schedules, {sum(len(each.faults) for each in found)} faults")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for each in found:
        results[each.case.name] = {
            "commit": commit(),
            "schedules": each.schedules,
            "complete": each.is_complete,
            "faults": len(each.faults),
        }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(each.faults for each in found))


if __name__ == "__main__":
    sys.exit(main())
