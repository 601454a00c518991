"""What the model is told of a failure: one place for the words, used by results, steps and spans alike.

`message` of an error never quotes the model's input, `detail` may: spans show the first alone unless content is asked for.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import JsonValue, ValidationError
from pydantic_core.core_schema import ErrorType

from activities.tool_runtime import TookTooLong, ToolRuntime
from mulligan.agent import Agent
from mulligan.errors import InvalidToolInputError, MulliganError, ToolCallError, UnknownToolError
from mulligan.policy import MODELS_OWN_MISTAKES, HandleErrors, tell, with_reason
from mulligan.tool import Tool
from mulligan.values import ErrorInfo, ToolCall, well_formed

SCHEMA_SHOWN, INPUT_SHOWN, TOOLS_SHOWN, FAULTS_SHOWN, PATH_SHOWN = 2_000, 500, 50, 20, 200
POLICY_LIMIT = 10.0
"""Seconds that a policy's function may take."""

_PLAIN = {
    "missing": "is required, but missing",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dataclass_type": "should be an object",
    "dict_type": "should be an object",
    "list_type": "should be an array",
    "tuple_type": "should be an array",
    "set_type": "should be an array",
    "frozen_set_type": "should be an array",
    "string_type": "should be a string",
    "none_required": "should be null",
}
_MAY_QUOTE = frozenset({"value_error", "assertion_error", "union_tag_invalid", "uuid_parsing", "url_parsing"})
"""pydantic's error types whose message may hold the value itself; so may every type that is not pydantic's."""
_PYDANTICS = frozenset(get_args(ErrorType))


@dataclass(frozen=True)
class Told:
    """How a failure goes on: as text to the model, or (`failure`) as the end of the run."""

    text: str
    safe_text: str
    error: ErrorInfo
    failure: dict[str, Any] | None
    exception: str


