"""The rows of an experiment with several versions of an agent: the rows of a run stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.client.experiments.baseline import means
from mulligan.wire.experiments import Row


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
