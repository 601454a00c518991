"""`mulligan undo`: take back what a run that has ended has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.cli._input import is_at_terminal, prompt
from mulligan.cli._steps import counted
from mulligan.cli._terminal import (
    NOT_COMPLETED,
    OK,
    AsJson,
    connect_or_fail,
    err,
    print_json,
    print_line,
    print_progress,
)
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.client.undo.undo import Undone
    from mulligan.wire.undo import UndoOptions

_TITLES = {
    "undone": "undone",
    "failed": "failed",
    "not_reached": "not reached",
    "no_undo": "has no undo",
}


async def undo(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a run that has ended.", show_default=False)],
    from_step: Annotated[
        int | None, typer.Option(min=1, help="Only the calls of this step and of later ones.", show_default="all calls")
    ] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the others after an undo that failed.")] = False,
    lost: Annotated[
        bool, typer.Option("--lost", help="Also undo calls of which nobody knows whether they have done their work.")
    ] = False,
    continued: Annotated[
        bool, typer.Option("--continued", help="Undo it although another run has continued its conversation.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, at a terminal.")] = False,
    as_json: AsJson = False,
) -> int:
    """Undo the calls that a run and its sub-agents' runs have executed, the last one first, by the `undo` of their tools.

    The undo is a workflow of its own: it goes on when this command is ended, and when workers die. Calls of tools without
    `undo` are listed. At a terminal the calls are listed first, and you are asked. The same command again takes up what
    failed or was not reached, and repeats nothing (docs/undo.md).

    Examples: `mulligan undo my-run`, `mulligan undo my-run --from-step 3 --continue`

    Exit code: 0 all is undone that can be, 1 something failed, was not reached, or you did not confirm, 2 the run cannot be
    undone.
    """
    from mulligan.client.undo.undo import check_not_continued, open_continuation, read_result, start_undo
    from mulligan.wire.undo import UndoOptions

    client = await connect_or_fail()
    options = UndoOptions(from_step=from_step, go_on=go_on, lost=lost)
    if not yes and is_at_terminal():
        if not continued:
            await check_not_continued(client, run_id)
        if not await _confirmed(client, run_id, options):
            print_progress("nothing was undone.")
            return NOT_COMPLETED
    handle = await start_undo(client, run_id, options, although_continued=continued)
    if (goes_on := await open_continuation(client, run_id)) is not None:
        print_progress(f"the run {goes_on} is open, and goes on from {run_id} although that is undone; stop it.")
    print_progress(f"undoing {run_id} in {handle.id}; it goes on when this command is ended.")
    return _report(await read_result(client, handle), as_json=as_json)


async def _confirmed(client: Client, run_id: str, options: UndoOptions) -> bool:
    """Whether the person at the terminal wants it, having seen the calls in the order in which they are undone."""
    from mulligan.client.undo.undo import read_undo

    undone = await read_undo(client, run_id, options)
    to_undo = [call for call in undone.calls if call.state not in ("undone", "no_undo")]
    if undone.is_open or not to_undo:  # an equal undo goes on, or there is nothing to do
        return True
    for call in undone.calls:
        if call.state != "undone":
            title = "has no undo, and stays" if call.state == "no_undo" else "will be undone"
            err.print(printable(f"{title}: step {call.step} {call.name} {call.call_id} of {call.run}"))
    return prompt(f"undo {counted(len(to_undo), 'call')}? [y/N] ").lower() in ("y", "yes")


def _report(undone: Undone, *, as_json: bool) -> int:
    """Print what became of each call; returns the exit code."""
    listed = undone.to_json()
    if as_json:
        print_json(listed)
    else:
        for state, title in _TITLES.items():
            for call in listed[state]:
                why = f": {call['error']['message']}" if call["error"] else ""
                print_line(
                    printable(f"{title}: step {call['step']} {call['name']} {call['call_id']} of {call['run']}{why}")
                )
        if undone.error:
            print_progress(f"{'' if undone.calls else 'nothing was undone: '}{undone.error.message}")
        elif not undone.calls:
            print_progress("the run has executed no calls.")
    return NOT_COMPLETED if undone.error or listed["failed"] or listed["not_reached"] else OK


COMMANDS = (undo,)
