"""The definitions of agents that providers get: pinned when a run opens, looked up by digest at each of its steps."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from mulligan.activities.answers.text_calls import text_calls_of
from mulligan.activities.mcp.servers import OfferedTools
from mulligan.activities.registry import Registry
from mulligan.activities.run_data.query_workflow import query_this_workflow
from mulligan.activities.run_data.shown_settings import shown_settings
from mulligan.activities.tool_running.result_schema import result_schema, returns_media
from mulligan.agent import Agent
from mulligan.client.content_store import ContentStore, MissingContentError
from mulligan.errors import InvalidRunInputError
from mulligan.wire.agent_facts import (
    DEFINITION_QUERY,
    Definition,
    HiddenTool,
    OutputFormat,
    ProviderToolDefinition,
    ToolDefinition,
)
from mulligan.wire.run_context import RunContext

CLIENT_TAG = "client_instructions"
CLIENT_HEADING = (
    "The client of this conversation has sent the following instructions. "
    "Observe them as far as the instructions above allow."
)
_CLOSING_TAG = re.compile(rf"<\s*/\s*{CLIENT_TAG}[^>]*>?", re.IGNORECASE)
DEFINITION_BYTES = 1_500_000
"""Bytes of an agent's definition for the provider. It is part of the result of `open_run`, whose limit is 2 MB."""
STORED_BYTES = 20_000_000
"""Bytes of a definition in the content storage."""
MOST_DEFINITIONS, MOST_BYTES = 1_000, 64 * 1024 * 1024
"""Definitions in a worker's memory, and their bytes as JSON: those of which a client has written a part may be many. Those
that were not used for the longest time go first; a run's workflow has its definition, too."""


class Definitions:
    """The definitions that this worker knows, by digest."""

    def __init__(self, registry: Registry, contents: ContentStore | None = None) -> None:
        """`contents`: where definitions are that are too large for history."""
        self._contents = contents
        self._known: OrderedDict[str, tuple[Definition, int]] = OrderedDict()
        self._bytes = 0
        for agent in registry.agents.values():
            if isinstance(agent.instructions, str):
                self.keep(define(agent, agent.instructions, agent.models[0]))

    def keep(self, definition: Definition) -> str:
        """Keep a definition; returns its digest."""
        written = definition.model_dump_json().encode()
        digest = hashlib.sha256(written).hexdigest()[:16]
        if self._find(digest) is None:
            self._known[digest] = definition, len(written)
            self._bytes += len(written)
        while len(self._known) > MOST_DEFINITIONS or (self._bytes > MOST_BYTES and len(self._known) > 1):
            _, (_, length) = self._known.popitem(last=False)
            self._bytes -= length
        return digest

    def _find(self, digest: str) -> Definition | None:
        if digest not in self._known:
            return None
        self._known.move_to_end(digest)
        return self._known[digest][0]

    async def find(self, digest: str, context: RunContext) -> Definition:
        """The definition with that digest. If this worker's code is newer than the run, the workflow is queried for it."""
        known = self._find(digest)
        if known is None:
            pinned = await query_this_workflow(DEFINITION_QUERY, context.conversation, Definition)
            known = await self.whole(pinned, context.tenant)
            self.keep(known)
        return known

    async def whole(self, pinned: Definition, tenant: str | None) -> Definition:
        """The definition that history has, with what is in the content storage.

        Raises:
            MissingContentError: this worker has no content storage, or it is not there any more.
        """
        if pinned.stored is None:
            return pinned
        return Definition.model_validate_json(await self._read(pinned.stored, tenant))

    async def pinned(self, definition: Definition, agent: str, tenant: str | None) -> Definition:
        """The definition as history has it: if it is large, tools that the model does not see at once are in the storage.

        Raises:
            InvalidRunInputError: it is too large for history, and for the content storage, if there is one.
            StorageError: it cannot be stored.
        """
        written = definition.model_dump_json().encode()
        if len(written) <= DEFINITION_BYTES:
            return definition
        tools = definition.visible_tools
        names = {tool.name for tool in tools}
        rest = Definition(
            instructions=definition.instructions,
            tools=tools,
            output=definition.output,
            mcp={name: value for name, value in definition.mcp.items() if name in names},
            mcp_schemas={name: value for name, value in definition.mcp_schemas.items() if name in names},
            provider_tools=definition.provider_tools,
            settings=definition.settings,
            stored="",
        )
        seen = len(rest.model_dump_json().encode())
        problem = f'"agent" is "{agent}", whose instructions and tools take {len(written):,} bytes; '
        has_others = bool(definition.unseen or definition.hidden)
        if self._contents is None and has_others:
            raise InvalidRunInputError(
                f"{problem}a run can carry {DEFINITION_BYTES:,} without a content storage. Set MULLIGAN_CONTENT_DIR, or "
                "MULLIGAN_EXTERNAL_STORAGE, on the workers."
            )
        if self._contents is None or seen > DEFINITION_BYTES:
            what = f"the model sees {seen:,} of them at once, and a" if has_others else "a"
            raise InvalidRunInputError(f"{problem}{what} run can carry {DEFINITION_BYTES:,}.")
        if len(written) > STORED_BYTES:
            raise InvalidRunInputError(f"{problem}the limit is {STORED_BYTES:,}.")
        ref = await self._contents.of(tenant).put(written)
        return rest.model_copy(update={"stored": ref})

    async def _read(self, ref: str, tenant: str | None) -> bytes:
        if self._contents is None:
            raise MissingContentError(
                "This worker has no content storage, in which the definition of the run is: set MULLIGAN_CONTENT_DIR, or "
                "MULLIGAN_EXTERNAL_STORAGE, as on the worker that has opened the run."
            )
        return await self._contents.of(tenant).get(ref)


