"""`mulligan pending`: the calls that wait for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mulligan.cli._people import read_pending_calls
from mulligan.cli._print_rows import print_rows
from mulligan.cli._runs import is_open_run
from mulligan.cli._terminal import OK, AsJson, connect_or_fail, print_json, print_progress
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client

HEADINGS = ("run", "waits", "call", "since (UTC)", "what")
KINDS = {"approval": "needs approval", "question": "asks"}
"""What a waiting call needs of a person, by its kind."""


async def pending(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="The id of one run: its calls, and those of its sub-agents' runs. Without it, all open runs.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the tool calls that wait for a person: for approval, or for an answer. The oldest is first.

    Examples: `mulligan pending`, `mulligan pending my-run --json`

    Exit code: 0, also if no call waits or the run has ended; 2 no such run or no server.
    """
    client = await connect_or_fail()
    none_waits = "no call waits for a person."
    waits: list[dict[str, Any]] = []
    if run_id is not None and not await is_open_run(client, run_id):
        none_waits = f"the run {run_id!r} has ended, so none of its calls waits for a person."
    elif run_id is not None:
        waits = await read_pending_calls(client, run_id)
    else:
        waits = await _read_all(client)
    if as_json:
        print_json(waits)
    elif not waits:
        print_progress(none_waits)
    else:
        print_rows(HEADINGS, [_cells(each) for each in waits], [_note(each) for each in waits])
    return OK


async def _read_all(client: Client) -> list[dict[str, Any]]:
    """The waiting calls of all open runs. A run that does not answer is reported on stderr, and the others are shown."""
    from mulligan.cli._steps import counted
    from mulligan.client.waiting_calls import read_all_pending

    pending_calls = await read_all_pending(client, is_bounded=False)
    if pending_calls.encrypted:
        left_out = counted(pending_calls.encrypted, "open run")
        print_progress(f"{left_out} left out: encrypted with keys that MULLIGAN_ENCRYPTION_KEYS does not have.")
    for run_id, reason in pending_calls.unread.items():
        print_progress(f"{run_id} does not answer: {reason}")
    return pending_calls.calls


def _note(wait: dict[str, Any]) -> tuple[str, str] | None:
    """What a person must know of a call before the decision: that its tool is gone, or what the agent has read."""
    from mulligan.foreign_results import quoted_name

    notes = [f"! {wait['warning']}"] if wait.get("warning") else []
    if untrusted := wait.get("untrusted"):
        tools = ", ".join(dict.fromkeys(quoted_name(each["tool"]) for each in untrusted))
        notes.append(f"! the agent has read what others may have written, in results of: {tools}")
    return (wait["call_id"], " ".join(notes)) if notes else None


def _cells(wait: dict[str, Any]) -> list[Text]:
    """The cells of a call, in the order of `HEADINGS`."""
    from mulligan.cli._steps import short

    is_question = wait["kind"] == "question"
    # The text of an approval begins with the tool's name.
    text = f"{wait['tool']}: {wait['text']}" if is_question else wait["text"].partition("\n")[0]
    agent = f"{wait['agent']}: " if wait.get("agent") else ""
    style = "cyan" if is_question else "yellow"
    return [
        Text(printable(wait["id"])),
        Text(short(KINDS.get(wait["kind"], wait["kind"])), style=style),
        Text(short(wait["call_id"])),
        Text(short(str(wait["since"])[5:16].replace("T", " "))),
        Text(short(agent + text), style=style),
    ]
