"""Generated calls as models spell them, to be cut off anywhere: what is accepted of them must be all of their arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from pydantic import create_model

from mulligan import Tool, ToolCall, ToolCallError, tool
from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.prepare_call import prepare, valid
from mulligan.activities.calls_in_text.find_calls import find_calls
from mulligan.activities.mcp.servers import _schemas
from mulligan.errors import StructuredOutputError
from mulligan.output import Output
from mulligan.schema.arguments_model import JsonType
from mulligan.schema.json_schema import schema_validator
from mulligan.schema.schema_arguments import SchemaArguments

NAME = "send"
"""The name of the tool or output."""
_NAMES = ["a", "to", "name", "id"]
_WORDS = st.just(NAME) | st.lists(st.sampled_from([*"abz1 \"'\\{}[],:#`\n\té", "```"]), max_size=5).map("".join)
_INTEGERS = st.integers(-2000, 2000)
_TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, _WORDS),
    (int, _INTEGERS),
    (float, st.floats(-1e30, 1e30)),
    (bool, st.booleans()),
    (str | None, st.none() | _WORDS),
    (list[int], st.lists(_INTEGERS, max_size=4)),
    (list[str], st.lists(_WORDS, max_size=3)),
    (list[list[str]], st.lists(st.lists(_WORDS, max_size=2), max_size=2)),
    (dict[str, int], st.dictionaries(_WORDS, _INTEGERS, max_size=2)),
    (list[dict[str, bool | str]], st.lists(st.dictionaries(_WORDS, st.booleans() | _WORDS, max_size=2), max_size=3)),
]


class WrittenCall:
    """A call of `NAME` as a model writes it.

    `text` is the call's arguments or, with `is_in_text`, an answer that contains the call. `arguments` are those of the
    whole call, before they are validated. Not a dataclass: hypothesis would print all of `accepts`.
    """

    def __init__(
        self, accepts: JsonType, arguments: dict[str, Any], text: str, *, is_output: bool, is_in_text: bool
    ) -> None:
        self.accepts, self.arguments, self.text = accepts, arguments, text
        self.is_output, self.is_in_text = is_output, is_in_text

    def __repr__(self) -> str:
        return f"<{'text' if self.is_in_text else 'arguments'} {self.text!r} for {self.accepts.schema}>"


def spell(value: Any, *, key: Callable[[str], str] = json.dumps, after: str = ",", closer: str = "]") -> str:
    """A value as JSON with `after` after each member of an object and `closer` at the end of a list."""
    if isinstance(value, dict):
        inner = " ".join(
            f"{key(name)}: {spell(each, key=key, after=after, closer=closer)}{after}" for name, each in value.items()
        )
        return f"{{{inner}}}"
    if isinstance(value, list):
        return "[" + ", ".join(spell(each, key=key, after=after, closer=closer) for each in value) + closer
    return json.dumps(value)


def _unquoted(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name)


SPELLINGS: dict[str, Callable[[Any], str]] = {
    "strict": json.dumps,
    "compact": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    "indented": lambda value: json.dumps(value, indent=2),
    "Python": repr,
    "trailing commas": spell,
    "JavaScript": lambda value: spell(value, key=_unquoted, after=" /* so */, // and\n"),
    "missing commas": lambda value: spell(value, after=""),
    "surplus closers": lambda value: json.dumps(value) + "]}",
    "lists without their closers": lambda value: spell(value, closer=""),
    "in a fence": lambda value: f"```json\n{json.dumps(value, indent=1)}\n```",
    "in a fence in prose": lambda value: f"So:\n```\n{value!r}\n```\nDone.",
    "encoded twice": lambda value: json.dumps(json.dumps(value)),
    "encoded twice, unquoted": lambda value: json.dumps(json.dumps(value))[1:-1],
}
DIALECTS: dict[str, Callable[[str, str], str]] = {
    "bare": lambda raw, name: f'{{"name": "{name}", "arguments": {raw}}}',
    "fence": lambda raw, name: f'So:\n```json\n{{"name": "{name}", "arguments": {raw}}}\n```',
    "tag": lambda raw, name: f'<tool_call>{{"name": "{name}", "arguments": {raw}}}</tool_call>',
    "list": lambda raw, name: f'[{{"name": "{name}", "arguments": {raw}}}]',
    "function": lambda raw, name: f'{{"type": "function", "function": {{"name": "{name}", "parameters": {raw}}}}}',
    "arguments first": lambda raw, name: f'{{"arguments": {raw}, "name": "{name}"}}',
    "as a string": lambda raw, name: f'{{"name": "{name}", "arguments": {json.dumps(raw)}}}',
    "Llama": lambda raw, name: f"<function={name}>{raw}</function>",
    "Mistral": lambda raw, name: f"[TOOL_CALLS]{name}[ARGS]{raw}",
}
"""Answers that contain a call, by the arguments as text and the name."""


def _keywords(value: dict[str, Any]) -> str:
    return ", ".join(f"{name}={each!r}" for name, each in value.items())


def _parameters(value: dict[str, Any], tag: str) -> str:
    texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in value.items()}
    return "".join(f"<parameter{tag.format(name)}>\n{text}\n</parameter>\n" for name, text in texts.items())


VALUE_DIALECTS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "Python": lambda value, name: f"{name}({_keywords(value)})",
    "Llama's Python": lambda value, name: f"[{name}({_keywords(value)})]",
    "Gemma": lambda value, name: f"```tool_code\nprint({name}({_keywords(value)}))\n```",
    "Python in a tag": lambda value, name: f"<tool_call>{name}({_keywords(value)})</tool_call>",
    "Qwen": lambda value, name: f"<tool_call>\n<function={name}>\n{_parameters(value, '={}')}</function>\n</tool_call>",
    "Claude": lambda value, name: (
        f'<function_calls><invoke name="{name}">{_parameters(value, " name=" + chr(34) + "{}" + chr(34))}</invoke></function_calls>'
    ),
}
"""The same, by the arguments themselves: these dialects have one spelling, and names that are identifiers."""


@st.composite
def written_calls(draw: st.DrawFn) -> WrittenCall:
    """Calls of tools, of tools of MCP servers and outputs; with optional arguments, and with ones that no schema names."""
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True))
    types = {name: draw(st.sampled_from(_TYPES)) for name in names}
    fields = {name: (kind, ... if draw(st.booleans()) else None) for name, (kind, _) in types.items()}
    arguments = {
        name: draw(types[name][1])
        for name in names
        if name == names[0] or fields[name][1] is ... or draw(st.booleans())
    }
    model = create_model(NAME, **fields)  # type: ignore[call-overload]
    is_output = draw(st.booleans())
    more = draw(st.sampled_from([False, None, True, {"type": "integer"}]))
    if draw(st.booleans()):
        accepts = Output.from_declaration(model).whole if is_output else _tool(fields).arguments
    else:
        schema = model.model_json_schema() | ({} if more is None else {"additionalProperties": more})
        accepts = Output.from_declaration(schema).whole if is_output else _server_arguments(schema)
        arguments |= {f"more {number}": number for number in range(draw(st.integers(0, 2) if more else st.just(0)))}
    is_in_text = draw(st.booleans())
    written: Any = dict(draw(st.permutations(list(arguments.items()))))
    if len(arguments) == 1 and [*arguments] == accepts.required and draw(st.booleans()):
        [bare] = arguments.values()
        # Alone, the beginning of a number is a number: strict JSON, and all that the model wrote.
        written = bare if is_in_text or isinstance(bare, str | list) else written
    # A fence within an answer is a call of its own.
    spellings = [name for name in SPELLINGS if "fence" not in name or not is_in_text]
    text = SPELLINGS[draw(st.sampled_from(spellings))](written)
    if is_in_text:
        dialects = [*DIALECTS, *(VALUE_DIALECTS if isinstance(written, dict) and _are_identifiers(written) else [])]
        dialect = draw(st.sampled_from(dialects))
        text = DIALECTS[dialect](text, NAME) if dialect in DIALECTS else VALUE_DIALECTS[dialect](written, NAME)
    return WrittenCall(accepts, arguments, text, is_output=is_output, is_in_text=is_in_text)


def _are_identifiers(value: dict[str, Any]) -> bool:
    return all(name.isidentifier() for name in value)


def _tool(fields: dict[str, Any]) -> Tool:
    """A tool with these parameters: pairs of a type, and a default or `...`."""

    def function(**values: Any) -> None:
        """Send."""

    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty if default is ... else default)
        for name, (_, default) in fields.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {name: kind for name, (kind, _) in fields.items()}
    return tool(name=NAME)(function)


def _server_arguments(schema: dict[str, Any]) -> SchemaArguments:
    offered, checked_by = _schemas(schema)
    return SchemaArguments(offered, schema_validator(checked_by or offered))


async def accepted(call: WrittenCall, end: int) -> list[Any]:
    """The arguments with which calls would run, of the text up to `end`."""
    calls = [ToolCall(id="1", name=NAME, arguments=call.text[:end])]
    if call.is_in_text:
        calls = find_calls(call.text[:end], {NAME})[1]
    target = Target(NAME, call.accepts, is_output=call.is_output)
    arguments = []
    for each in calls:
        try:
            arguments.append((await prepare(each, ParsedArguments.of(each.arguments), target)).arguments)
        except (ToolCallError, StructuredOutputError):
            continue
    return arguments


async def check_each_cut(call: WrittenCall) -> int:
    """Cut the text everywhere; returns how many of the cut texts are accepted.

    Raises:
        AssertionError: one is accepted with other arguments than the whole text.
    """
    count = 0
    meant = valid(call.accepts, call.arguments)
    assert not isinstance(meant, Exception)
    # Some spellings are read in another way, or not at all, if they are whole too.
    whole = await accepted(call, len(call.text)) or [meant]
    for end in range(1, len(call.text)):
        if arguments := await accepted(call, end):
            assert arguments == whole, f"{call.text[:end]!r} is accepted as {arguments}, not as {whole}"
            count += 1
    return count
