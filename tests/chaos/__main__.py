"""`make chaos`: seeds one after the other. The result of each is written to a file, so that the suite can be continued."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from mulligan.devserver import temporal_server
from tests.chaos.faults import faults_of, pauses_of
from tests.chaos.report import write_page
from tests.chaos.seed import ROOT, Plan, run_seed

RESULTS = ROOT / "tests/chaos/results"


async def main() -> None:
    """Run the seeds that have no result yet, then write docs/reliability.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="1-10", metavar="FIRST-LAST")
    parser.add_argument("--kills", type=int, default=8, help="at most, for each seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--again", action="store_true", help="also run seeds that have a result")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    RESULTS.mkdir(exist_ok=True)
    async with temporal_server() as server:
        for seed in range(int(first), int(last or first) + 1):
            file = RESULTS / f"{seed}.json"
            if chosen.again or not file.exists():
                plan = Plan(seed, chosen.processes, chosen.runs, chosen.steps, chosen.kills)
                with tempfile.TemporaryDirectory() as folder:
                    outcome = await run_seed(plan, server, Path(folder))
                result: dict[str, Any] = {
                    "seed": seed,
                    "processes": plan.processes,
                    "load": round(os.getloadavg()[0], 1),
                    "kills": len(outcome.kills),
                    "runs": plan.runs,
                    "effects": sum(entry["event"] == "start" for entry in outcome.ledger),
                    "spans": len(outcome.spans),
                    "faults": faults_of(outcome),
                    "pauses": sorted((kind, round(seconds, 3)) for kind, seconds in pauses_of(outcome)),
                }
                file.write_text(json.dumps(result, indent=1) + "\n")
                print(json.dumps(result), flush=True)
    write_page(RESULTS)


if __name__ == "__main__":
    asyncio.run(main())
