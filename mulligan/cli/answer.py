"""`mulligan answer`: answer an agent's question."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._people import By, Conversation, RunId, open_run, show_call, tell, text_of, the_call, user
from mulligan.cli._terminal import AsJson, fail, run


def answer(
    run_id: RunId,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL_ID TEXT",
            help="The call, where several ask; and the answer (`-`: from stdin). Without one you are asked for it.",
            show_default=False,
        ),
    ] = None,
    by: By = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> None:
    """Answer the question of an agent that waits for it (its tool `ask_person`).

    Examples: `mulligan answer my-run "Yes, both."`, `mulligan answer my-run`, `mulligan answer my-run call_8 "Yes."`

    Exit code: 0 taken, 2 no such run, or none of its calls asks.
    """
    *named, text = words or [""]
    if len(named) > 1:
        fail("give the run's id, a call's id where several ask, and the answer in quotes.")
    if not words and not sys.stdin.isatty():
        fail('say the answer: mulligan answer ID "…".')
    call_id = named[0] if named else None
    run(_answer(run_id, call_id, conversation, text_of(text) if words else None, by or user(), as_json=as_json))


async def _answer(
    run_id: str, call_id: str | None, conversation: str | None, text: str | None, by: str | None, *, as_json: bool
) -> int:
    handle = await open_run(await _terminal.connected(), run_id)
    wait = await the_call(handle, call_id, "question", conversation)
    show_call(run_id, wait)
    if text is None:
        text = text_of(_terminal.asked("answer: "))
    said = {"call_id": wait["call_id"], "text": text, "by": by, "conversation": wait.get("conversation")}
    return await tell(handle, "answer", said, as_json=as_json, line=f"{run_id} has the answer.")
