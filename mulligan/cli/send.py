"""`mulligan send`: say something to a run."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._people import Conversation, RunId, open_run, tell, text_of
from mulligan.cli._terminal import AsJson, run


def send(
    run_id: RunId,
    text: Annotated[str, typer.Argument(help="What to say to the agent (`-`: from stdin).")],
    id: Annotated[  # noqa: A002 - the contract's name
        str | None, typer.Option(help="The message's id: sent twice, it is one message.", show_default=False)
    ] = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to an agent at work. It joins the conversation before the agent's next step.

    Example: `mulligan send my-run "The customer called: make it two lamps."`

    Exit code: 0 taken, 2 no such run, it has ended, or it did not take the message.
    """
    run(_send(run_id, text_of(text), id, conversation, as_json=as_json))


async def _send(run_id: str, text: str, message_id: str | None, conversation: str | None, *, as_json: bool) -> int:
    handle = await open_run(await _terminal.connected(), run_id)
    said = {"text": text, "id": message_id, "conversation": conversation}
    return await tell(handle, "send_message", said, as_json=as_json, line=f"{run_id} has the message.")
