"""`mulligan approve`: let a call run, as the model wants it or otherwise."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from mulligan.cli import _terminal
from mulligan.cli._editor import edited
from mulligan.cli._given import json_object
from mulligan.cli._people import By, CallId, Conversation, RunId, open_run, show_call, tell, the_call, user
from mulligan.cli._terminal import AsJson, fail, run


def approve(
    run_id: RunId,
    call_id: CallId = None,
    arguments: Annotated[
        str | None,
        typer.Option(
            help="Other arguments to run with, as JSON (`-`: from stdin, `@FILE`: from a file).", show_default=False
        ),
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Change the arguments in your $EDITOR.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept in the steps.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Approve a call that waits: it is shown, you are asked, and then it runs, once.

    Without a terminal nobody can be asked: name the call, or say `--yes`.

    Examples: `mulligan approve my-run`, `mulligan approve my-run --edit`, `mulligan approve my-run call_7 --yes`

    Exit code: 0 approved, 1 you said no (nothing is decided then), 2 no such run, or no such call waits.
    """
    if edit and arguments is not None:
        fail("--edit and --arguments do not go together.")
    given = None if arguments is None else json_object(arguments, "--arguments", '{"order": 7}')
    if not sys.stdin.isatty():
        # Who names the call has seen it.
        yes = yes or call_id is not None
        if not yes:
            fail("there is no terminal to ask on; name the call that `mulligan pending` shows, or say --yes.")
    said = {"decision": "approve", "reason": reason, "by": by or user()}
    run(_approve(run_id, call_id, conversation, given, said, edit=edit, yes=yes, as_json=as_json))


async def _approve(
    run_id: str,
    call_id: str | None,
    conversation: str | None,
    arguments: dict[str, Any] | None,
    said: dict[str, Any],
    *,
    edit: bool,
    yes: bool,
    as_json: bool,
) -> int:
    handle = await open_run(await _terminal.connected(), run_id)
    wait = await the_call(handle, call_id, "approval", conversation)
    if edit:
        arguments = _in_editor(wait["arguments"])
    show_call(run_id, wait, arguments)
    if not yes and _terminal.asked("run it? [y/N] ").lower() not in ("y", "yes"):
        _terminal.say("nothing is decided; it still waits.")
        return _terminal.NOT_COMPLETED
    said |= {"call_id": wait["call_id"], "conversation": wait.get("conversation"), "arguments": arguments}
    return await tell(handle, "decide", said, as_json=as_json, line=f"{wait['tool']} is approved.")


def _in_editor(arguments: Any) -> dict[str, Any] | None:
    """What a person made of the arguments; None where they left them as they were."""
    # As ASCII: what an editor would not show is an escape.
    text = edited(json.dumps(arguments, indent=2) + "\n", "arguments.json")
    changed = json_object(text, "what you wrote", '{"order": 7}', is_text=True)
    return None if changed == arguments else changed
