"""Shared by `whatif` and `eval`: start an experiment, follow it to its end, and print its table."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mulligan.cli._print_rows import print_rows
from mulligan.cli._terminal import (
    NOT_COMPLETED,
    OK,
    connect_or_fail,
    fail,
    print_json,
    print_line,
    print_progress,
)
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import WorkflowHandle

    from mulligan.wire.experiments import ExperimentContent, Row


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not finite; give a number.")
    return value


def _above_zero(value: float | None) -> float | None:
    if (value := _finite(value)) is not None and value <= 0:
        fail(f"--max-cost is {value:g}; give a number of USD above 0.")
    return value


Score = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="A function with @score that the worker loads.", show_default=False),
]
Name = Annotated[str | None, typer.Option(help="The experiment's name.", show_default="a generated name")]
Concurrency = Annotated[int, typer.Option(min=1, max=100, help="How many runs are open at the same time.")]
MaxCost = Annotated[
    float | None,
    typer.Option(callback=_above_zero, help="USD that all runs may cost together.", show_default="no limit"),
]
AtLeast = Annotated[
    float | None,
    typer.Option(callback=_finite, help="The mean of each score below which the exit code is 1.", show_default=False),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="What --json has printed earlier: says what became better or worse.", show_default=False
    ),
]
Versions = Annotated[
    list[str] | None,
    typer.Option(
        "--version",
        metavar="current|DIGEST|LABEL",
        help="A version of the agent, `current` as workers serve it now; several stand side by side. Repeatable.",
        show_default=False,
    ),
]
SECONDS_BETWEEN_LOOKS = 2.0
HEADINGS = ("id", "run", "outcome", "step", "score", "steps", "tokens", "usd")
MOST_HEADING = 16
"""Characters of a version above its column."""
_COLOURS = {"same": "green", "other": "yellow", "diverged": "magenta", "failed": "red", "skipped": "dim"}


@dataclass(frozen=True)
class Wanted:
    """What is done with an experiment's table."""

    at_least: float | None
    baseline: Path | None
    as_json: bool


async def run_experiment(content: ExperimentContent, options: dict[str, Any], wanted: Wanted, kind: str) -> int:
    """Start an experiment, or find an equal one of the same name, and print its table at its end.

    Args:
        content: What its rows begin with.
        options: `name`, `concurrency`, `max_cost`, `score` and `versions`.
        wanted: What is done with the table.
        kind: How a generated name begins.

    Returns:
        The exit code.
    """
    import secrets

    from mulligan.client.experiments.compare_tables import read_baseline
    from mulligan.client.experiments.experiment_content import ExperimentError
    from mulligan.client.experiments.start_experiment import start_experiment
    from mulligan.client.settings import settings
    from mulligan.client.start_run import StartUnknownError

    options["name"] = name = options["name"] or f"{kind}-{secrets.token_hex(3)}"
    try:
        before = read_baseline(wanted.baseline) if wanted.baseline else None
        client = await connect_or_fail()
        handle = await start_experiment(client, content, options, settings().task_queue)
    except ExperimentError as error:
        fail(str(error))
    except StartUnknownError as error:
        fail(
            f"the experiment {name!r} may have been started: Temporal did not answer ({error.message}). To see whether it "
            f"was: `mulligan experiments {name}`; with `--name {name}` the same command follows it."
        )
    number = content.number_of_rows(options["versions"])
    print_progress(f"started {name}: {number} run{'' if number == 1 else 's'}")
    return _report(name, await _rows(handle, name), before, wanted)


async def _rows(handle: WorkflowHandle[Any, Any], name: str) -> list[Row]:
    """The rows of an experiment, at its end."""
    from temporalio.client import WorkflowFailureError
    from temporalio.exceptions import ApplicationError

    from mulligan.wire.experiments import INVALID_EXPERIMENT, Row

    ending = asyncio.create_task(handle.result())
    try:
        await _show_progress(handle, ending)
        return [Row.model_validate(row) for row in (await ending)["rows"]]
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == INVALID_EXPERIMENT:
            fail(error.cause.message)
        fail(f"the experiment {name} ended early; see its rows: mulligan experiments {name}", NOT_COMPLETED)
    except (asyncio.CancelledError, KeyboardInterrupt):
        print_progress(f"The experiment continues: mulligan experiments {name}")
        raise
    finally:
        ending.cancel()


