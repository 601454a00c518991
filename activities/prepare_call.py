"""Look at a call once: parse, mend, validate, fix, repair. What comes out is valid, or a typed error.

Repairs in this order: empty arguments, mended JSON, a bare value, the tool's `fix`, the agent's `repair`. Each counts only
if its outcome validates. Nothing that a model or a fixer does makes this raise anything but a `ToolCallError`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, JsonValue

from activities import feedback
from activities.mend_json import NotJson, mend, parse_json
from activities.tool_runtime import TookTooLong, ToolRuntime
from mulligan.agent import Agent
from mulligan.errors import InvalidToolInputError
from mulligan.tool import Fixer, InvalidToolInput, Tool
from mulligan.values import Repair, ToolCall

FIXER_LIMIT = 10.0
"""Seconds that a `fix` or `repair` may take: the model's answer waits for it. Later is given up."""

LONG = 20_000
"""Characters of arguments from which on they are read in a thread."""


@dataclass(frozen=True)
class Prepared:
    """A call that can run: valid arguments as JSON, and what was changed to make them so."""

    arguments: JsonValue
    repairs: list[Repair] = field(default_factory=list)


async def prepare(call: ToolCall, agent: Agent, runtime: ToolRuntime) -> Prepared:
    """Prepare a call of one of the agent's tools.

    Raises:
        UnknownToolError: there is no such tool.
        InvalidToolInputError: its arguments are not what the tool takes, and nobody could mend them.
    """
    tool = agent.tool(call.name)
    if tool is None:
        raise feedback.unknown_tool(call, [known.name for known in agent.tools])
    # Megabytes of brackets take seconds to mend: not on the worker's event loop.
    is_long = len(call.arguments) > LONG
    found = await asyncio.to_thread(_read, call, tool) if is_long else _read(call, tool)
    if isinstance(found, Prepared):
        return found
    error, value = found
    before: JsonValue = value if value is not None else call.arguments
    for by, fixer in (("fix", tool.fix), ("repair", agent.repair)):
        if fixer is None:
            continue
        invalid = InvalidToolInput(tool.name, before, call.arguments, error, tool.schema)
        corrected = await _corrected(fixer, invalid, tool, runtime)
        if corrected is not None:
            return Prepared(corrected, [Repair(by=by, before=before, after=corrected)])
    raise error


def _read(call: ToolCall, tool: Tool) -> Prepared | tuple[InvalidToolInputError, JsonValue]:
    """The arguments by their text alone; or what is wrong with them, and how far they could be read."""
    if not call.arguments.strip():
        arguments = _valid(tool, {})
        if isinstance(arguments, Exception):
            return feedback.invalid_arguments(call, tool, {}, arguments), {}
        return Prepared(arguments, [Repair(by="empty_arguments", before=call.arguments, after=arguments)])
    try:
        value = parse_json(call.arguments)
    except NotJson as not_json:
        readings = list(mend(call.arguments))
        for mended in readings:
            arguments = _valid(tool, mended.value)
            if not isinstance(arguments, Exception):
                by = f"json:{mended.by}"
                return Prepared(arguments, [Repair(by=by, before=call.arguments, after=arguments)])
        excerpt = f"The fault is near: {not_json.near}" if not_json.near else ""
        error = feedback.invalid_json(call, tool, not_json.reason, excerpt)
        error.source = not_json
        # A fixer sees what could be read, if anything could; the kind stays: it was no JSON.
        return error, readings[0].value if readings else None
    arguments = _valid(tool, value)
    if not isinstance(arguments, Exception):
        return Prepared(arguments)
    for mended in mend(call.arguments):  # JSON that holds JSON: `"{\"a\": 1}"`
        read = _valid(tool, mended.value)
        if not isinstance(read, Exception):
            return Prepared(read, [Repair(by=f"json:{mended.by}", before=call.arguments, after=read)])
    if not isinstance(value, dict) and len(tool.arguments.required) == 1:
        wrapped = _valid(tool, {tool.arguments.required[0]: value})
        if not isinstance(wrapped, Exception):
            return Prepared(wrapped, [Repair(by="bare_value", before=value, after=wrapped)])
    return feedback.invalid_arguments(call, tool, value, arguments), value


def _valid(tool: Tool, value: JsonValue) -> JsonValue | Exception:
    """The value in the form that the schema gives it ("5" for an integer is 5), or why it is not valid."""
    try:
        validated = validate(tool, value)
    except Exception as error:  # noqa: BLE001 - a user's validator may raise anything
        return error
    try:
        shown: JsonValue = validated.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings="error")
        # Some types are not written as they are read (SecretStr): what the model sent is then the truer form.
        return shown if validate(tool, shown) == validated else value
    except Exception:  # noqa: BLE001 - a user's serializer may raise anything
        return value


def validate(tool: Tool, value: JsonValue) -> BaseModel:
    """The arguments as the tool's pydantic model, by JSON's rules: a string is a date, an array a tuple.

    Raises:
        pydantic.ValidationError: they do not fit; and whatever a user's own validators raise.
    """
    return tool.arguments.model.model_validate_json(json.dumps(value))


async def _corrected(fixer: Fixer, invalid: InvalidToolInput, tool: Tool, runtime: ToolRuntime) -> JsonValue | None:
    """What a fixer makes of it, if that validates. One that raises, hangs or returns rubbish has given up."""
    try:
        given = await runtime.ask(fixer, (invalid,), limit=FIXER_LIMIT)
        if isinstance(given, BaseModel):
            given = given.model_dump(mode="json", by_alias=True)
        value = parse_json(given) if isinstance(given, str) else json.loads(json.dumps(given, allow_nan=False))
    except (TookTooLong, Exception):  # noqa: BLE001 - see above
        return None
    if value is None:
        return None
    valid = _valid(tool, value)
    return None if isinstance(valid, Exception) else valid


def duplicates(calls: Sequence[ToolCall]) -> set[int]:
    """Which calls of a step are the very same (id, name, arguments) as one before. Calls without an id are their own."""
    seen: set[tuple[str, str, str]] = set()
    found = set()
    for index, call in enumerate(calls):
        key = (call.id, call.name, call.arguments)
        if call.id and key in seen:
            found.add(index)
        seen.add(key)
    return found
