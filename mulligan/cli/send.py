"""`mulligan send`: send a message to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mulligan.cli._input import read_files, read_text
from mulligan.cli._people import Conversation, RunId, send_update
from mulligan.cli._runs import find_open_run
from mulligan.cli._terminal import AsJson, connect_or_fail


async def send(
    run_id: RunId,
    text: Annotated[str, typer.Argument(help="The message to the agent (`-` reads it from stdin).")],
    id: Annotated[  # noqa: A002 - it names the option
        str | None,
        typer.Option(help="An id for the message: sent again with the same id, it is one message.", show_default=False),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="A file for the agent: an image, audio, a PDF …; repeatable.")
    ] = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> int:
    """Send a message to a running agent. The agent reads it before its next step.

    Example: `mulligan send my-run "The customer called: make it two lamps."`

    Exit code: 0 sent, 2 no such run, it has ended, or it refused the message.
    """
    text = read_text(text)
    content = [{"type": "text", "text": text}, *read_files(file)] if file else None
    fields = {"text": text, "content": content, "id": id, "conversation": conversation}
    client = await connect_or_fail()
    await find_open_run(client, run_id)
    sent = f"The message was sent to {run_id}."
    return await send_update(client, run_id, "send_message", fields, as_json=as_json, message=sent)
