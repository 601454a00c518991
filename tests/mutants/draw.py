"""Which faults are drawn: the same ones for the same code, spread evenly over the rooms of the core.

Each line has a number that depends on the seed and on its text only, and the lowest ones are drawn: where code changes, those
faults change that it had, and no others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.kinds import Change, changes

ROOT = Path(__file__).parents[2]
SEED, COUNT = 57, 300
WAITS = (
    "workflows/waits.py",
    "workflows/shown_wait.py",
    "workflows/people/*.py",
    "workflows/approvals/*.py",
    "activities/answers/approval_policy.py",
)
ROOMS: dict[str, tuple[str, ...]] = {
    "loop": ("workflows/*.py",),
    "answers": ("activities/answers/*.py",),
    "waits": WAITS,
    "conversation": ("workflows/conversation/*.py", "activities/run_data/*.py"),
    "client": ("mulligan/client/*.py", "mulligan/client/*/*.py"),
    "run_view": ("mulligan/run_view/*.py",),
    "schema": ("mulligan/schema/*.py",),
    "wire": ("mulligan/wire/*.py",),
}


@dataclass(frozen=True)
class Mutant:
    """A fault in a line of a file."""

    id: str
    room: str
    file: str
    change: Change

    def lines(self) -> tuple[str, str]:
        """The line as it is, and with the fault."""
        line = (ROOT / self.file).read_text().split("\n")[self.change.line - 1]
        return line, replaced(line, self.change, self.change.text)


def replaced(line: str, change: Change, text: str) -> str:
    """A line with another text where the change is."""
    raw = line.encode()
    return (raw[: change.begin] + text.encode() + raw[change.end :]).decode()


def files(room: str) -> list[str]:
    """The files of a room. One that belongs to `waits` belongs to no other."""
    found = sorted({str(each.relative_to(ROOT)) for pattern in ROOMS[room] for each in ROOT.glob(pattern)})
    return [each for each in found if room == "waits" or not any(fnmatch(each, other) for other in WAITS)]


def draw(seed: int = SEED, count: int = COUNT) -> list[Mutant]:
    """The faults: one room after the other, so that the first N are spread as evenly as all."""
    rows = [_of_room(room, seed) for room in ROOMS]
    most = -(-count // len(rows))
    return [row[index] for index in range(most) for row in rows if index < len(row)][:count]


def _of_room(room: str, seed: int) -> list[Mutant]:
    """One fault for each line that has any, in the order of their numbers."""
    found = [each for file in files(room) for each in _of_file(room, file, seed)]
    return sorted(found, key=lambda each: each.id)


def _of_file(room: str, file: str, seed: int) -> Iterable[Mutant]:
    source = (ROOT / file).read_text()
    lines, seen, by_line = source.split("\n"), Counter[str](), dict[int, list[Change]]()
    for change in changes(source):
        by_line.setdefault(change.line, []).append(change)
    for line, offered in sorted(by_line.items()):
        text = f"{file}:{offered[0].function}:{lines[line - 1].strip()}"
        seen[text] += 1
        number = _number(seed, text, str(seen[text]))
        yield Mutant(number[:10], room, file, _chosen(offered, number))


def _chosen(offered: Sequence[Change], number: str) -> Change:
    """One of the kinds that the line offers, then one of that kind."""
    kinds = sorted({each.kind for each in offered})
    kind = kinds[int(number[10:18], 16) % len(kinds)]
    of_kind = [each for each in offered if each.kind == kind]
    return of_kind[int(number[18:26], 16) % len(of_kind)]


def _number(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
