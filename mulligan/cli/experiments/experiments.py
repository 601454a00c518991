"""`mulligan experiments`: the newest experiments, or the table of one."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from mulligan.cli._print_rows import print_rows
from mulligan.cli._terminal import OK, AsJson, connect_or_fail, fail, print_json, print_line, print_progress
from mulligan.cli.experiments.evaluate import evaluate
from mulligan.cli.experiments.follow_experiment import print_table
from mulligan.cli.experiments.whatif import whatif
from mulligan.schema.printable import printable

HEADINGS = ("name", "status", "rows", "started", "agent", "model")
SHOWN, MOST_SHOWN, MOST_DIGITS = 20, 1_000, 9


async def experiments(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[N]", help="The name of one, or how many of the newest.", show_default="the newest 20"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the newest experiments, or print the table of one, as far as its rows are done (docs/what-if.md).

    Examples: `mulligan experiments`, `mulligan experiments whatif-3fa9c1 --json`

    Exit code: 0, also if there is none; 2 there is none of this name, or no worker answers.
    """
    from temporalio.service import RPCError

    from mulligan.client.experiments.experiment_content import ExperimentError
    from mulligan.client.experiments.read_experiments import list_experiments, read_experiment

    client = await connect_or_fail()
    try:
        if name is not None and (table := await read_experiment(client, name)) is not None:
            return _print_one(table, as_json=as_json)
        if name is not None and not (name.isdecimal() and len(name) <= MOST_DIGITS):
            fail(f"there is no experiment {name[:120]!r} on this server; see `mulligan experiments`.")
        found = await list_experiments(client, min(int(name or SHOWN), MOST_SHOWN))
    except ExperimentError as error:
        fail(str(error))
    except RPCError as error:
        fail(f"the experiment cannot be read: {error.message}")
    if as_json:
        print_json(found)
    elif not found:
        print_progress("no experiments yet; start one with: mulligan whatif")
    else:
        print_rows(HEADINGS, [_cells(each) for each in found])
    return OK


def _print_one(table: dict[str, Any], *, as_json: bool) -> int:
    from mulligan.wire.experiments import Row

    if as_json:
        print_json(table)
        return OK
    print_line(f"{printable(table['name'])}: {table['status']}, {len(table['rows'])} of {table['planned']} rows")
    print_table([Row.model_validate(row) for row in table["rows"]])
    return OK


def _cells(each: dict[str, Any]) -> list[Text]:
    return [Text(printable(str(each.get(heading) or ""))) for heading in HEADINGS]


COMMANDS = (whatif, evaluate, experiments)
