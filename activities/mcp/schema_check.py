"""Validate values by the schemas of MCP servers: in a child process, which is killed, where that may take long."""

from __future__ import annotations

import json
from typing import Any

from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.tool_runtime import TookTooLong
from mulligan.schema.json_schema import schema_faults, schema_validator
from mulligan.schema.schema_cost import is_cheap

CHECK_SECONDS = 5.0
"""Limit of one validation. An ordinary one takes milliseconds."""


def faults_by(schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """What is wrong with a value, as (path, what is wrong). It runs in the child process."""
    return schema_faults(schema_validator(schema), value)


async def isolated_faults(children: ChildProcesses, schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """As `faults_by`, in a child process unless it takes little time in any case.

    A value that cannot be checked within the limits is at fault itself.
    """
    try:
        if is_cheap(schema, value):
            return faults_by(schema, value)
        text = await children.run(f"{__name__}:{faults_by.__name__}", (schema, value), limit=CHECK_SECONDS)
        return [(str(path), str(says)) for path, says in json.loads(text)]
    except TookTooLong:
        return [("", f"could not be checked within {CHECK_SECONDS:g} s: give a shorter or simpler value")]
    except (ProcessDied, RecursionError, ValueError) as error:
        return [("", f"could not be checked: {error}. Give a shorter or simpler value")]
