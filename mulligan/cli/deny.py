"""`mulligan deny`: say no to a call."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._people import By, CallId, Conversation, RunId, open_run, show_call, tell, the_call, user
from mulligan.cli._terminal import AsJson, run


def deny(
    run_id: RunId,
    call_id: CallId = None,
    reason: Annotated[str | None, typer.Option(help="Why: the model reads it.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Deny a call that waits for approval: it does not run, and the model is told so, with the reason.

    Example: `mulligan deny my-run --reason "Twelve euros are too much; offer six."`

    Exit code: 0 taken, 2 no such run, or no such call waits.
    """
    run(_deny(run_id, call_id, conversation, {"reason": reason, "by": by or user()}, as_json=as_json))


async def _deny(
    run_id: str, call_id: str | None, conversation: str | None, said: dict[str, str | None], *, as_json: bool
) -> int:
    handle = await open_run(await _terminal.connected(), run_id)
    wait = await the_call(handle, call_id, "approval", conversation)
    show_call(run_id, wait)
    about = {"call_id": wait["call_id"], "conversation": wait.get("conversation")}
    return await tell(
        handle, "decide", {**said, **about, "decision": "deny"}, as_json=as_json, line=f"{wait['tool']} is denied."
    )
