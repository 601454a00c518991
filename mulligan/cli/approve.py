"""`mulligan approve`: let a waiting call run, with the model's arguments or with other ones."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from mulligan.cli._input import edit_text, parse_json_object, prompt, read_json_object
from mulligan.cli._people import By, CallId, Conversation, RunId, find_call, print_call, reply_to, user_name
from mulligan.cli._terminal import NOT_COMPLETED, AsJson, fail, print_progress

EXAMPLE = '{"order": 7}'


async def approve(
    run_id: RunId,
    call_id: CallId = None,
    arguments: Annotated[
        str | None,
        typer.Option(
            help="Other arguments for the call, as JSON (`-` reads stdin, `@FILE` a file).", show_default=False
        ),
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the arguments in your $EDITOR.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded in the run.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Approve equal calls from then on, too (`mulligan rules`).")
    ] = False,
    remember_for: Annotated[
        Literal["run", "tenant"] | None,
        typer.Option("--for", help="Where the rule counts: in this run, or for its whole tenant.", show_default="run"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> int:
    """Approve a tool call that waits. The call is shown, you confirm, and then it runs once.

    Without a terminal you cannot confirm: name the call, or use `--yes`.

    With `--remember`, calls of this tool with exactly these arguments are approved from then on, and nobody is asked.

    Examples: `mulligan approve my-run`, `mulligan approve my-run --edit`, `mulligan approve my-run call_7 --remember`

    Exit code: 0 approved; 1 not confirmed (the call still waits), or denied by the tool's policy, which is asked
    again about other arguments; 2 no such run, or no such call waits.
    """
    from mulligan.wire.updates import DECIDE

    if edit and arguments is not None:
        fail("--edit and --arguments do not go together: leave one of them out.")
    if remember_for is not None and not remember:
        fail(f"--for is {remember_for!r}, which says where a rule counts; add --remember.")
    decision: dict[str, Any] = {"decision": "approve", "reason": reason, "by": by or user_name()}
    if arguments is not None:
        decision["arguments"] = read_json_object(arguments, "--arguments", EXAMPLE)
    if not sys.stdin.isatty():
        # Whoever names the call has seen it.
        yes = yes or call_id is not None
        if not yes:
            fail("there is no terminal to confirm on; name the call that `mulligan pending` shows, or use --yes.")
    client, call = await find_call(run_id, call_id, "approval", conversation)
    if edit:
        decision["arguments"] = _edit_arguments(call["arguments"])
    print_call(call, decision.get("arguments"))
    if not yes and prompt("run it? [y/N] ").lower() not in ("y", "yes"):
        print_progress("nothing was decided; the call still waits.")
        return NOT_COMPLETED
    if remember:
        decision["remember"] = remember_for or "run"
    decision["edits"] = call.get("edits", 0)
    return await reply_to(client, call, DECIDE, decision, as_json=as_json, message=f"{call['tool']} is approved.")


def _edit_arguments(arguments: Any) -> dict[str, Any] | None:
    """The arguments as a person edits them; None if they did not change them."""
    # As ASCII: characters that an editor would not show are escapes.
    text = edit_text(json.dumps(arguments, indent=2) + "\n", "arguments.json")
    edited = parse_json_object(text, "the edited text", EXAMPLE)
    return None if edited == arguments else edited
