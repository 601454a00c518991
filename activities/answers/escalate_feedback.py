"""Feedback for a model that repeats a wrong call: it says that the call is repeated, and becomes more explicit each time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mulligan.activities.answers.example_arguments import NoExample, example
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.policy import Mistake
from mulligan.schema.arguments_model import JsonType
from mulligan.schema.schema_cost import is_cheap
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage

INPUT_KINDS = frozenset({"unknown_tool", "invalid_json", "invalid_arguments", "invalid_output"})
"""Mistakes in the call itself: the same call fails again."""
FIELDS_SHOWN, EXAMPLE_SHOWN = 20, 2_000


def times_before(messages: Sequence[Message], call: ToolCall, parsed: ParsedArguments, kind: str) -> int:
    """How often the model got feedback on this same call before; for an unknown tool, on any call of it."""
    if kind not in INPUT_KINDS:
        return 0
    failed = {m.call_id for m in messages if isinstance(m, ToolMessage) and m.error and m.error.kind in INPUT_KINDS}
    return sum(
        earlier.id in failed and (kind == "unknown_tool" or ParsedArguments.of(earlier.arguments).key == parsed.key)
        for message in messages
        if isinstance(message, AssistantMessage)
        for earlier in message.tool_calls
        if earlier.name == call.name
    )


def escalate_feedback(error: Mistake, times: int, parsed: ParsedArguments, accepts: JsonType | None) -> Mistake:
    """The error with a more explicit text if the call was wrong `times` times before; unchanged the first time."""
    if times == 0:
        return error
    again = "You made this same call before, and it failed in the same way: sent again, it will fail again."
    if times > 1:
        again = (
            f"This is the {_ordinal(times + 1)} time that you make this same call. Do not send it again: change it as "
            "described below, call another tool, or continue without it."
        )
    detail = [error.detail]
    if accepts is not None:
        if times > 1:
            detail.append(_compared(parsed, accepts))
        if arguments := _example(accepts):
            detail.append(f"A minimal call of it that is valid has the arguments: {arguments}")
    fields = {name: getattr(error, name) for name in error.fields}
    return type(error)(f"{again}\n{error.message}", detail="\n".join(filter(None, detail)), **fields)


def _compared(parsed: ParsedArguments, accepts: JsonType) -> str:
    """A comparison of the arguments with the schema, field by field."""
    fields = accepts.schema.get("properties", {})
    expected = [
        f"`{name}`: {_type(field)}{', required' if name in accepts.required else ''}"
        for name, field in list(fields.items())[:FIELDS_SHOWN]
    ]
    sent = parsed.value
    if parsed.fault is not None:
        says = "text that is not JSON"
    elif isinstance(sent, dict):
        fields_sent = [f"`{name[:100]}`: {_name_of(value)}" for name, value in list(sent.items())[:FIELDS_SHOWN]]
        says = "an object with " + (", ".join(fields_sent) or "no field")
    else:
        says = f"not an object but {_name_of(sent)}"
    return f"You sent {says}.\nIt takes an object with {'; '.join(expected) or 'no field'}."


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any value"
    if "enum" in schema:
        return "one of " + json.dumps(schema["enum"][:FIELDS_SHOWN], ensure_ascii=False)
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(_type(member) for member in schema[union][:FIELDS_SHOWN]))
    if "$ref" in schema:
        return "object (see the schema)"
    kind = schema.get("type", "any value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _name_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _example(accepts: JsonType) -> str:
    """A minimal valid example as JSON; "" if there is none, or if a validator of the user refuses it."""
    if accepts.blocks and not is_cheap(accepts.schema):
        return ""  # the generator validates what it makes many times, on the event loop
    try:
        arguments = example(accepts.schema)
        if accepts.blocks and not is_cheap(accepts.schema, arguments):
            return ""
        accepts.validate(arguments)
    except NoExample:
        return ""
    except Exception:  # noqa: BLE001 - a user's validator may raise anything
        return ""
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) <= EXAMPLE_SHOWN else ""


def _ordinal(number: int) -> str:
    last = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"
