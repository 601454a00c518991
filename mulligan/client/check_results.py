"""Checks values that take the place of calls' results by the result types of the tools, as workers declare them today."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from temporalio.client import Client

from mulligan.client.read_agents import AgentReader
from mulligan.schema.json_schema import schema_faults, schema_validator


async def check_results(
    client: Client, task_queue: str, agent: str, results: Iterable[tuple[str, str, Any]]
) -> str | None:
    """The first fault of the results, each of which is a call's id, its tool's name and the value; None where there is none.

    A tool without a known result type has no fault, nor has any if no worker answers.

    Raises:
        RPCError: Temporal does not answer.
    """
    agents = await AgentReader(client, task_queue).read() or {}
    tools = agents.get(agent, {}).get("tools", [])
    schemas = {tool["name"]: tool["result"] for tool in tools if tool.get("result")}
    for call_id, name, value in results:
        if name in schemas and (faults := schema_faults(schema_validator(schemas[name]), value)):
            where, what = faults[0]
            field = f"`{where}` " if where else "it "
            return f"The result for the call {call_id!r} is not of the result type of `{name}`: {field}{what}."
    return None
