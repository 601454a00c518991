"""Validates values by JSON schemas that may take long: in a process of its own, which ends at its limit."""

from __future__ import annotations

import json
from typing import Any

from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.schema.schema_cost import is_cheap

CHECK_SECONDS = 5.0
"""Limit of one validation. An ordinary one takes milliseconds."""
_FAULTS_BY = "mulligan.activities.mcp.faults_by:faults_by"


async def isolated_faults(children: ChildProcesses, schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """The faults of a value, as (path, what is wrong), found in a process of its own unless that takes little time anyway.

    A value that cannot be checked within the limits is at fault itself.
    """
    try:
        if is_cheap(schema, value):
            from mulligan.activities.mcp.faults_by import faults_by

            return faults_by(schema, value)
        text = await children.run(_FAULTS_BY, (schema, value), limit=CHECK_SECONDS)
        return [(str(path), str(says)) for path, says in json.loads(text)]
    except TookTooLong:
        return [("", f"could not be checked within {CHECK_SECONDS:g} s: give a shorter or simpler value")]
    except (ProcessDied, RecursionError, ValueError) as error:
        return [("", f"could not be checked: {error}. Give a shorter or simpler value")]
