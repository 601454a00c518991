"""`mulligan deny`: refuse a waiting call."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._people import By, CallId, Conversation, RunId, print_call, select_call, send_update, user_name
from mulligan.cli._runs import find_open_run
from mulligan.cli._terminal import AsJson, connect_or_fail, run_command


def deny(
    run_id: RunId,
    call_id: CallId = None,
    reason: Annotated[str | None, typer.Option(help="Why; the model reads it.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Deny a tool call that waits for approval: it does not run, and the model gets the denial with the reason. Or decline
    the question of an MCP server, which then continues without an answer.

    Example: `mulligan deny my-run --reason "Twelve euros are too much; offer six."`

    Exit code: 0 denied, 2 no such run, or no such call waits.
    """
    decision = {"decision": "deny", "reason": reason, "by": by or user_name()}
    run_command(_deny(run_id, call_id, conversation, decision, as_json=as_json))


async def _deny(
    run_id: str, call_id: str | None, conversation: str | None, decision: dict[str, str | None], *, as_json: bool
) -> int:
    client = await connect_or_fail()
    await find_open_run(client, run_id)
    call = await select_call(client, run_id, call_id, "approval", conversation, or_question=True)
    print_call(call)
    fields = {**decision, "call_id": call["call_id"], "conversation": call.get("conversation")}
    return await send_update(
        client, call["id"], "decide", fields, as_json=as_json, message=f"{call['tool']} is denied."
    )
