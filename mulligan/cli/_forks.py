"""Shared by the commands `fork` and `rerun`: their options, the calls that live tools may repeat, and the start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mulligan.cli._input import prompt
from mulligan.cli._runs import report_start
from mulligan.cli._terminal import NOT_COMPLETED, connect_or_fail, err, fail, print_progress

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.client.fork_run import Fork

RunId = Annotated[str, typer.Argument(metavar="ID", help="The id of a run, open or ended.", show_default=False)]
Instructions = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with other instructions for the agent.", show_default=False)
]
Model = Annotated[str | None, typer.Option(help="Another model, as `provider:name`.", show_default="as before")]
Tools = Annotated[
    Literal["recorded", "live"],
    typer.Option(help="Whether calls get the results of the run's equal calls, or the tools run."),
]
Unrecorded = Annotated[
    Literal["diverge", "error", "live"],
    typer.Option(
        help="What becomes of a call without a record: the run ends, the model gets an error, or the tool runs."
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(min=1, help="The maximum number of model calls, shared steps included.", show_default="as before"),
]
NewId = Annotated[str | None, typer.Option(help="The new run's id.", show_default="a generated id")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the run to its end and print its output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before tools run.")]
_MOST_LISTED = 20


async def fork_and_report(
    run_id: str, options: dict[str, Any], *, new_id: str | None, yes: bool, wait: bool, as_json: bool
) -> int:
    """Fork a run, and print the new run's id. `options`: those of a fork. Returns the exit code."""
    from temporalio.exceptions import WorkflowAlreadyStartedError
    from temporalio.service import RPCError

    from mulligan.client.fork_run import parse_fork, start_fork
    from mulligan.client.run_state import ResumeError
    from mulligan.errors import InvalidRunInputError

    try:
        fork = parse_fork({name: value for name, value in options.items() if value is not None})
        client = await connect_or_fail()
        if fork.may_run_tools and not yes and not await _confirmed(client, run_id, fork):
            print_progress("nothing was started.")
            return NOT_COMPLETED
        started = await start_fork(client, run_id, fork, new_id=new_id)
    except (ResumeError, InvalidRunInputError) as error:
        fail(str(error))
    except WorkflowAlreadyStartedError:
        fail(f"there is another run {new_id!r} already; choose another --id.")
    except RPCError as error:
        fail(f"Temporal did not start the run: {error.message}")
    return await report_start(client, started.handle, wait=wait, as_json=as_json)


async def _confirmed(client: Client, run_id: str, fork: Fork) -> bool:
    """Whether a person wants tools to run, having seen which calls the run made from the step on."""
    from mulligan.cli._steps import counted, short
    from mulligan.client.fork_run import read_live_calls

    calls = await read_live_calls(client, run_id, fork)
    made = f"the run made {counted(len(calls), 'call')} from this step on"
    if fork.tools == "recorded":
        err.print(f"Tools run for calls without a record; {made}, and only equal ones have records:")
    elif calls:
        err.print(f"Live tools: {made}, which may happen again:")
    else:
        return True
    for call in calls[:_MOST_LISTED]:
        err.print(
            f"  step {call['step']}: {short(call['name'], 100)} {short(call['raw_arguments'], 200)}", markup=False
        )
    if (more := len(calls) - _MOST_LISTED) > 0:
        err.print(f"  and {more} more")
    if not sys.stdin.isatty():
        fail("there is no terminal to confirm on; use --yes.")
    return prompt("start it? [y/N] ").lower() in ("y", "yes")


def read_instructions(file: Path | None) -> str | None:
    """The text of a file with instructions; the command ends if it cannot be read."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"--instructions: {error.filename}: {error.strerror}.")
    except ValueError as error:
        fail(f"--instructions: {file} is not a text in UTF-8 ({error}).")
