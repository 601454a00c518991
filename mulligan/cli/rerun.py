"""`mulligan rerun`: start a run with the prompt of another one, by the agent as it is today."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._forks import (
    Instructions,
    NewId,
    RunId,
    Tools,
    Unrecorded,
    Wait,
    Yes,
    fork_and_report,
    read_instructions,
)
from mulligan.cli._terminal import AsJson


async def rerun(
    run_id: RunId,
    model: Annotated[
        str | None,
        typer.Option(
            help="Another model, as `provider:name`.",
            show_default="the one that the run was started with, or else that of the agent today",
        ),
    ] = None,
    instructions: Instructions = None,
    version: Annotated[
        str | None,
        typer.Option(
            metavar="current|DIGEST|LABEL",
            help="A version of the agent, `current` as workers serve it now.",
            show_default="as for a new run",
        ),
    ] = None,
    tools: Tools = "recorded",
    unrecorded: Unrecorded = "diverge",
    id: NewId = None,  # noqa: A002 - what Temporal calls it
    wait: Wait = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Run the task of a run again, by the agent as workers serve it today: a fork at its first step.

    With recorded tools nothing happens: a call that the run made too gets its result, and any other call ends the new run.

    Examples: `mulligan rerun my-run --wait`, `mulligan rerun my-run --model openai:gpt-5 --unrecorded error`

    Exit code: 0 started (with --wait: completed), 1 it did not complete, or you did not confirm, 2 it cannot be started.
    """
    edits = {"model": model, "instructions": read_instructions(instructions)}
    options = {
        "at": 1,
        "edits": {name: value for name, value in edits.items() if value is not None},
        "tools": tools,
        "unrecorded": unrecorded,
        "pinned": False,
        "version": version,
    }
    return await fork_and_report(run_id, options, new_id=id, yes=yes, wait=wait, as_json=as_json)
