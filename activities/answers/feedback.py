"""The feedback texts for mistakes of the model, as typed errors. Results, steps and spans use the same texts.

The `message` of an error never quotes the model's input, `detail` may: spans without content show `message` alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import JsonValue, ValidationError
from pydantic_core.core_schema import ErrorType

from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.repair_json import NotJson
from mulligan.activities.models.protocol import Mistake as EndpointsMistake
from mulligan.errors import (
    InvalidToolInputError,
    MultipleStructuredOutputsError,
    StructuredOutputValidationError,
    ToolExecutionError,
    UnknownToolError,
)
from mulligan.output import NotOfSchema
from mulligan.policy import Mistake
from mulligan.schema.arguments_model import JsonType
from mulligan.schema.cut_text import beginning, cut_text
from mulligan.schema.error_text import error_text, type_name
from mulligan.values import ToolCall

SCHEMA_SHOWN, INPUT_SHOWN, TOOLS_SHOWN, FAULTS_SHOWN, PATH_SHOWN = 2_000, 500, 50, 20, 200
NEAREST = 3
"""Names that are near to one that does not exist, where the model does not see all tools."""
FAULTS_READ = 1_000
"""Faults of one value that are described, before equal ones are left out; half a megabyte may have 100,000."""
MOST_SHOWN = 20_000
"""Characters of the schema of a tool that the model has not seen."""
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
"""Error types of pydantic whose message may contain the value. Every type that is not pydantic's may do so too."""
_PYDANTICS = frozenset(get_args(ErrorType))

_MAY_HAVE_RUN = "This call was started before, and may or may not have done its work."


def unknown_tool(call: ToolCall, available: Sequence[str], hidden: Sequence[str] = ()) -> UnknownToolError:
    """No such tool: the names of the tools, and the nearest name.

    `hidden`: tools that the model does not see now; of these, the nearest three are named at most.
    """
    name = beginning(call.name, 100)
    most = NEAREST if hidden else 1
    near = difflib.get_close_matches(call.name[:100], [*available, *hidden], n=most, cutoff=0.5)
    meant = f" Did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else ""
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


InvalidInput = InvalidToolInputError | StructuredOutputValidationError


@dataclass(frozen=True)
class Target:
    """What a call's arguments are for: a tool, or a type of output (`is_output`); and its feedback texts."""

    name: str
    accepts: JsonType
    is_output: bool = False
    is_hidden: bool = False
    """Whether the model has not seen its schema: then feedback contains all of it."""

    def not_json(self, call: ToolCall, error: NotJson) -> InvalidInput:
        """The arguments are not JSON."""
        message = f"The arguments of `{self.name}` are not valid JSON, so it was not run: {error.reason}."
        if self.is_output:
            message = f"Your output `{self.name}` is not valid JSON, so it was not accepted: {error.reason}."
        excerpt = f"The fault is near: {error.near}" if error.near not in ("", call.arguments) else ""
        # Asked for a correction alone, a model may write only what is missing.
        whole = (
            "What you wrote ends too early, and nothing was added to it: write all of it." if error.is_cut_off else ""
        )
        sent = _sent(call.arguments, error.position)
        detail = "\n".join(filter(None, (sent, excerpt, self._takes, whole, self._again)))
        return self._error(call, "invalid_json", message, detail, error)

    def not_valid(self, call: ToolCall, value: JsonValue, error: Exception, *, attempt: int = 1) -> InvalidInput:
        """The arguments are JSON, but not valid: each field at fault, and the schema.

        They were valid when the call was prepared, so at an `attempt` after the first the tool has changed meanwhile.
        """
        faults, quoting = _faults(error, value, list(self.accepts.schema.get("properties", {})))
        message = f"The arguments of `{self.name}` are not what it takes, so it was not run:\n{faults}"
        if attempt > 1:
            message = (
                f"The arguments of `{self.name}` are no longer what it takes, as the tool was changed. {_MAY_HAVE_RUN}\n"
                f"{faults}"
            )
        elif self.is_output:
            message = f"Your output is not a valid `{self.name}`, so it was not accepted:\n{faults}"
        sent = f"You sent: {cut_text(json.dumps(value, ensure_ascii=False, default=str), INPUT_SHOWN)}"
        detail = "\n".join([sent, *quoting, self._takes, self._again])
        return self._error(call, "invalid_arguments", message, detail, error)

    @property
    def _takes(self) -> str:
        return _takes(self.accepts, MOST_SHOWN if self.is_hidden else SCHEMA_SHOWN)

    @property
    def _again(self) -> str:
        return "Give it again, corrected." if self.is_output else "Call it again with corrected arguments."

    def _error(self, call: ToolCall, kind: str, message: str, detail: str, source: Exception) -> InvalidInput:
        error: InvalidInput = _invalid(call, kind, message, detail, source)
        if self.is_output:
            error = StructuredOutputValidationError(
                message, detail=detail, kind="invalid_output", tool_name=self.name, source=source
            )
        error.quotes_input = True
        return error


