"""`mulligan answer`: answer an agent's question."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mulligan.cli._input import prompt, read_text
from mulligan.cli._people import By, Conversation, RunId, find_call, print_call, reply_to, user_name
from mulligan.cli._terminal import AsJson, fail


async def answer(
    run_id: RunId,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL_ID TEXT",
            help="The id of the call, if several questions wait; then the answer (`-` reads it from stdin). Without "
            "them you are asked for the answer.",
            show_default=False,
        ),
    ] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> int:
    """Answer the question of an agent that waits for it (the agent called the tool `ask_person`).

    Examples: `mulligan answer my-run "Yes, both."`, `mulligan answer my-run`, `mulligan answer my-run call_8 "Yes."`

    Exit code: 0 answered, 2 no such run, or no question waits.
    """
    from mulligan.wire.updates import ANSWER

    *call_ids, text = words or [""]
    if len(call_ids) > 1:
        fail("give the run's id, the call's id if several questions wait, and the answer in quotes.")
    if not words and not sys.stdin.isatty():
        fail('give the answer: mulligan answer ID "…".')
    text = read_text(text) if words else ""
    client, call = await find_call(run_id, call_ids[0] if call_ids else None, "question", conversation)
    print_call(call)
    text = text or read_text(prompt("answer: "))
    sent = f"The answer was sent to {call['id']}."
    return await reply_to(client, call, ANSWER, {"text": text, "by": by or user_name()}, as_json=as_json, message=sent)