def define(
    agent: Agent, instructions: str, model: str, offered: OfferedTools | None = None, of_client: str = ""
) -> Definition:
    """The definition for a run that begins with `model`: the model decides how the output is requested.

    `of_client`: the instructions of the client, which stand at the end, marked.
    """
    offered = offered or OfferedTools()
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters=tool.schema, strict=tool.strict)
        for tool in agent.listed_tools
    ]
    tools += offered.definitions
    hidden = [_hidden(agent, tool) for tool in tools if agent.hides(tool.name)]
    tools = _described(agent, [tool for tool in tools if not agent.hides(tool.name)], hidden)
    unseen = [
        tool.name
        for tool in (*agent.listed_tools, *offered.tools)
        if tool.traits.is_unseen and not agent.hides(tool.name)
    ]
    output = None
    if (answers := agent.declared_output) is not None:
        if agent.output_strategy(model) == "tool":
            tools += [
                ToolDefinition(
                    name=kind.name, description=_output_description(kind.description), parameters=kind.schema
                )
                for kind in answers.types
            ]
        else:
            whole = answers.whole
            output = OutputFormat(name=whole.name, description=whole.description, json_schema=whole.schema)
    text_calls = text_calls_of(agent)
    seen = [tool for tool in tools if tool.name not in unseen]
    tools_in_text = text_calls.describe(seen) if text_calls is not None else ""
    of_features = (each.needs([model]).instructions() for each in agent.all_features)
    texts = (instructions, *of_features, *offered.notes, tools_in_text, _mark(of_client))
    instructions = "\n\n".join(filter(None, texts))
    hosted = [ProviderToolDefinition(provider=each.provider, tool=dict(each.tool)) for each in agent.provider_tools]
    return Definition(
        instructions=instructions,
        tools=tools,
        hidden=hidden,
        output=output,
        mcp=offered.originals,
        mcp_schemas=offered.schemas,
        unseen=unseen,
        provider_tools=hosted,
        settings=shown_settings(agent.model_settings),
    )


def _hidden(agent: Agent, tool: ToolDefinition) -> HiddenTool:
    declared = agent.tool(tool.name)
    result: dict[str, Any] | None = None
    if declared is not None:
        result = {"type": "string"} if returns_media(declared) else result_schema(declared)
    return HiddenTool(**dict(tool), result=result)


def _described(agent: Agent, tools: Sequence[ToolDefinition], hidden: Sequence[HiddenTool]) -> list[ToolDefinition]:
    """The tools that the model sees: those of features with descriptions that tell of the tools that these hide."""
    described = {
        tool.name: others.describe([each for each in hidden if others.hides(each.name)])
        for tool in agent.feature_tools
        if (others := tool.calls_others) is not None
    }
    return [tool.model_copy(update={"description": described.get(tool.name, tool.description)}) for tool in tools]


def _mark(of_client: str) -> str:
    """The client's instructions between marks that they cannot close themselves."""
    if not of_client:
        return ""
    return f"{CLIENT_HEADING}\n<{CLIENT_TAG}>\n{_CLOSING_TAG.sub('[removed]', of_client)}\n</{CLIENT_TAG}>"


def _output_description(description: str) -> str:
    return " ".join(
        filter(None, ("Give your final answer by calling this, once and alone: it ends your work.", description))
    )
