"""Runs the faults: floor after floor, in as many private copies as there may be processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

from tests.mutants.draw import ROOT, Mutant
from tests.mutants.private_copy import PrivateCopy
from tests.mutants.reach import files_that_import
from tests.mutants.report import killer

FLOORS: Mapping[str, tuple[str, ...]] = {
    "unit": ("tests/unit",),
    "rest": ("tests/house", "tests/replay", "tests/promise"),
    "live": ("tests/live", "tests/acceptance"),
}
"""`make test` is the first two."""
SECONDS: Mapping[str, float] = {"unit": 120, "rest": 240, "live": 300}
"""For the tests of one fault on a floor, as long as they took when they were mapped: those that are left count as if none of
them had noticed it."""
FILES_AT_ONCE = 60
"""Files of tests that are mapped before that is written down."""
SLOWER = 3
"""So many times as long they may take in fact."""


class Runner:
    """The faults of a draw, and what was found so far. It goes on where an earlier one has stopped."""

    def __init__(self, mutants: Sequence[Mutant], folder: Path, processes: int) -> None:
        self._mutants, self._folder = mutants, folder
        self._numbers = {each.id: number for number, each in enumerate(mutants)}
        self._copies = [PrivateCopy(folder / f"copy{n}") for n in range(processes)]
        self.found: dict[str, dict[str, dict[str, Any]]] = {}

    def prepare(self) -> None:
        """Write the copies, and read what is known of this draw."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for copy in self._copies:
            copy.write(self._mutants)
        for floor in FLOORS:
            for line in _lines(self._found_file(floor)):
                self.found.setdefault(self._mutants[line["fault"]].id, {})[floor] = line

    @property
    def _draw(self) -> str:
        return sha256(" ".join(self._numbers).encode()).hexdigest()[:8]

    def _found_file(self, floor: str, part: str = "*") -> Path:
        return self._folder / f"{self._draw}-{floor}-{part}.jsonl"

    def map(self, floor: str) -> list[dict[str, Any]]:
        """Which test of a floor reaches which fault. A file of tests is run once for a draw, and again when it changes."""
        kept = self._folder / f"{self._draw}-{floor}-map.json"
        known: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
        files = {str(each.relative_to(ROOT)): sha256(each.read_bytes()).hexdigest() for each in _test_files(floor)}
        known = {file: of for file, of in known.items() if of["digest"] == files.get(file)}
        new = [file for file in files if file not in known]
        for start in range(0, len(new), FILES_AT_ONCE):
            for file, tests in self._map_files(new[start : start + FILES_AT_ONCE]).items():
                known[file] = {"digest": files[file], "tests": tests}
            kept.write_text(json.dumps(known))
        return [test for of in known.values() for test in of["tests"]]

    def _map_files(self, files: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        shares = [files[n :: len(self._copies)] for n in range(len(self._copies))]
        outs = [self._folder / f"map{n}.json" for n in range(len(self._copies))]
        starts = zip(self._copies, ({"task": "map", "out": str(out)} for out in outs), shares, strict=True)
        self._at_once([each for each in starts if each[-1]])
        tests = [test for out, share in zip(outs, shares, strict=True) if share for test in json.loads(out.read_text())]
        return {file: [each for each in tests if each["test"].partition("::")[0] == file] for file in files}

    def run(self, floor: str, chosen: Sequence[Mutant], *, again: bool = False) -> None:
        """Run the tests of a floor with each of the faults that nothing has noticed so far."""
        reached = self.map(floor)
        self._forget_gone_tests(floor, {each["test"] for each in reached})
        known = {each.id: self.found.get(each.id, {}) for each in chosen}
        left = [each for each in chosen if not killer(known[each.id])[1] and (again or floor not in known[each.id])]
        tasks = [self._task(floor, each, reached) for each in left]
        usual = {each["test"]: each["seconds"] for each in reached}
        at_import = {self._numbers[each.id] for each in left if each.change.at_import}
        batches: list[list[dict[str, Any]]] = [
            [task for task in tasks if task["fault"] not in at_import][n :: len(self._copies)]
            for n in range(len(self._copies))
        ]
        singles = [[task] for task in tasks if task["fault"] in at_import]
        rows = zip_longest(*(singles[n :: len(self._copies)] for n in range(len(self._copies))))
        steps = [(batches, False), *(([each or [] for each in row], True) for row in rows)]
        for step, imports in steps:
            self._try(floor, step, usual, at_import=imports)

    def _forget_gone_tests(self, floor: str, tests: Set[str]) -> None:
        for of in self.found.values():
            if (
                floor in of
                and of[floor]["killed_by"]
                and of[floor]["how"] != "import"
                and of[floor]["killed_by"] not in tests
            ):
                del of[floor]

    def _try(
        self, floor: str, batches: list[list[dict[str, Any]]], usual: dict[str, float], *, at_import: bool
    ) -> None:
        starts = []
        for number, (copy, tasks) in enumerate(zip(self._copies, batches, strict=False)):
            if not tasks:
                continue
            out = self._found_file(floor, str(number))
            tests = {test for task in tasks for test in task["tests"]}
            job = {
                "task": "try",
                "out": str(out),
                "faults": tasks,
                "at_import": at_import,
                "usual": {each: usual[each] for each in tests},
            }
            files = sorted({each.partition("::")[0] for each in tests})
            if files:
                starts.append((copy, job, files))
            else:
                nothing = {"killed_by": None, "how": "", "ran": 0, "skipped": 0}
                with out.open("a") as file:
                    file.writelines(json.dumps({"fault": task["fault"], **nothing}) + "\n" for task in tasks)
        self._at_once(starts)
        for line in _lines(self._found_file(floor)):
            self.found.setdefault(self._mutants[line["fault"]].id, {})[floor] = line

    def _task(self, floor: str, mutant: Mutant, tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The tests that reach a fault: those of its file's name first, then the cheap ones."""
        number = self._numbers[mutant.id]
        name = Path(mutant.file).stem.strip("_")
        usable = [each for each in tests if not each["failed"]]
        reaching = [each for each in usable if number in each["reached"]]
        if mutant.change.at_import:
            files = files_that_import(mutant.file, FLOORS[floor])
            reaching = [each for each in usable if each["test"].partition("::")[0] in files]
        ordered = sorted(reaching, key=lambda each: (name not in each["test"].partition("::")[0], each["seconds"]))
        ends = accumulate(each["seconds"] for each in ordered)
        chosen = [each["test"] for each, end in zip(ordered, ends, strict=True) if end <= SECONDS[floor]]
        return {
            "fault": number,
            "tests": chosen,
            "seconds": SLOWER * SECONDS[floor],
            "left": len(ordered) - len(chosen),
        }

    def _at_once(self, starts: Sequence[tuple[PrivateCopy, dict[str, Any], Sequence[str]]]) -> None:
        with ThreadPoolExecutor(max_workers=max(1, len(starts))) as pool:
            list(pool.map(lambda each: _run(*each), starts))


def _run(copy: PrivateCopy, job: dict[str, Any], files: Sequence[str]) -> None:
    """Pytest with the plugin, in a copy."""
    environment = copy.environment()
    file = copy.own / "job.json"
    file.write_text(json.dumps(job))
    if job.get("at_import"):
        copy.turn_on(job["faults"][0]["fault"])
    command = [
        copy.python, "-m", "pytest", "-q", "-n", "0", "-p", "tests.mutants.floor", "-p", "no:cacheprovider",
        "--inline-snapshot", "disable", "--mutants-job", str(file), *files,
    ]  # fmt: skip
    with (copy.own / "log").open("w") as log:
        subprocess.run(command, cwd=copy.folder, env=environment, stdout=log, stderr=log, check=False)
    copy.turn_on(None)


def _test_files(floor: str) -> list[Path]:
    return [each for folder in FLOORS[floor] for each in sorted((ROOT / folder).rglob("test_*.py"))]


def _lines(pattern: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for each in sorted(pattern.parent.glob(pattern.name)) for line in each.read_text().splitlines()
    ]


def say(text: str) -> None:
    """To whoever waits."""
    print(text, file=sys.stderr, flush=True)
