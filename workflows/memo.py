"""Read the memo of a run. A client can start a run with any memo, even if no converter can read it."""

from __future__ import annotations

import json
from typing import Any

from temporalio import workflow


def memo_json(name: str) -> Any:
    """A value of the running workflow's memo; None if there is none of that name, or it is not JSON."""
    payload = workflow.info().raw_memo.get(name)
    if payload is None:
        return None
    try:
        return json.loads(payload.data)
    except (ValueError, RecursionError):
        return None
