"""Compare the table of an experiment with an earlier one: which sources became better, worse, or changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from mulligan.client.experiments.experiment_content import ExperimentError
from mulligan.wire.experiments import Row, ScoreValue

MOST_BYTES = 16_000_000
_EQUAL = 1e-9
"""How far two means may be apart that count as equal."""
_NAMELESS = "score"


def read_baseline(file: Path) -> list[Row]:
    """The rows of an earlier experiment, as `--json` has printed them.

    Raises:
        ExperimentError: the file cannot be read, or has no such table.
    """
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ExperimentError(f"--baseline: {file} has more than {MOST_BYTES:,} bytes.")
        table = json.loads(file.read_bytes())
        return [Row.model_validate(row) for row in table["rows"]]
    except OSError as error:
        raise ExperimentError(f"--baseline: {file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        raise ExperimentError(f"--baseline: {file} is not what --json of an experiment has printed.") from None


def compare_tables(before: Sequence[Row], now: Sequence[Row]) -> dict[str, list[str]]:
    """The ids of the sources of both tables that became `better`, `worse`, or `changed` otherwise.

    Where a table has several versions of the agent, those are compared that both have, as `ID (VERSION)`.
    The means of their scores decide; without scores, how many of their runs were the same.
    """
    has_several = any(len({row.version for row in rows}) > 1 for rows in (before, now))
    earlier, later = (_by_id(rows, with_version=has_several) for rows in (before, now))
    verdicts: dict[str, list[str]] = {"better": [], "worse": [], "changed": []}
    for name in later:
        if name in earlier and (verdict := _verdict(earlier[name], later[name])):
            verdicts[verdict].append(name)
    return verdicts


def means(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of each score, by its name; without scores, the part of the rows that are the same. A row without a score,
    as its run failed or was not begun, counts as 0.
    """
    if not any(row.score is not None for row in rows):
        return {"same": sum(row.outcome == "same" for row in rows) / max(1, len(rows))}
    names = dict.fromkeys(name for row in rows for name in _named(row.score))
    return {name: sum(_named(row.score).get(name, 0.0) for row in rows) / len(rows) for name in names}


def _named(score: ScoreValue | None) -> Mapping[str, float]:
    return {} if score is None else score if isinstance(score, dict) else {_NAMELESS: score}


def _by_id(rows: Iterable[Row], *, with_version: bool) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        name = f"{row.id} ({row.version})" if with_version and row.version else row.id
        grouped.setdefault(name, []).append(row)
    return grouped


def _verdict(before: Sequence[Row], now: Sequence[Row]) -> str | None:
    old, new = means(before), means(now)
    if old.keys() != new.keys():
        return "changed"
    rises = [new[name] - old[name] for name in new]
    if any(rise < -_EQUAL for rise in rises):
        return "changed" if any(rise > _EQUAL for rise in rises) else "worse"
    if any(rise > _EQUAL for rise in rises):
        return "better"
    return None if _outcomes(before) == _outcomes(now) else "changed"


def _outcomes(rows: Iterable[Row]) -> set[tuple[str, int]]:
    """What became of its runs, however often each was repeated."""
    return {(row.outcome, row.step or 0) for row in rows}
