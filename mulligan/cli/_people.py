"""What the commands share by which people speak to a run: which call is meant, how it is shown, how it is told."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import fail, printable, put_json

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

PATIENCE = 20.0
"""Seconds until a run must have taken what it is told: its worker may just be replaying it."""
SHOWN = 20_000
"""Characters of a call that are shown before a person decides."""

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
CallId = Annotated[
    str | None, typer.Argument(metavar="CALL_ID", help="The call, where several wait.", show_default=False)
]
By = Annotated[str | None, typer.Option(help="Who says so.", show_default="your user name")]
Conversation = Annotated[
    str | None, typer.Option(help="Which agent, by its number, in a workflow that holds several.", show_default=False)
]


def user() -> str | None:
    """The name of the person at the keyboard."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def text_of(text: str) -> str:
    """A text that was given as an argument; `-` is stdin's."""
    text = sys.stdin.read().rstrip("\n") if text == "-" else text
    if not text.strip():
        fail("the text is empty.")
    return text


async def open_run(client: Client, run_id: str) -> WorkflowHandle[Any, Any]:
    """The run, or the end of the command where there is none, or it has ended."""
    from temporalio.client import WorkflowExecutionStatus

    from mulligan.cli.show import find

    handle: WorkflowHandle[Any, Any] = await find(client, run_id)
    status = (await handle.describe()).status
    if status != WorkflowExecutionStatus.RUNNING:
        _has_ended(run_id)
    return handle


async def pending(handle: WorkflowHandle[Any, Any]) -> list[dict[str, Any]]:
    """The calls of a run that wait for a person; or the end of the command."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    from mulligan.client.read_run import query_run

    try:
        found: list[dict[str, Any]] = await query_run(handle, "pending")
    except WorkflowQueryFailedError as error:
        fail(f"{handle.id!r} does not say what waits in it: {error}.")
    except RPCError as error:
        fail(f"what waits in {handle.id!r} cannot be read now: no worker that serves it answers ({error.message}).")
    return found


async def the_call(
    handle: WorkflowHandle[Any, Any], call_id: str | None, kind: str, conversation: str | None
) -> dict[str, Any]:
    """The call that is meant: the only one of its kind (`approval`, `question`) where none is named."""
    waiting = [wait for wait in await pending(handle) if wait["kind"] == kind]
    if any("conversation" in wait for wait in waiting):
        waiting = [{"conversation": "0", **wait} for wait in waiting]
    waiting = [wait for wait in waiting if conversation in (None, wait.get("conversation", "0"))]
    found = [wait for wait in waiting if call_id in (None, wait["call_id"])]
    what = "waits for approval" if kind == "approval" else "asks a person"
    listed = ", ".join(f"{wait['call_id']} ({wait['tool']})" for wait in waiting) or "none"
    if found and len({wait["call_id"] for wait in found}) > 1:
        fail(f"several calls of {handle.id!r} wait; name one: {listed}.")
    if len(found) > 1:
        agents = ", ".join(f"{wait['conversation']} ({wait.get('agent', '')})" for wait in found)
        fail(f"several agents of {handle.id!r} have that call; name one by --conversation: {agents}.")
    if not found and call_id is None:
        fail(f"no call of {handle.id!r} {what}; see `mulligan pending`.")
    if not found:
        fail(f"no call {call_id!r} of {handle.id!r} {what}; those that do: {listed}.")
    return found[0]


def show_call(run_id: str, wait: dict[str, Any], arguments: Any = None) -> None:
    """On stderr, the call as it waits, or with other `arguments`: all that it says, and nothing that it hides."""
    from rich.text import Text

    agent = f" of {wait['agent']}" if wait.get("agent") else ""
    head = f"{wait['kind']} asked by {run_id}{agent}, since {wait['since'][:19].replace('T', ' ')} UTC"
    _terminal.err.print(Text(printable(head), "dim"), soft_wrap=True)
    if wait["kind"] == "question":
        _terminal.err.print(Text(_shown(str(wait["text"])), "bold"), soft_wrap=True)
        return
    _terminal.err.print(Text.assemble((printable(wait["tool"]), "bold"), f"  {printable(wait['call_id'])}"))
    written = json.dumps(wait["arguments"] if arguments is None else arguments, indent=2, ensure_ascii=False)
    _terminal.err.print(Text(_shown(written)), soft_wrap=True)


async def tell(handle: WorkflowHandle[Any, Any], update: str, said: dict[str, Any], *, as_json: bool, line: str) -> int:
    """Send an update and print its answer, or `line`; a refusal ends the command with the run's own sentence."""
    from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
    from temporalio.exceptions import FailureError
    from temporalio.service import RPCError, RPCStatusCode

    said = {name: value for name, value in said.items() if value is not None}
    answer: dict[str, Any] = {}
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await handle.execute_update(update, said)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        reason = cause.message if isinstance(cause, FailureError) else str(cause)
        fail(f"{handle.id!r} did not take it: {reason}")
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        fail(
            f"no worker that serves {handle.id!r} answered within {PATIENCE:g} s, so it is not known whether this was "
            "taken; see `mulligan show`, and say it again."
        )
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            _has_ended(handle.id)
        fail(f"Temporal did not take it: {error.message}")
    done(handle.id, answer, as_json=as_json, line=line)
    return _terminal.OK


def done(run_id: str, answer: dict[str, Any], *, as_json: bool, line: str) -> None:
    """Print what came of it."""
    if as_json:
        put_json({"run": run_id, **answer})
    else:
        _terminal.out.print(printable(line), markup=False, soft_wrap=True)


def _has_ended(run_id: str) -> NoReturn:
    fail(f"the run {run_id!r} has ended; go on from it with `mulligan resume {run_id}`.")


def _shown(text: str) -> str:
    """As much as a person reads, line by line, with an escape for whatever would not be seen."""
    cut = text[:SHOWN]
    lines = "\n".join(printable(line) for line in cut.split("\n"))
    more = len(text) - len(cut)
    return f"{lines}\n… ({more:,} more characters: `mulligan pending ID --json` has them)" if more else lines
