"""What was found, as a table by room and floor, and as the lines that no test noticed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.draw import ROOMS, Mutant

HERE = Path(__file__).parent
RESULTS, EQUIVALENT = HERE / "results.json", HERE / "equivalent.json"
Found = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By the id of a fault, then by floor: as floor.py writes it."""


def equivalent() -> dict[str, str]:
    """Faults with which nothing differs, each with the reason."""
    known: dict[str, str] = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    return known


def killer(of: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The floor and the test that noticed a fault; empty if none did."""
    return next(((floor, each["killed_by"]) for floor, each in of.items() if each["killed_by"]), ("", ""))


def table(mutants: Sequence[Mutant], found: Found, floors: Sequence[str]) -> str:
    """As Markdown: a row for each room."""
    rows = [f"| room | faults | equal | {' | '.join(floors)} | survived | % |", "|---" * (5 + len(floors)) + "|"]
    for room in (*ROOMS, "all"):
        chosen = [each for each in mutants if room in (each.room, "all")]
        rows.append(_row(room, chosen, found, floors))
    return "\n".join(rows)


def _row(room: str, mutants: Sequence[Mutant], found: Found, floors: Sequence[str]) -> str:
    equal = equivalent()
    counted = [each for each in mutants if each.id not in equal and each.id in found]
    by = [killer(found[each.id])[0] for each in counted]
    kills = [by.count(floor) for floor in floors]
    share = f"{100 * sum(kills) / len(counted):.0f}" if counted else ""
    equals = sum(each.id in equal for each in mutants)
    return f"| {room} | {len(counted)} | {equals} | {' | '.join(map(str, kills))} | {by.count('')} | {share} |"


def survivors(mutants: Sequence[Mutant], found: Found) -> str:
    """Grouped by room: the line, as it is and with the fault, and how many tests reach it."""
    equal, lines = equivalent(), []
    for room in ROOMS:
        lines += ["", f"## {room}"]
        for each in mutants:
            if each.room == room and each.id in found and each.id not in equal and not killer(found[each.id])[1]:
                before, after = each.lines()
                ran = ", ".join(f"{floor} {of['ran']}" for floor, of in found[each.id].items())
                left = sum(of["skipped"] for of in found[each.id].values())
                not_run = f"; {left} not run, for time" if left else ""
                lines += [
                    f"- `{each.file}:{each.change.line}` {each.change.function} ({each.change.kind}, {each.id};"
                    f" tests that reach it: {ran}{not_run})",
                    f"  ```\n  - {before.strip()}\n  + {after.strip()}\n  ```",
                ]
    return "\n".join(lines)


def write_results(mutants: Sequence[Mutant], found: Found) -> None:
    """Write the committed table, a line for each fault."""
    equal, rows = equivalent(), []
    for each in mutants:
        if each.id not in found:
            continue
        before, after = each.lines()
        floor, test = killer(found[each.id])
        outcome: dict[str, object] = (
            {"equivalent": equal[each.id]} if each.id in equal else {"floor": floor, "killed_by": test}
        )
        place = {"id": each.id, "room": each.room, "file": each.file, "line": each.change.line}
        rows.append({**place, "kind": each.change.kind, "is": before.strip(), "becomes": after.strip(), **outcome})
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RESULTS.write_text(f"[\n{text}\n]\n")
