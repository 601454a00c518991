"""The tools, MCP servers and features of loaded modules, which the file of an agent may name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mulligan.features.agent_feature import AgentFeature
from mulligan.mcp import McpServer
from mulligan.schema.cut_text import beginning
from mulligan.tool import Tool

T = TypeVar("T")


class ByName(Generic[T]):
    """Things of one kind by their names, which two of them may have. `kind`: what they are, for people."""

    def __init__(self, kind: str, things: Iterable[tuple[str, T]] = ()) -> None:
        self._kind = kind
        self._things: dict[str, list[T]] = {}
        for name, thing in things:
            known = self._things.setdefault(name, [])
            if not any(each is thing for each in known):
                known.append(thing)

    def find(self, name: str) -> T | None:
        """The first thing of a name."""
        return next(iter(self._things.get(name, ())), None)

    def fault(self, name: str) -> str | None:
        """Why nothing can be meant by a name, as a sentence without its full stop; None if something is."""
        things = self._things.get(name, ())
        if len(things) > 1:
            return f"two {self._kind}s of the loaded modules are named {name!r}; give one another name"
        if not things:
            known = beginning(", ".join(sorted(self._things)), 300) or "none"
            return f"no loaded module declares a {self._kind} named {name[:80]!r}; they declare: {known}"
        return None

    def all(self) -> list[T]:
        """All of them."""
        return [each for things in self._things.values() for each in things]


@dataclass(frozen=True)
class NamedParts:
    """The tools and servers by their names, and the features by the names of the variables that hold them."""

    tools: ByName[Tool] = field(default_factory=lambda: ByName("tool"))
    servers: ByName[McpServer] = field(default_factory=lambda: ByName("MCP server"))
    features: ByName[AgentFeature] = field(default_factory=lambda: ByName("feature"))

    @classmethod
    def of(
        cls, values: Iterable[Mapping[str, object]], tools: Iterable[Tool], servers: Iterable[McpServer]
    ) -> NamedParts:
        """The parts in the namespaces of modules, and those of declared agents: their `tools` and `servers`."""
        named = [item for each in values for item in each.items()]
        own_tools = [value for _, value in named if isinstance(value, Tool)]
        own_servers = [value for _, value in named if isinstance(value, McpServer)]
        return cls(
            ByName("tool", ((each.name, each) for each in (*own_tools, *tools))),
            ByName("MCP server", ((each.name, each) for each in (*own_servers, *servers))),
            ByName("feature", ((name, value) for name, value in named if isinstance(value, AgentFeature))),
        )
