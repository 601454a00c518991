"""Prepare the arguments of a call, once: repair and validate them. The result is valid arguments, or a typed error.

Repairs are tried in this order: empty arguments, repaired JSON, a bare value, the tool's `fix`, the agent's `repair`. Each
result may be converted by the schema (mulligan/schema/conversion.py), which is a repair as well. A repair is used only if
its result validates. Whatever a model or a fixer does, only typed errors are raised.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, JsonValue

from mulligan.activities.answers.feedback import InvalidInput, Target
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.repair_json import NotJson, parse_json, repair_json
from mulligan.fixer import Fixer, InvalidToolInput
from mulligan.schema.argument_digest import argument_digest
from mulligan.schema.arguments_model import JsonType
from mulligan.schema.conversion import convert
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.json_schema import NotOfSchema, property_names
from mulligan.values import Repair, ToolCall

BARE_VALUE = "bare_value"

CallFixer = Callable[[Fixer, InvalidToolInput], Awaitable[Any]]
"""Runs a fixer, and returns its corrected arguments; None where it gave up, raised, or exceeded its time limit."""


@dataclass(frozen=True)
class ValidArguments:
    """Valid arguments as JSON, and the repairs that made them valid.

    `digest`: that of their normal form, where it is not that of the arguments as JSON.
    """

    arguments: JsonValue
    repairs: list[Repair] = field(default_factory=list)
    digest: str | None = None


async def prepare(
    call: ToolCall,
    parsed: ParsedArguments,
    target: Target,
    fixers: Sequence[tuple[str, Fixer | None]] = (),
    run_fixer: CallFixer | None = None,
) -> ValidArguments:
    """Prepare a call's arguments for a tool, or for a type of output.

    `parsed` are the arguments. `fixers` are pairs of the name by which a repair is recorded and the fixer; they are tried in
    their order, by `run_fixer`.

    Raises:
        InvalidToolInputError, StructuredOutputValidationError: the arguments are not valid, and no repair succeeded.
    """
    in_thread = parsed.is_long or target.accepts.blocks
    result = await asyncio.to_thread(_read, call, parsed, target) if in_thread else _read(call, parsed, target)
    if isinstance(result, ValidArguments):
        return result
    for by, fixer in fixers:
        if fixer is None or run_fixer is None:
            continue
        invalid = InvalidToolInput(target.name, result.arguments, parsed.text, result.error, target.accepts.schema)
        fixed = await run_fixer(fixer, invalid)
        if target.accepts.blocks:
            corrected = await asyncio.to_thread(_corrected, fixed, target.accepts)
        else:
            corrected = _corrected(fixed, target.accepts)
        if corrected is not None:
            repair = Repair(by=by, before=result.arguments, after=corrected.arguments)
            return replace(corrected, repairs=[repair])
    raise result.error


@dataclass(frozen=True)
class _Invalid:
    """`arguments` is what could be read: the JSON value, or the raw text where it is not JSON."""

    error: InvalidInput
    arguments: JsonValue


def _read(call: ToolCall, parsed: ParsedArguments, target: Target) -> ValidArguments | _Invalid:
    """Read the arguments from what the model wrote alone, without a fixer."""
    accepts, raw, value = target.accepts, parsed.text, parsed.value
    if not raw.strip():
        empty = accepted(accepts, {}, ("empty_arguments", raw))
        return _Invalid(target.not_valid(call, {}, empty), {}) if isinstance(empty, Exception) else empty
    if parsed.fault is not None:
        return _read_repaired(call, raw, target, parsed.fault)
    as_read = accepted(accepts, value)
    if isinstance(as_read, ValidArguments):
        return as_read
    # JSON that contains JSON as a string: `"{\"a\": 1}"`
    for repaired in repair_json(raw, property_names(accepts.schema)):
        reading = accepted(accepts, repaired.value, (f"json:{repaired.by}", raw))
        if isinstance(reading, ValidArguments):
            return reading
    return _bare_value(accepts, value) or _Invalid(target.not_valid(call, value, as_read), value)


def _read_repaired(call: ToolCall, raw: str, target: Target, error: NotJson) -> ValidArguments | _Invalid:
    """Read arguments that are not JSON by the first repaired reading of them that is valid."""
    accepts = target.accepts
    readings = list(repair_json(raw, property_names(accepts.schema)))
    for reading in readings:
        spelling = (f"json:{reading.by}", raw)
        found = accepted(accepts, reading.value, spelling)
        if isinstance(found, ValidArguments):
            return found
        if (wrapped := _bare_value(accepts, reading.value, spelling)) is not None:
            return wrapped
    # A fixer gets the value of a repaired reading, if there is one. The error's kind is `invalid_json` nevertheless.
    return _Invalid(target.not_json(call, error), readings[0].value if readings else raw)


_Step = tuple[str, JsonValue]
"""A repair: its name, and the value that it was applied to."""


def _bare_value(accepts: JsonType, value: JsonValue, *steps: _Step) -> ValidArguments | None:
    """Valid arguments with the value as the one required field; None where that is not valid, or no such case."""
    if isinstance(value, dict) or len(accepts.required) != 1:
        return None
    wrapped = accepted(accepts, {accepts.required[0]: value}, *steps, (BARE_VALUE, value))
    return None if isinstance(wrapped, Exception) else wrapped


def valid(accepts: JsonType, value: JsonValue) -> JsonValue | Exception:
    """The valid arguments that a value is, or becomes by a conversion ("5" for an integer is 5); or the error."""
    found = accepted(accepts, value)
    return found.arguments if isinstance(found, ValidArguments) else found


def accepted(accepts: JsonType, value: JsonValue, *steps: _Step) -> ValidArguments | Exception:
    """Validate a value as `valid` does, and note the repairs: `steps`, by which it was read, and the conversion."""
    unconverted = None if accepts.coerces else _validated(accepts, value)
    if isinstance(unconverted, ValidArguments):
        return _repaired(unconverted, steps)
    conversion = convert(accepts.conversion_schema, value, parse_json)
    if isinstance(unconverted, Exception) and not conversion.kinds:
        return unconverted
    converted = _validated(accepts, conversion.value)
    if isinstance(converted, Exception):
        return converted
    if accepts.coerces and conversion.refused:
        return NotOfSchema(list(conversion.refused))
    if conversion.kinds:
        steps = (*steps, (f"schema:{'+'.join(sorted(conversion.kinds))}", value))
    return _repaired(converted, steps)


def _repaired(found: ValidArguments, steps: Sequence[_Step]) -> ValidArguments:
    afters = [*(before for _, before in steps[1:]), found.arguments]
    repairs = [Repair(by=by, before=before, after=after) for (by, before), after in zip(steps, afters, strict=False)]
    return replace(found, repairs=repairs)


def _validated(accepts: JsonType, value: JsonValue) -> ValidArguments | Exception:
    """The validated value as JSON in the form of its types; or the error.

    A value that JSON has no number for is an error: pydantic reads "inf" as a float, and would write it as null.
    """
    try:
        validated = accepts.validate(value)
    except Exception as error:  # noqa: BLE001 - a user's validator may raise anything
        return error
    except BaseException as error:  # noqa: BLE001 - a SystemExit must not end the worker
        return RuntimeError(f"{type_name(error)}: {error_text(error)}")
    try:
        written = accepts.to_json(validated)
        if not_finite := list(_not_finite(written)):
            return NotOfSchema(
                [(path, "should be a finite number: JSON has no infinity and no NaN") for path in not_finite]
            )
        # Validated again only where it would be another one. Some types are written differently from how they are read
        # (SecretStr): then the model's own value is used.
        is_other = not _is_same(written, value) and accepts.validate(written) == validated
        arguments = written if is_other else value
    except BaseException:  # noqa: BLE001 - a user's serializer may raise anything
        arguments = value
    return ValidArguments(arguments, digest=_digest(accepts, validated, arguments, value))


def _digest(accepts: JsonType, validated: Any, arguments: JsonValue, value: JsonValue) -> str | None:
    """The digest of the normal form of the arguments, where it is not that of their JSON."""
    try:
        digest = argument_digest(accepts.normal_form(validated, arguments, value))
    except BaseException:  # noqa: BLE001 - a user's types and default factories may raise anything
        return None
    return None if digest == argument_digest(arguments) else digest


def _is_same(first: JsonValue, second: JsonValue) -> bool:
    """Whether two values are the same JSON, but for the order of fields. In Python, 1 equals 1.0 and True."""
    return first is second or (
        first == second and json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    )


def _not_finite(value: JsonValue, path: str = "") -> Iterator[str]:
    """The paths of the numbers that are infinite or NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _not_finite(inner, f"{path}[{index}]")


def _corrected(value: Any, accepts: JsonType) -> ValidArguments | None:
    """The arguments that a fixer returned, if they are valid; else None."""
    try:
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json", by_alias=True)
        parsed: JsonValue = parse_json(value if isinstance(value, str) else json.dumps(value, allow_nan=False))
    except BaseException:  # noqa: BLE001 - a fixer may return anything
        return None
    if parsed is None:
        return None
    found = accepted(accepts, parsed)
    return None if isinstance(found, Exception) else found


def duplicates(calls: Sequence[ToolCall], texts: Sequence[str]) -> set[int]:
    """The indexes of calls that equal an earlier one in id, name and arguments. A call without an id equals no other.

    `texts`: of the calls' arguments, or in place of one what all ways to write it have in common.
    """
    seen: set[tuple[str, str, str]] = set()
    repeated = set()
    for index, (call, text) in enumerate(zip(calls, texts, strict=True)):
        key = (call.id, call.name, text)
        if call.id and key in seen:
            repeated.add(index)
        seen.add(key)
    return repeated
