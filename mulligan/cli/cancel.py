"""`mulligan cancel`: end a run at once."""

from __future__ import annotations

from mulligan.cli import _terminal
from mulligan.cli._people import RunId, done, open_run
from mulligan.cli._terminal import AsJson, fail, run


def cancel(run_id: RunId, as_json: AsJson = False) -> None:
    """Cancel a run: what runs is cancelled at once, and the run ends as `cancelled`. `mulligan stop` is the gentle way.

    Example: `mulligan cancel my-run`

    Exit code: 0 asked to end, 2 no such run, or it has ended.
    """
    run(_cancel(run_id, as_json=as_json))


async def _cancel(run_id: str, *, as_json: bool) -> int:
    from temporalio.service import RPCError

    handle = await open_run(await _terminal.connected(), run_id)
    try:
        await handle.cancel()
    except RPCError as error:
        fail(f"Temporal did not cancel {run_id!r}: {error.message}")
    done(run_id, {"accepted": True}, as_json=as_json, line=f"{run_id} is to end.")
    return _terminal.OK
