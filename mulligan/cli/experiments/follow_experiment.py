"""Shared by `whatif` and `eval`: start an experiment, follow it to its end, and print its table."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
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
    from temporalio.client import Client, WorkflowHandle

    from mulligan.wire.experiments import ExperimentContent, Row


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not finite; give a number.")
    return value


Model = Annotated[str | None, typer.Option(help="Another model, as `provider:name`.", show_default="as before")]
Score = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="A function with @score that the worker loads.", show_default=False),
]
Name = Annotated[str | None, typer.Option(help="The experiment's name.", show_default="a generated name")]
Concurrency = Annotated[int, typer.Option(min=1, max=100, help="How many runs are open at the same time.")]
MaxCost = Annotated[
    float | None,
    typer.Option(min=0.0, callback=_finite, help="USD that all runs may cost together.", show_default="no limit"),
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
SECONDS_BETWEEN_LOOKS = 2.0
HEADINGS = ("id", "run", "outcome", "step", "score", "steps", "tokens", "usd")
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
        options: `name`, `concurrency`, `max_cost` and `score`.
        wanted: What is done with the table.
        kind: How a generated name begins.

    Returns:
        The exit code.
    """
    import secrets

    from temporalio.service import RPCError

    from mulligan.client.experiments.baseline import read_baseline
    from mulligan.client.experiments.experiment_content import ExperimentError
    from mulligan.client.experiments.start_experiment import start_experiment
    from mulligan.client.settings import settings

    options["name"] = name = options["name"] or f"{kind}-{secrets.token_hex(3)}"
    try:
        before = read_baseline(wanted.baseline) if wanted.baseline else None
        client = await connect_or_fail()
        handle = await start_experiment(client, content, options, settings().task_queue)
    except ExperimentError as error:
        fail(str(error))
    except RPCError as error:
        fail(f"Temporal did not start the experiment: {error.message}")
    print_progress(f"started {name}: {len(content.sources) * content.repeat} runs")
    rows = await _rows(client, handle, name)
    return _report(name, rows, before, wanted)


async def _rows(client: Client, handle: WorkflowHandle[Any, Any], name: str) -> list[Row]:
    """The rows of an experiment, at its end."""
    from temporalio.client import WorkflowFailureError
    from temporalio.exceptions import ApplicationError

    from mulligan.client.experiments.experiment_content import ExperimentError
    from mulligan.client.experiments.read_experiments import read_experiment
    from mulligan.wire.experiments import INVALID_EXPERIMENT, Row

    ending = asyncio.create_task(handle.result())
    try:
        await _show_progress(handle, ending)
        return [Row.model_validate(row) for row in (await ending)["rows"]]
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == INVALID_EXPERIMENT:
            fail(error.cause.message)
        try:
            table = await read_experiment(client, name)
        except ExperimentError as unreadable:
            fail(str(unreadable))
        done = len(table["rows"]) if table else 0
        fail(f"the experiment {name} ended early, with {done} rows; see `mulligan experiments {name}`.", NOT_COMPLETED)
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
    from mulligan.client.experiments.baseline import compare_tables, means

    reached = means(rows)
    compared = compare_tables(before, rows) if before is not None else None
    table: dict[str, Any] = {"name": name, "rows": [row.model_dump(mode="json") for row in rows], "means": reached}
    if wanted.as_json:
        print_json({**table, **({"baseline": compared} if compared is not None else {})})
    else:
        print_table(rows)
        print_line("mean: " + ", ".join(f"{printable(each)} {value:.3g}" for each, value in reached.items()))
        for verdict, ids in (compared or {}).items():
            print_line(f"{verdict}: {', '.join(map(printable, ids)) or 'none'}")
    if wanted.at_least is not None and (low := [each for each, mean in reached.items() if mean < wanted.at_least]):
        print_progress(f"below --at-least {wanted.at_least:g}: {', '.join(low)}")
        return NOT_COMPLETED
    return OK


def print_table(rows: Sequence[Row]) -> None:
    """Print rows, with the errors below."""
    if not rows:
        print_progress("no row is done yet.")
        return
    notes = [(printable(row.id), printable(row.error)) if row.error else None for row in rows]
    print_rows(HEADINGS, [_cells(row) for row in rows], notes)


def _cells(row: Row) -> list[Text]:
    score = row.score
    named = score.items() if isinstance(score, dict) else [("", score)] if score is not None else []
    scores = " ".join(f"{printable(name)} {value:g}".strip() for name, value in named)
    return [
        Text(printable(row.id)),
        Text(printable(row.run_id or "–")),
        Text(row.outcome, style=_COLOURS[row.outcome]),
        Text("" if row.step is None else str(row.step), justify="right"),
        Text(scores, justify="right"),
        Text(str(row.steps), justify="right"),
        Text(f"{row.tokens:,}", justify="right"),
        Text("?" if row.usd is None else f"{row.usd:.4f}", justify="right"),
    ]
