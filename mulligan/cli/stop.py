"""`mulligan stop`: end a run after its running calls."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._people import By, Conversation, RunId, send_update, user_name
from mulligan.cli._runs import find_open_run
from mulligan.cli._terminal import AsJson, connect_or_fail


async def stop(
    run_id: RunId,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded in the result.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> int:
    """Stop a run: running calls may finish, and nothing new starts. The run ends as `stopped`, with its results so far.

    Example: `mulligan stop my-run --reason "the customer called it off"`

    Exit code: 0 stop requested, 2 no such run, or it has ended.
    """
    fields = {"reason": reason, "by": by or user_name(), "conversation": conversation}
    client = await connect_or_fail()
    await find_open_run(client, run_id)
    return await send_update(client, run_id, "stop", fields, as_json=as_json, message=f"The run {run_id} is stopping.")
