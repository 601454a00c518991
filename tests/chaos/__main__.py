"""`make chaos`: seeds one after the other. The result of each is written to a file, so that the suite can be continued.

Beside it is what happened during pauses of more than 2 s (`N.long.txt`), for whoever looks for their cause.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from mulligan.devserver import DevServer, temporal_server
from tests.chaos.faults import faults_of, pauses_of
from tests.chaos.long_pauses import long_pauses
from tests.chaos.plan import VICTIMS, Outcome, Plan
from tests.chaos.report import ROOT, commit, write_page
from tests.chaos.seed import HISTORY, run_seed

RESULTS = ROOT / "tests/chaos/results"
POSTGRES = "postgres"
"""No seed hits it by itself, as it needs programs that are built first."""


async def main() -> None:
    """Run the seeds that have no result yet, then write docs/reliability.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="1-20", metavar="FIRST-LAST")
    parser.add_argument("--side-by-side", type=int, default=2, help="seeds that run at the same time")
    parser.add_argument(
        "--victim", choices=list(VICTIMS), help="only seeds that hit this; `postgres`: all of them hit it"
    )
    parser.add_argument("--again", action="store_true", help="also run seeds that have a result")
    parser.add_argument("--page", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    RESULTS.mkdir(exist_ok=True)
    version = commit()  # before the files can change
    places = asyncio.Semaphore(chosen.side_by_side)

    async def run(plan: Plan, server: DevServer) -> None:
        file = RESULTS / f"{'postgres-' if plan.victim == POSTGRES else ''}{plan.seed}.json"
        async with places:
            if file.exists() and not chosen.again:
                return
            with tempfile.TemporaryDirectory() as folder:
                try:
                    outcome = await run_seed(plan, server, Path(folder))
                except Exception as error:
                    print(f"seed {plan.seed} broke: {error!r}", flush=True)
                    return
            file.write_text(json.dumps(result := _result(outcome, version), indent=1) + "\n")
            if told := long_pauses(outcome):
                file.with_suffix(".long.txt").write_text(told + "\n")
            print(json.dumps(result), flush=True)

    if not chosen.page:
        options = {"victim": POSTGRES} if chosen.victim == POSTGRES else {}
        plans = [Plan.of(seed, **options) for seed in range(int(first), int(last or first) + 1)]
        async with temporal_server(dynamic_config=[HISTORY]) as server:
            await asyncio.gather(*(run(plan, server) for plan in plans if chosen.victim in (None, plan.victim)))
    write_page(RESULTS)


def _result(outcome: Outcome, version: str) -> dict[str, Any]:
    """What is kept of a seed."""
    return {
        "seed": outcome.plan.seed,
        "victim": outcome.plan.victim,
        "commit": version,
        "load": round(os.getloadavg()[0], 1),
        "faults_injected": len(outcome.kills),
        "points": sorted(kill.point for kill in outcome.kills if kill.point),
        "runs": outcome.plan.runs,
        "effects": sum(entry["event"] == "start" for entry in outcome.ledger),
        "spans": len(outcome.spans),
        "faults": faults_of(outcome),
        "pauses": sorted((each.kind, round(each.seconds, 3)) for each in pauses_of(outcome)),
    }


if __name__ == "__main__":
    asyncio.run(main())
