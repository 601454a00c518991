"""`mulligan stop`: end a run with grace."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._people import By, Conversation, RunId, open_run, tell, user
from mulligan.cli._terminal import AsJson, run


def stop(
    run_id: RunId,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept with the result.", show_default=False)] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run: calls that run may finish, nothing new begins; its status is `stopped`, with all that there is.

    Example: `mulligan stop my-run --reason "the customer called it off"`

    Exit code: 0 told to stop, 2 no such run, or it has ended.
    """
    run(_stop(run_id, {"reason": reason, "by": by or user(), "conversation": conversation}, as_json=as_json))


async def _stop(run_id: str, said: dict[str, str | None], *, as_json: bool) -> int:
    handle = await open_run(await _terminal.connected(), run_id)
    return await tell(handle, "stop", said, as_json=as_json, line=f"{run_id} is to stop.")
