"""The file to which tools write each of their effects. It outlives every process, and imports nothing of Mulligan: the workers of
rivals write to it from environments of their own."""

from __future__ import annotations

import json
import os
import time

LEDGER = "CHAOS_LEDGER"
"""The environment variable with the path of the file."""


def write(event: str, tool: str, *, run: str, call: str, key: str, attempt: int) -> None:
    """Append a line in one write, so that lines of several processes are never mixed.

    Args:
        event: `start` or `end` of an attempt.
        tool: Its name.
        run: The workflow id.
        call: The id of the call in its run.
        key: The same for all attempts of a call, and for no other call.
        attempt: From 1.
    """
    entry = {
        "event": event,
        "tool": tool,
        "run": run,
        "call": call,
        "key": key,
        "attempt": attempt,
        "pid": os.getpid(),
        "at": time.time(),
    }
    with open(os.environ[LEDGER], "ab", buffering=0) as file:
        file.write(json.dumps(entry).encode() + b"\n")
