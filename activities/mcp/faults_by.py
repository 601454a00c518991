"""Validates values by schemas of MCP servers. `isolated_faults` calls it in a process of its own.

A template process imports this module and is forked for each call (isolated_template.py). So the module loads jsonschema's
lazy parts at its import: loading them in each fork would take a tenth of a second.
"""

from __future__ import annotations

from typing import Any

from referencing.exceptions import NoSuchResource, Unresolvable

from mulligan.schema.json_schema import schema_faults, schema_validator


def faults_by(schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """The faults of a value, as (path, what is wrong).

    Where the value needs a part of the schema that cannot be found, checking it is left to the server.
    """
    try:
        return schema_faults(schema_validator(schema), value)
    except (NoSuchResource, Unresolvable):
        return []


faults_by({"type": "object", "properties": {"name": {"type": "string", "pattern": "."}}}, {"name": 0})