def quote_unreadable(error: Mistake, parsed: ParsedArguments) -> None:
    """Add the arguments of a failed call to the feedback, unless it has them or they are a JSON object.

    The model is sent `{}` in their place.
    """
    if error.quotes_input or not parsed.text.strip() or parsed.is_legal:
        return
    is_cut_off = error.kind == "truncated_call"
    sent = _sent(parsed.text, len(parsed.text) if is_cut_off else 0)
    error.detail = "\n".join(filter(None, (error.detail, sent)))


def tool_gone(call: ToolCall) -> ToolExecutionError:
    """The run had the tool when it opened, and the function that returns its tools does not return it now."""
    return ToolExecutionError(
        f"The tool `{call.name}` is gone: it was there when this run began. Continue without it.",
        kind="tool_exception",
        tool_name=call.name,
        call_id=call.id,
    )


def tool_missing_on_worker(
    call: ToolCall, task_queue: str, available: Sequence[str], *, attempt: int = 1
) -> UnknownToolError:
    """The worker that received the call does not have the tool. It may have run if this is not the first `attempt`."""
    may_have_run = f" {_MAY_HAVE_RUN}" if attempt > 1 else ""
    return UnknownToolError(
        f"The tool `{call.name}` is unavailable: the worker of task queue {task_queue!r} does not know it."
        f"{may_have_run} Continue without it.",
        available=available,
        kind="unknown_tool",
        tool_name=call.name,
        call_id=call.id,
    )


def too_long(call: ToolCall, length: int, limit: int) -> InvalidToolInputError:
    """The arguments exceed the limit of a step."""
    return _invalid(
        call,
        "invalid_arguments",
        f"The arguments of `{call.name}` are {length:,} characters long, so it was not run: a step takes about "
        f"{limit:,} bytes of arguments in all. Send less at a time, in several calls.",
        "",
        None,
    )


def too_many_calls(call: ToolCall, count: int, most: int) -> InvalidToolInputError:
    """The answer has more calls than a step can have; the calls after this one are removed."""
    return _invalid(
        call,
        "invalid_arguments",
        f"You made {count:,} calls in one answer, and a step can have {most:,}: this call was not run, nor any after it. "
        "Make them again, fewer at a time.",
        "",
        None,
    )


def too_long_output(name: str, length: int, limit: int) -> StructuredOutputValidationError:
    """The output exceeds the limit of a step."""
    return StructuredOutputValidationError(
        f"Your output `{name}` is {length:,} characters long, so it was not accepted: the limit is about {limit:,} bytes. "
        "Give a shorter one.",
        kind="invalid_output",
        tool_name=name,
    )


def refused_by_endpoint(call: ToolCall, mistake: EndpointsMistake) -> InvalidToolInputError | UnknownToolError:
    """The model's endpoint has refused the call, or the whole answer, which then is `call` without a name."""
    message = f"Your call of `{beginning(call.name, 100)}` was refused by the server, so it was not run."
    if not call.name:
        message = "Your answer was refused by the server, so nothing of it was used. Give it again, corrected."
    error = _invalid(call, mistake.kind, message, f"It says: {cut_text(mistake.says, SCHEMA_SHOWN)}", None)
    if mistake.kind != "unknown_tool":
        return error
    return UnknownToolError(message, available=[], detail=error.detail, kind="unknown_tool", tool_name=call.name)


def truncated_call(call: ToolCall, by: str) -> InvalidToolInputError:
    """The model was cut off inside a call. `by`: the limit or filter that did it."""
    return _invalid(
        call,
        "truncated_call",
        f"You were cut off by {by} while you wrote the call of `{call.name}`, so it was not run. "
        "Call it again, with shorter arguments or in several calls.",
        "",
        None,
    )


def duplicate_call(call: ToolCall) -> InvalidToolInputError:
    """The error for a call that the model made twice in one step."""
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


