"""`mulligan fork`: start a run that begins where another one was before one of its steps."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mulligan.cli._forks import (
    Instructions,
    MaxSteps,
    Model,
    NewId,
    RunId,
    Tools,
    Unrecorded,
    Wait,
    Yes,
    fork_and_report,
    read_instructions,
)
from mulligan.cli._people import Conversation
from mulligan.cli._terminal import AsJson, fail


async def fork(
    run_id: RunId,
    at: Annotated[
        int | None, typer.Option(min=1, help="The first step of its own.", show_default="the last step")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="A text in place of the first prompt.", show_default=False)] = None,
    message: Annotated[
        str | None, typer.Option(help="A message that is added before the step.", show_default=False)
    ] = None,
    instructions: Instructions = None,
    model: Model = None,
    result: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=JSON", help="Another result for a call before the step; repeatable.", show_default=False
        ),
    ] = None,
    tools: Tools = "recorded",
    unrecorded: Unrecorded = "diverge",
    max_steps: MaxSteps = None,
    conversation: Conversation = None,
    id: NewId = None,  # noqa: A002 - what Temporal calls it
    wait: Wait = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Start a new run with the messages that a run had before the model call of a step, and with what you edit.

    The run may be open or ended, and is not touched. Calls before the step are not repeated. With recorded tools, nothing
    happens afterwards either: a call that the run made too gets its result (docs/fork.md).

    Examples: `mulligan fork my-run --at 3 --model openai:gpt-5 --wait`, `mulligan fork my-run --result 'call_7={"rows": 0}'`

    Exit code: 0 started (with --wait: completed), 1 it did not complete, or you did not confirm, 2 it cannot be forked.
    """
    edits = {
        "prompt": prompt,
        "message": message,
        "instructions": read_instructions(instructions),
        "model": model,
        "results": dict(_read_result(each) for each in result or []),
    }
    options: dict[str, Any] = {
        "at": at,
        "edits": {name: value for name, value in edits.items() if value is not None},
        "tools": tools,
        "unrecorded": unrecorded,
        "max_steps": max_steps,
        "conversation": conversation,
    }
    return await fork_and_report(run_id, options, new_id=id, yes=yes, wait=wait, as_json=as_json)


def _read_result(given: str) -> tuple[str, Any]:
    call_id, sign, text = given.partition("=")
    if not sign:
        fail(f"--result is {given!r}; give the call's id and its result: --result call_7='{{\"rows\": 0}}'.")
    try:
        return call_id, json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"--result for {call_id!r} is not JSON ({error}); a text has quotes: --result '{call_id}=\"done\"'.")
