"""What tables of experiments say: means, versions of an agent side by side, and what an earlier table had otherwise."""

from __future__ import annotations

import json
from collections import defaultdict
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
    earlier, later = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
    for grouped, rows in ((earlier, before), (later, now)):
        for row in rows:
            grouped[f"{row.id} ({row.version})" if has_several and row.version else row.id].append(row)
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


def means_by_version(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The means of the rows of each version, in the order of the experiment; {} where no version is named."""
    versions = dict.fromkeys(row.version for row in rows if row.version is not None)
    return {version: means([row for row in rows if row.version == version]) for version in versions}


def side_by_side(rows: Sequence[Row]) -> list[dict[str | None, Row]]:
    """For each source and repetition the rows that are done, by their versions."""
    lines: dict[tuple[str, int], dict[str | None, Row]] = {}
    for row in rows:
        lines.setdefault((row.id, row.repetition), {})[row.version] = row
    return list(lines.values())


def _named(score: ScoreValue | None) -> Mapping[str, float]:
    return {} if score is None else score if isinstance(score, dict) else {_NAMELESS: score}


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