def multiple_outputs(names: Sequence[str]) -> MultipleStructuredOutputsError:
    """Several outputs where one is the answer."""
    given = ", ".join(f"`{name}`" for name in names)
    return MultipleStructuredOutputsError(
        f"You gave {len(names)} outputs in one step ({given}), so none was accepted. Give exactly one.",
        kind="multiple_outputs",
        tool_names=names,
    )


def premature_output(name: str) -> StructuredOutputValidationError:
    """The output together with calls of tools, whose results may change it."""
    return StructuredOutputValidationError(
        f"Your output `{name}` came together with other calls, so it was not accepted. Read their results, then give the "
        "output again, by itself.",
        kind="premature_output",
        tool_name=name,
    )


def missing_output(targets: Sequence[Target], text: str, *, by_call: bool) -> StructuredOutputValidationError:
    """Plain text, or nothing, where the output was expected."""
    names = " or ".join(f"`{target.name}`" for target in targets)
    answered = "You answered in plain text" if text.strip() else "Your answer has no text and no call"
    if by_call:
        message = f"{answered}, but your final answer must be given by calling {names}. Do that now."
        detail = ""
    else:
        message = f"{answered}, but your final answer must be {names}: JSON alone, without any other text."
        detail = "\n".join(_takes(target.accepts) for target in targets)
    return StructuredOutputValidationError(
        message, detail=detail, kind="missing_output", tool_name=targets[0].name if len(targets) == 1 else ""
    )


def empty_answer() -> StructuredOutputValidationError:
    """No text and no call."""
    return StructuredOutputValidationError(
        "Your answer has no text and no call. Call a tool, or give your final answer.", kind="missing_output"
    )


def _takes(accepts: JsonType, most: int = SCHEMA_SHOWN) -> str:
    schema = json.dumps(accepts.schema, ensure_ascii=False)
    if len(schema) <= most:
        return f"It takes a JSON object of this schema: {schema}"
    required = ", ".join(f"`{name}`" for name in accepts.required) or "nothing"
    known = ", ".join(f"`{name}`" for name in accepts.schema.get("properties", {}))
    return f"It takes a JSON object with the fields {known}; required: {required}."


def _faults(error: Exception, value: JsonValue, names: Sequence[str]) -> tuple[str, list[str]]:
    """The faults, a line for each field; and the lines that may quote the model's input."""
    faults: list[str] = []
    quoting: list[str] = []
    unread = 0
    if isinstance(error, ValidationError):
        unread = max(0, error.error_count() - FAULTS_READ)
        for fault in error.errors(include_url=False, include_context=False)[:FAULTS_READ]:
            where, says = _path(fault, value), _says(fault, names)
            if _may_quote(fault["type"]) and len(quoting) < FAULTS_SHOWN:
                quoting.append(f"- {where}: {cut_text(fault['msg'], INPUT_SHOWN)}")
            faults.append(f"- {where}: {says}")
    elif isinstance(error, NotOfSchema):
        faults += [f"- {f'`{cut_text(path, PATH_SHOWN)}`' if path else 'it'} {says}" for path, says in error.faults]
    else:
        faults.append("- they could not be checked")
        quoting.append(cut_text(f"The check raised {type_name(error)}: {error_text(error)}", INPUT_SHOWN))
    unique = list(dict.fromkeys(faults))
    more = len(unique) - FAULTS_SHOWN + unread
    return "\n".join(unique[:FAULTS_SHOWN]) + (f"\n- … and {more} more" if more > 0 else ""), quoting


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
    """The path of a fault in the model's input, without the names of union members and validators that pydantic adds."""
    path = ""
    for index, part in enumerate(fault["loc"]):
        # A missing name is not in the input. Any other name that is not there was added by pydantic.
        is_missing = fault["type"] == "missing" and index == len(fault["loc"]) - 1
        if isinstance(part, int) and isinstance(value, list):
            path += f"[{part}]"
            value = value[part] if part < len(value) else None
        elif isinstance(value, dict) and (part in value or is_missing):
            path += f".{part}" if path else str(part)
            value = value.get(part)
    return f"`{cut_text(path, PATH_SHOWN)}`" if path else "the arguments"


def _sent(raw: str, position: int) -> str:
    """The arguments as the model wrote them, or the part of them around a position."""
    start = max(0, min(position - INPUT_SHOWN // 2, len(raw) - INPUT_SHOWN))
    before = f"({start} characters before) …" if start else ""
    return f"You sent: {before}{cut_text(raw[start:], INPUT_SHOWN)}"
