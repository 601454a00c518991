"""Carry out a call of `find_tools`: search the run's pinned tools, and write the result for the model."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass, field

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.services import Services
from mulligan.activities.tool_search.tool_index import ToolIndex
from mulligan.tool import FIND_TOOLS
from mulligan.wire.agent_facts import Definition, ToolDefinition
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.tool_search import FindTools

MOST_INDEXES = 50
"""Indexes in a worker's memory; those that were not used for the longest time go first."""
MOST_CHARS, LONGEST_DESCRIPTION = 30_000, 1_000
"""Characters of a result; and of the description of a tool whose parameters are too long for it."""
NOTHING = "No tool fits these words. Try others that say what the tool must do."


@dataclass(frozen=True)
class FindToolsActivity:
    """The activity `find_tools`."""

    services: Services
    _indexes: OrderedDict[str, ToolIndex] = field(default_factory=OrderedDict)

    @activity.defn(name=FIND_TOOLS)
    async def find_tools(self, request: FindTools) -> ToolOutcome:
        """Search for tools, and keep the result in this worker's memory for the next model call.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        services = self.services
        await served_agent(services, request.where)
        info, call = activity.info(), request.call
        span = services.telemetry.call_span(request, arguments=request.arguments, attempt=info.attempt)
        definition = await services.definitions.find(request.definition, request.where)
        query = request.arguments.get("query") if isinstance(request.arguments, dict) else None
        text = await asyncio.to_thread(self._find, definition, request, str(query or ""))
        span.succeed(text)
        services.cache_result(request.where, call, text, None)
        return ToolOutcome(text=text, attempts=info.attempt)

    def _find(self, definition: Definition, request: FindTools, query: str) -> str:
        hidden = {*definition.unseen}
        tools = {tool.name: tool for tool in definition.tools if tool.name in hidden}
        index = self._indexes.get(request.definition)
        if index is None:
            index = self._indexes[request.definition] = ToolIndex(list(tools.values()))
        self._indexes.move_to_end(request.definition)
        while len(self._indexes) > MOST_INDEXES:
            self._indexes.popitem(last=False)
        most = min(MOST_CHARS, (request.max_bytes or MOST_CHARS) // 2)
        found = _entries([tools[name] for name in index.find(query, request.limit)], most)
        return json.dumps(found, ensure_ascii=False) if found else NOTHING


def _entries(tools: list[ToolDefinition], most: int) -> list[dict[str, object]]:
    """The tools as the model reads them, as many as fit. The first one is always there."""
    entries: list[dict[str, object]] = []
    for tool in tools:
        entry: dict[str, object] = tool.model_dump(mode="json")
        if len(json.dumps([*entries, entry], ensure_ascii=False)) > most:
            entry = {
                "name": tool.name,
                "description": tool.description[:LONGEST_DESCRIPTION],
                "parameters": "They are too long for this result; from your next step on, the tool has them.",
            }
            if entries and len(json.dumps([*entries, entry], ensure_ascii=False)) > most:
                break
        entries.append(entry)
    return entries
