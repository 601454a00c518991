"""`mulligan cancel`: end a run at once."""

from __future__ import annotations

from mulligan.cli._people import RunId, print_result
from mulligan.cli._runs import find_open_run
from mulligan.cli._terminal import OK, AsJson, connect_or_fail


async def cancel(run_id: RunId, as_json: AsJson = False) -> int:
    """Cancel a run: its running calls are cancelled, and it ends as `cancelled`. `mulligan stop` lets calls finish.

    Example: `mulligan cancel my-run`

    Exit code: 0 cancellation requested, 2 no such run, or it has ended.
    """
    handle = await find_open_run(await connect_or_fail(), run_id)
    await handle.cancel()
    print_result(run_id, {"accepted": True}, as_json=as_json, message=f"Cancellation of {run_id} was requested.")
    return OK
