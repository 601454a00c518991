"""`make mutants`: one-line faults in the core, and which tests notice them. For hours; it goes on where it was stopped."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.mutants.draw import COUNT, SEED, Mutant, draw
from tests.mutants.report import equivalent, killer, survivors, table, write_results
from tests.mutants.run import FLOORS, Runner

FURTHER = 40
"""Faults that survive `make test` and are tried with the tests of `make test-live`."""


def main() -> int:
    """Run them, and write results.json."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT, help="how many faults are drawn")
    parser.add_argument("--first", type=int, default=COUNT, help="how many of them are tried")
    parser.add_argument("--only", default="", help="ids, files or rooms of faults, with commas between them")
    parser.add_argument("--floors", default="unit,rest", help=f"of {', '.join(FLOORS)}; live: for {FURTHER} survivors")
    parser.add_argument(
        "--again", action="store_true", help="those that no test has noticed so far, with the tests of now"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "mutants", help="of the copies")
    parser.add_argument("--list", action="store_true", help="print the draw, and run nothing")
    parser.add_argument("--page", type=Path, help="write the table and the survivors there as well")
    chosen = parser.parse_args()
    mutants = draw(chosen.seed, chosen.count)
    tried = [each for each in mutants[: chosen.first] if _is_meant(each, chosen.only)]
    if chosen.list:
        for each in tried:
            before, after = each.lines()
            print(f"{each.id} {each.room} {each.file}:{each.change.line} {each.change.kind}\n- {before}\n+ {after}")
        return 0
    runner = Runner(mutants, chosen.folder, chosen.processes)
    runner.prepare()
    floors = chosen.floors.split(",")
    for floor in floors:
        left = [each for each in tried if each.id not in equivalent()]
        if floor == "live":
            alive = [each for each in left if not killer(runner.found.get(each.id, {}))[1]]
            left = random.Random(chosen.seed).sample(alive, min(FURTHER, len(alive)))
        runner.run(floor, left, again=chosen.again)
        text = table(tried, runner.found, [*FLOORS])
        print(text, flush=True)
        if chosen.page:
            chosen.page.write_text(f"{text}\n{survivors(tried, runner.found)}\n")
    write_results(mutants, runner.found)
    return 0


def _is_meant(mutant: Mutant, only: str) -> bool:
    return not only or any(each in (mutant.id, mutant.room) or each in mutant.file for each in only.split(","))


if __name__ == "__main__":
    sys.exit(main())