async def _show_progress(handle: WorkflowHandle[Any, Any], ending: asyncio.Task[Any]) -> None:
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    from mulligan.client.read_run import UNDECODABLE, ask_once
    from mulligan.wire.experiments import PROGRESS_QUERY

    shown = 0
    while not (await asyncio.wait([ending], timeout=SECONDS_BETWEEN_LOOKS))[0]:
        try:
            progress = await ask_once(handle, PROGRESS_QUERY)
        except (RPCError, WorkflowQueryFailedError, *UNDECODABLE):
            continue  # no worker answers now
        if progress["done"] != shown:
            shown = progress["done"]
            print_progress(f"{shown} of {progress['rows']} rows")


def _report(name: str, rows: list[Row], before: list[Row] | None, wanted: Wanted) -> int:
    from mulligan.client.experiments.compare_tables import compare_tables, means, means_by_version

    reached, of_versions = means(rows), means_by_version(rows)
    compared = compare_tables(before, rows) if before is not None else None
    at_least = -math.inf if wanted.at_least is None else wanted.at_least
    table: dict[str, Any] = {"name": name, "rows": [row.model_dump(mode="json") for row in rows], "means": reached}
    if of_versions:
        table["versions"] = of_versions
    if wanted.as_json:
        print_json({**table, **({"baseline": compared} if compared is not None else {})})
    else:
        print_table(rows)
        for version, values in of_versions.items() if len(of_versions) > 1 else [("", reached)]:
            of = f" of {printable(version)}" if version else ""
            print_line(f"mean{of}: " + ", ".join(f"{printable(each)} {value:.3g}" for each, value in values.items()))
        for verdict, ids in (compared or {}).items():
            print_line(f"{verdict}: {', '.join(map(printable, ids)) or 'none'}")
    low = {each for values in (reached, *of_versions.values()) for each, mean in values.items() if mean < at_least}
    if low:
        print_progress(f"below --at-least {at_least:g}: {', '.join(sorted(low))}")
        return NOT_COMPLETED
    return OK


def print_table(rows: Sequence[Row]) -> None:
    """Print rows, with the errors below. Rows of several versions of the agent stand side by side."""
    from mulligan.client.experiments.compare_tables import side_by_side

    if not rows:
        print_progress("no row is done yet.")
        return
    if len(versions := list(dict.fromkeys(row.version for row in rows))) > 1:
        _print_versions(versions, side_by_side(rows))
        return
    notes = [(printable(row.id), printable(row.error)) if row.error else None for row in rows]
    print_rows(HEADINGS, [_cells(row) for row in rows], notes)


def _print_versions(versions: Sequence[str | None], lines: Sequence[Mapping[str | None, Row]]) -> None:
    cells, notes = list[list[Text]](), list[tuple[str, str] | None]()
    for line in lines:
        name = printable(next(iter(line.values())).id)
        cells.append([Text(name), *(_cell(line.get(each)) for each in versions)])
        errors = " ".join(f"{row.version}: {row.error}" for row in line.values() if row.error)
        notes.append((name, printable(errors)) if errors else None)
    print_rows(("id", *(printable(str(each))[:MOST_HEADING] for each in versions)), cells, notes)


def _cell(row: Row | None) -> Text:
    """A run in the column of its version."""
    if row is None:
        return Text("–")
    step = f" in step {row.step}" if row.step else ""
    usd = "? usd" if row.usd is None else f"{row.usd:.4f} usd"
    words = Text.assemble((row.outcome, _COLOURS[row.outcome]), f"{step}, {usd}")
    return words.append(f", {_scores(row)}" if row.score is not None else "")


def _scores(row: Row) -> str:
    score = row.score
    named = score.items() if isinstance(score, dict) else [("", score)] if score is not None else []
    return " ".join(f"{printable(name)} {value:g}".strip() for name, value in named)


def _cells(row: Row) -> list[Text]:
    return [
        Text(printable(row.id)),
        Text(printable(row.run_id or "–")),
        Text(row.outcome, style=_COLOURS[row.outcome]),
        Text("" if row.step is None else str(row.step), justify="right"),
        Text(_scores(row), justify="right"),
        Text(str(row.steps), justify="right"),
        Text(f"{row.tokens:,}", justify="right"),
        Text("?" if row.usd is None else f"{row.usd:.4f}", justify="right"),
    ]
