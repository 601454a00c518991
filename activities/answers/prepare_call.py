"""Look at a call's arguments once: parse, mend, validate, fix, repair. What comes out is valid, or a typed error.

Repairs in this order: empty arguments, mended JSON, a bare value, the tool's `fix`, the agent's `repair`. Each counts only
if its outcome validates. Nothing that a model or a fixer does makes this raise anything but a typed error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, JsonValue

from mulligan.activities.answers.feedback import InvalidInput, Target
from mulligan.activities.answers.repair_json import NotJson, parse_json, repair_json
from mulligan.fixer import Fixer, InvalidToolInput
from mulligan.schema.arguments_model import JsonType
from mulligan.values import Repair, ToolCall

LONG = 20_000
"""Characters of arguments from which on they are read in a thread."""

AskFixer = Callable[[Fixer, InvalidToolInput], Awaitable[Any]]
"""Asks a fixer. One that raises, or does not come back in time, has given up: None."""


@dataclass(frozen=True)
class Prepared:
    """A call that can run: valid arguments as JSON, and what was changed to make them so."""

    arguments: JsonValue
    repairs: list[Repair] = field(default_factory=list)


async def prepare(
    call: ToolCall, target: Target, fixers: Sequence[tuple[str, Fixer | None]], ask: AskFixer
) -> Prepared:
    """Prepare a call's arguments for what they are meant for. `fixers` are (by whom, whom to ask), in their order.

    Raises:
        InvalidToolInputError, StructuredOutputValidationError: they are not what is taken, and nobody could mend them.
    """
    # Megabytes of brackets take seconds to mend: not on the worker's event loop.
    is_long = len(call.arguments) > LONG
    found = await asyncio.to_thread(_read, call, target) if is_long else _read(call, target)
    if isinstance(found, Prepared):
        return found
    error, before = found
    for by, fixer in fixers:
        if fixer is None:
            continue
        invalid = InvalidToolInput(target.name, before, call.arguments, error, target.accepts.schema)
        corrected = _corrected(await ask(fixer, invalid), target.accepts)
        if corrected is not None:
            return Prepared(corrected, [Repair(by=by, before=before, after=corrected)])
    raise error


def _read(call: ToolCall, target: Target) -> Prepared | tuple[InvalidInput, JsonValue]:
    """The arguments by their text alone; or what is wrong with them, and how far they could be read."""
    accepts = target.accepts
    if not call.arguments.strip():
        arguments = valid(accepts, {})
        if isinstance(arguments, Exception):
            return target.not_valid(call, {}, arguments), {}
        return Prepared(arguments, [Repair(by="empty_arguments", before=call.arguments, after=arguments)])
    try:
        value = parse_json(call.arguments)
    except NotJson as not_json:
        readings = list(repair_json(call.arguments))
        for mended in readings:
            if (found := _reading(accepts, mended.value)) is not None:
                by, taken = found
                spelled = Repair(by=f"json:{mended.by}", before=call.arguments, after=mended.value if by else taken)
                wrapped = [Repair(by=by, before=mended.value, after=taken)] if by else []
                return Prepared(taken, [spelled, *wrapped])
        excerpt = f"The fault is near: {not_json.near}" if not_json.near else ""
        # A fixer sees what could be read, if anything could; the kind stays: it was no JSON.
        before: JsonValue = readings[0].value if readings else call.arguments
        return target.not_json(call, not_json.reason, excerpt, not_json), before
    as_read = valid(accepts, value)
    if not isinstance(as_read, Exception):
        return Prepared(as_read)
    for mended in repair_json(call.arguments):  # JSON that holds JSON: `"{\"a\": 1}"`
        read = valid(accepts, mended.value)
        if not isinstance(read, Exception):
            return Prepared(read, [Repair(by=f"json:{mended.by}", before=call.arguments, after=read)])
    if (bare := _reading(accepts, value)) is not None:
        return Prepared(bare[1], [Repair(by=bare[0], before=value, after=bare[1])])
    return target.not_valid(call, value, as_read), value


def _reading(accepts: JsonType, value: JsonValue) -> tuple[str, JsonValue] | None:
    """How a value is valid: as it is (by nobody), or as the one field that is required (`bare_value`)."""
    arguments = valid(accepts, value)
    if not isinstance(arguments, Exception):
        return "", arguments
    if not isinstance(value, dict) and len(accepts.required) == 1:
        wrapped = valid(accepts, {accepts.required[0]: value})
        if not isinstance(wrapped, Exception):
            return "bare_value", wrapped
    return None


def valid(accepts: JsonType, value: JsonValue) -> JsonValue | Exception:
    """The value in the form that the schema gives it ("5" for an integer is 5), or why it is not valid."""
    try:
        validated = accepts.validate(value)
    except Exception as error:  # noqa: BLE001 - a user's validator may raise anything
        return error
    try:
        shown = accepts.to_json(validated)
        # Some types are not written as they are read (SecretStr): what the model sent is then the truer form.
        return shown if accepts.validate(shown) == validated else value
    except Exception:  # noqa: BLE001 - a user's serializer may raise anything
        return value


def _corrected(given: Any, accepts: JsonType) -> JsonValue | None:
    """What a fixer gave, if that validates. Rubbish is as good as nothing."""
    try:
        if isinstance(given, BaseModel):
            given = given.model_dump(mode="json", by_alias=True)
        value: JsonValue = (
            parse_json(given) if isinstance(given, str) else json.loads(json.dumps(given, allow_nan=False))
        )
    except Exception:  # noqa: BLE001 - see above
        return None
    if value is None:
        return None
    arguments = valid(accepts, value)
    return None if isinstance(arguments, Exception) else arguments


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
