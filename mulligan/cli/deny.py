"""`mulligan deny`: refuse a waiting call."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._people import By, CallId, Conversation, RunId, find_call, print_call, reply_to, user_name
from mulligan.cli._terminal import AsJson


async def deny(
    run_id: RunId,
    call_id: CallId = None,
    reason: Annotated[str | None, typer.Option(help="Why; the model reads it.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> int:
    """Deny a tool call that waits for approval: it does not run, and the model gets the denial with the reason. Or decline
    the question of an MCP server, which then continues without an answer.

    Example: `mulligan deny my-run --reason "Twelve euros are too much; offer six."`

    Exit code: 0 denied, 2 no such run, or no such call waits.
    """
    from mulligan.wire.updates import DECIDE

    decision = {"decision": "deny", "reason": reason, "by": by or user_name()}
    client, call = await find_call(run_id, call_id, "approval", conversation, or_question=True)
    print_call(call)
    return await reply_to(client, call, DECIDE, decision, as_json=as_json, message=f"{call['tool']} is denied.")
