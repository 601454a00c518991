"""The names of arguments for servers that take letters, digits, `_`, `.` and `-` only, at most 64: others are renamed.

A tool's schema and the calls that go to the server have the renamed ones; the calls of its answers get the tool's own back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models.protocol import Reply, Request
from mulligan.schema.subschemas import with_changed_parts
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import ToolDefinition

PLAIN_PROPERTIES = "plain_properties"
"""The word for models whose tools may have plain names of arguments only."""
MOST_CHARS = 64
_PLAIN = re.compile(rf"[a-zA-Z0-9_.-]{{1,{MOST_CHARS}}}")
_ARGUMENTS = ("arguments", "input")
"""The fields with a call's arguments, beside its name, in the APIs."""


@dataclass(frozen=True)
class PlainProperties:
    """The names of arguments that a request has in place of others, by the names of its tools."""

    sent: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> PlainProperties:
        """Those of the tools of a request. Most have none."""
        tools = [*request.definition.tools, *(request.unseen.tools if request.unseen else ())]
        found = ((tool.name, _plain_names({*_properties(tool.parameters)})) for tool in tools)
        return cls({name: names for name, names in found if names})

    def request(self, request: Request) -> Request:
        """The request with the plain names, in its tools and in its conversation's calls."""
        if not self.sent:
            return request
        tools, unseen = list(map(self._tool, request.definition.tools)), request.unseen
        return replace(
            request,
            definition=request.definition.model_copy(update={"tools": tools}),
            items=[self._item(item) for item in request.items],
            unseen=replace(unseen, tools=list(map(self._tool, unseen.tools))) if unseen else None,
        )

    def reply(self, reply: Reply) -> Reply:
        """The reply with the tools' own names."""
        return replace(reply, calls=list(map(self._call, reply.calls))) if self.sent else reply

    def _tool(self, tool: ToolDefinition) -> ToolDefinition:
        names = self.sent.get(tool.name)
        return (
            tool if names is None else tool.model_copy(update={"parameters": _renamed_schema(tool.parameters, names)})
        )

    def _item(self, item: str) -> str:
        if not any(f'"name":{to_json(name)}' in item for name in self.sent):
            return item
        return to_json(self._in_calls(json.loads(item)))

    def _in_calls(self, value: Any) -> Any:
        """A part of an item, with the arguments of the calls in it renamed."""
        if isinstance(value, list):
            return [self._in_calls(each) for each in value]
        if not isinstance(value, dict):
            return value
        names = self.sent.get(str(value.get("name")))
        place = next((each for each in _ARGUMENTS if each in value), None)
        if names is None or place is None:
            return {name: self._in_calls(inner) for name, inner in value.items()}
        arguments = value[place]
        if isinstance(arguments, str):
            return {**value, place: _in_text(arguments, names.get)}
        return {**value, place: _renamed(arguments, names.get)}

    def _call(self, call: ToolCall) -> ToolCall:
        names = {sent: own for own, sent in self.sent.get(call.name, {}).items()}
        if not any(name in call.arguments for name in names):
            return call
        return call.model_copy(update={"arguments": _in_text(call.arguments, names.get)})


Change = Callable[[str], str | None]


def _properties(schema: Any) -> Iterator[str]:
    """The names of all properties in a schema. As data, `properties` is no keyword, but then a renamed name does no harm."""
    if isinstance(schema, list):
        for each in schema:
            yield from _properties(each)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties" and isinstance(value, dict):
                yield from value
            yield from _properties(value)


def _plain_names(names: set[str]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for name in sorted(name for name in names if not _PLAIN.fullmatch(name)):
        written = re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")[:MOST_CHARS]
        if not written or written in names or written in plain.values():
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            written = f"{written[: MOST_CHARS - 9]}_{digest}"
        plain[name] = written
    return plain


def _renamed_schema(schema: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The schema with other names of properties; the description of each has its own name."""
    changed = with_changed_parts(schema, lambda inner: _renamed_schema(inner, names))
    properties = changed.get("properties")
    if isinstance(properties, dict):
        changed["properties"] = {
            names.get(name, name): _described(inner, name) if name in names else inner
            for name, inner in properties.items()
        }
    if isinstance(changed.get("required"), list):
        changed["required"] = [names.get(name, name) for name in changed["required"]]
    return changed


def _described(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {**schema, "description": " ".join(filter(None, (f"`{name}`.", schema.get("description"))))}


def _in_text(arguments: str, change: Change) -> str:
    """The text of arguments with other names; unchanged where it is no JSON, which the model is told."""
    try:
        return json.dumps(_renamed(json.loads(arguments), change), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _renamed(value: Any, change: Change) -> Any:
    if isinstance(value, list):
        return [_renamed(each, change) for each in value]
    if isinstance(value, dict):
        return {change(name) or name: _renamed(inner, change) for name, inner in value.items()}
    return value
