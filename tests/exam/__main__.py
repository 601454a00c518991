"""`make exam`: the tasks that have no result yet, one domain after the other; then docs/reliability.md.

Each result is appended to tests/exam/results.jsonl when its task has ended, so the exam can be continued.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.stage import prepare
from tests.chaos.compare import RIVALS
from tests.chaos.report import commit
from tests.exam.exam_page import read_results, write_exam
from tests.exam.plan import MULLIGAN, RESULTS, TASKS, Sitting, chosen
from tests.exam.sitting import databases, rival_of, sit

DOMAINS_OF_RIVALS = ("retail",)
"""Their tools are functions with parameters, made from schemas: those of the others have nested objects."""


async def main() -> None:
    """Run the command."""
    given = _parser().parse_args()
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # all processes are ended
    contenders = given.contender or [MULLIGAN]
    domains = given.domain or list(TASKS)
    until = time.time() + 60 * given.minutes
    version = commit()  # before the files can change
    for contender in contenders if not given.page else ():
        if contender != MULLIGAN:
            prepare(rival_of(contender).kind)
        for domain in domains:
            if contender != MULLIGAN and domain not in DOMAINS_OF_RIVALS:
                print(f"{contender}: {domain} is not played, as its tools take nested objects")
                continue
            sitting = Sitting(
                domain,
                (),
                seed=given.seed,
                contender=contender,
                mistakes=not given.no_mistakes,
                at_once=given.at_once,
                until=until,
            )
            await _play(sitting, given.tasks or TASKS[domain], version)
    write_exam(read_results(RESULTS))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.exam", description=__doc__)
    parser.add_argument("--domain", choices=list(TASKS), action="append", help="may be repeated; default: all")
    parser.add_argument("--tasks", type=int, help="how many of the domain; default: all, and 300 of telecom")
    parser.add_argument("--seed", type=int, default=1, help="decides mistakes and kills; another seed plays all again")
    names = [MULLIGAN, *(rival.name for rival in RIVALS)]
    parser.add_argument("--contender", choices=names, action="append", help="may be repeated; default: mulligan")
    parser.add_argument("--no-mistakes", action="store_true", help="the model makes the gold calls alone")
    parser.add_argument("--at-once", type=int, default=6, help="how many runs are open at the same time")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="begin no more tasks after these; run it again later"
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    return parser


async def _play(sitting: Sitting, count: int | None, version: str) -> None:
    """Play the tasks of a sitting that have no result yet."""
    labels = sitting.labels()
    played = {
        line["task"]
        for line in read_results(RESULTS)
        if "task" in line and {key: line[key] for key in labels} == labels
    }
    with tempfile.TemporaryDirectory() as folder:
        async with databases(sitting.domain, Path(folder)) as served:
            wanted = chosen(served.facts, count)
            left = [task for task in wanted if task not in played]
            words = f"{sitting.contender}, {sitting.domain}, seed {sitting.seed}"
            print(
                f"{words}: {len(wanted)} tasks, {len(wanted) - len(left)} played before, load {os.getloadavg()[0]:.1f}"
            )
            if left and time.time() < sitting.until:
                await sit(Sitting(**{**vars(sitting), "tasks": left}), served, Path(folder), _Noted(version).note)


class _Noted:
    """Writes lines of results, and prints those of tasks."""

    def __init__(self, version: str) -> None:
        self._version, self._kills = version, 0

    def note(self, line: dict[str, Any]) -> None:
        """Append a line to the results."""
        with RESULTS.open("a") as file:
            file.write(json.dumps({**line, "commit": self._version}) + "\n")
        if "killed" in line:
            self._kills += 1
            return
        right = "right" if line["same_database"] and line["reward"] == 1 else "WRONG"
        told = f"{line['status']}, {right}, {line['effects']} effects, {line['repeated']} repeated, {len(line['lost'])} lost"
        print(f"{line['domain']} {line['task']}: {told}, {line['seconds']} s; {self._kills} kills so far", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