async def settle(
    error: ToolCallError, agent: Agent | None, tool: Tool | None, override: str | None, runtime: ToolRuntime
) -> Told:
    """Ask the policy that is nearest: the run's input for the model's own mistakes, the tool's, the agent's."""
    policy: HandleErrors = agent.handle_errors if agent is not None else True
    if tool is not None and tool.handle_errors is not None:
        policy = tool.handle_errors
    if override is not None and error.kind in MODELS_OWN_MISTAKES:
        policy = override == "feedback"
    standard = error.text
    failure: MulliganError | None = None
    text = standard
    try:
        if isinstance(policy, (bool, str, type, tuple)):
            text = tell(error, policy, standard)
        else:
            text = await runtime.run(tell, (error, policy, standard), limit=POLICY_LIMIT)
    except MulliganError as fatal:
        failure = fatal
    except TookTooLong:
        # A policy that hangs has said nothing: the standard text is the default.
        text = standard
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as ends:
        task = asyncio.current_task()
        if isinstance(ends, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        failure = with_reason(error, ends)
    text = str(well_formed(text))
    return Told(
        text=text,
        safe_text=error.message if text == standard else text,
        error=ErrorInfo(kind=error.kind, message=error.message),
        failure=failure.to_json() if failure else None,
        exception=type(error.source).__name__ if error.source else type(error).__name__,
    )


def unknown_tool(call: ToolCall, available: Sequence[str]) -> UnknownToolError:
    """No such tool: what there is, and what may have been meant."""
    name = call.name if len(call.name) <= 100 else call.name[:100] + "…"
    near = difflib.get_close_matches(call.name[:100], available, n=1, cutoff=0.5)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    names = ", ".join(f"`{tool}`" for tool in available[:TOOLS_SHOWN])
    there_are = f" The tools are: {names}." if available else " There are no tools; answer in plain text."
    return UnknownToolError(
        f"There is no tool `{name}`.{meant}{there_are}",
        available=available,
        kind="unknown_tool",
        tool_name=call.name,
        call_id=call.id,
        raw_arguments=call.arguments,
    )


def invalid_json(call: ToolCall, tool: Tool, reason: str, excerpt: str) -> InvalidToolInputError:
    """The arguments are not JSON."""
    return _invalid(
        call,
        "invalid_json",
        f"The arguments of `{call.name}` are not valid JSON, so it was not run: {reason}.",
        "\n".join(filter(None, (excerpt, _takes(tool)))),
        None,
    )


def invalid_arguments(call: ToolCall, tool: Tool, value: JsonValue, error: Exception) -> InvalidToolInputError:
    """The arguments are JSON, but not what the tool takes: each field at fault, and the schema."""
    details = [f"You sent: {_cut(json.dumps(value, ensure_ascii=False, default=str), INPUT_SHOWN)}"]
    faults: list[str] = []
    if isinstance(error, ValidationError):
        names = list(tool.schema.get("properties", {}))
        for fault in error.errors(include_url=False, include_context=False):
            where, says = _path(fault, value), _says(fault, names)
            if _may_quote(fault["type"]) and len(details) < FAULTS_SHOWN:
                details.append(f"- {where}: {_cut(fault['msg'], INPUT_SHOWN)}")
            faults.append(f"- {where}: {says}")
    else:
        faults.append("- they could not be checked")
        details.append(_cut(f"The check raised {type(error).__name__}: {error}", INPUT_SHOWN))
    unique = list(dict.fromkeys(faults))
    more = len(unique) - FAULTS_SHOWN
    listed = "\n".join(unique[:FAULTS_SHOWN]) + (f"\n- … and {more} more" if more > 0 else "")
    return _invalid(
        call,
        "invalid_arguments",
        f"The arguments of `{call.name}` are not what it takes, so it was not run:\n{listed}",
        "\n".join([*details, _takes(tool)]),
        error,
    )


def too_long(call: ToolCall, length: int, limit: int) -> InvalidToolInputError:
    """The arguments are longer than a run can carry."""
    return _invalid(
        call,
        "invalid_arguments",
        f"The arguments of `{call.name}` are {length:,} characters long, so it was not run: a step takes about "
        f"{limit:,} bytes of arguments in all. Send less at a time, in several calls.",
        "",
        None,
    )


def truncated_call(call: ToolCall) -> InvalidToolInputError:
    """The model was cut off inside of a call."""
    return _invalid(
        call,
        "truncated_call",
        f"You were cut off by the length limit while you wrote the call of `{call.name}`, so it was not run. "
        "Call it again, with shorter arguments or in several calls.",
        "",
        None,
    )


def duplicate_call(call: ToolCall) -> InvalidToolInputError:
    """The very same call twice in one step."""
    return _invalid(
        call,
        "duplicate_call",
        f"You made this call of `{call.name}` twice in one step. It was run once; see the other call's result.",
        "",
        None,
    )


def _invalid(
    call: ToolCall, kind: str, message: str, detail: str, source: Exception | None
) -> InvalidToolInputError:  # fmt: skip
    return InvalidToolInputError(
        message,
        detail=detail,
        kind=kind,
        tool_name=call.name,
        call_id=call.id,
        raw_arguments=call.arguments,
        source=source,
    )


def _takes(tool: Tool) -> str:
    schema = json.dumps(tool.schema, ensure_ascii=False)
    shape = f"It takes a JSON object of this schema: {schema}"
    if len(schema) > SCHEMA_SHOWN:
        required = ", ".join(f"`{name}`" for name in tool.arguments.required) or "nothing"
        known = ", ".join(f"`{name}`" for name in tool.schema.get("properties", {}))
        shape = f"It takes a JSON object with the fields {known}; required: {required}."
    return f"{shape}\nCall it again with corrected arguments."


def _says(fault: Any, names: Sequence[str]) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(fault["loc"][-1]), names, n=1) if len(fault["loc"]) == 1 else []
        return "is not a field of it" + (f"; did you mean `{near[0]}`?" if near else "")
    if kind in _PLAIN:
        return _PLAIN[kind]
    if _may_quote(kind):
        return "is not valid"
    message: str = fault["msg"]
    return message.replace("Input should", "should", 1) if message.startswith("Input should") else message


def _may_quote(kind: str) -> bool:
    return kind in _MAY_QUOTE or kind not in _PYDANTICS


def _path(fault: Any, value: Any) -> str:
    """The fault's place in what the model sent. pydantic also names unions' members and validators: left out."""
    path = ""
    for index, part in enumerate(fault["loc"]):
        # A name that is not there is the fault itself where it is missing; else it is pydantic's own.
        is_missing = fault["type"] == "missing" and index == len(fault["loc"]) - 1
        if isinstance(part, int) and isinstance(value, list):
            path += f"[{part}]"
            value = value[part] if part < len(value) else None
        elif isinstance(value, dict) and (part in value or is_missing):
            path += f".{part}" if path else str(part)
            value = value.get(part)
    return f"`{_cut(path, PATH_SHOWN)}`" if path else "the arguments"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more characters)"
