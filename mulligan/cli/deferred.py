"""`mulligan complete`: end a call that waits for its result."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mulligan.cli._input import read_text
from mulligan.cli._people import Conversation, RunId, send_update
from mulligan.cli._runs import find_open_run
from mulligan.cli._terminal import AsJson, connect_or_fail, fail


async def complete(
    run_id: RunId,
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The id of the call.")],
    result: Annotated[
        str | None, typer.Option(help="The call's result as JSON; `-` reads it from stdin.", show_default=False)
    ] = None,
    error: Annotated[
        str | None, typer.Option(help="Why there is no result; the model reads it.", show_default=False)
    ] = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> int:
    """Bring the result of a call of a deferred tool, which waits for it (docs/deferred-tools.md).

    Examples: `mulligan complete my-run call_8 --result '{"rows": 7}'`, `mulligan complete my-run call_8 --error "No data."`

    Exit code: 0 completed, 2 no such run, or no such call waits.
    """
    from mulligan.wire.deferred import COMPLETE

    if (result is None) == (error is None):
        fail("give either --result or --error.")
    fields: dict[str, Any] = {"call_id": call_id, **({"conversation": conversation} if conversation else {})}
    if result is not None:
        try:
            fields["result"] = json.loads(read_text(result))
        except (ValueError, RecursionError) as fault:
            fail(f"--result is not JSON ({fault}); a text has quotes: --result '\"done\"'.")
    else:
        fields["error"] = error
    client, message = await connect_or_fail(), f"{call_id} of {run_id} was completed."
    await find_open_run(client, run_id)
    return await send_update(client, run_id, COMPLETE, fields, as_json=as_json, keep_none=True, message=message)


COMMANDS = (complete,)
