"""`mulligan answer`: answer an agent's question."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mulligan.cli._input import prompt, read_text
from mulligan.cli._people import By, Conversation, RunId, print_call, select_call, send_update, user_name
from mulligan.cli._runs import find_open_run
from mulligan.cli._terminal import AsJson, connect_or_fail, fail, run_command


def answer(
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
) -> None:
    """Answer the question of an agent that waits for it (the agent called the tool `ask_person`).

    Examples: `mulligan answer my-run "Yes, both."`, `mulligan answer my-run`, `mulligan answer my-run call_8 "Yes."`

    Exit code: 0 answered, 2 no such run, or no question waits.
    """
    *call_ids, text = words or [""]
    if len(call_ids) > 1:
        fail("give the run's id, the call's id if several questions wait, and the answer in quotes.")
    if not words and not sys.stdin.isatty():
        fail('give the answer: mulligan answer ID "…".')
    call_id = call_ids[0] if call_ids else None
    answer_text = read_text(text) if words else None
    run_command(_answer(run_id, call_id, conversation, answer_text, by or user_name(), as_json=as_json))


async def _answer(
    run_id: str, call_id: str | None, conversation: str | None, text: str | None, by: str | None, *, as_json: bool
) -> int:
    client = await connect_or_fail()
    await find_open_run(client, run_id)
    call = await select_call(client, run_id, call_id, "question", conversation)
    print_call(call)
    if text is None:
        text = read_text(prompt("answer: "))
    fields = {"call_id": call["call_id"], "text": text, "by": by, "conversation": call.get("conversation")}
    return await send_update(
        client,
        call["id"],
        "answer",
        fields,
        as_json=as_json,
        message=f"The answer was sent to {call['id']}.",
    )
