"""Read the tool calls that a model without native tool calls writes into its text, and tell such a model how to write them.

The instructions ask for the form of LangChain's structured chat agent: one JSON object in a ```json fence. The forms that
weaker models were trained on are read too: the keys below; `<tool_call>` of Hermes and Qwen, `<|python_tag|>` and
`<function=name>` of Llama, `[TOOL_CALLS]` of Mistral. Arguments stay as the model wrote them;
`prepare_call` repairs them. Only the form of the JSON, never the prose around it, decides whether it is a call:

| where it is | JSON in the exact form of a call | broken JSON that begins like a call |
|---|---|---|
| in a fence or tag | a call, whatever its name | only of a known tool |
| in the prose | only of a known tool | never |
| the whole text | only of a known tool | only of a known tool |
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from mulligan.activities.answers.json_reader import JsonReader, Value
from mulligan.activities.answers.json_tokens import CLOSER, OPENER
from mulligan.activities.answers.repair_json import NotJson, parse_json
from mulligan.values import ToolCall, well_formed
from mulligan.wire.agent_facts import ToolDefinition

__all__ = ["as_text", "describe", "find_calls"]

NAMES = ("name", "tool", "tool_name", "action", "function", "function_name")
ARGUMENTS = ("arguments", "args", "parameters", "params", "input", "tool_input", "tool_args", "action_input", "kwargs")
WRAPPERS = ("function", "function_call", "tool_call")
LISTS = ("tool_calls", "function_calls")
BESIDE = {
    *("id", "call_id", "tool_call_id", "type", "index", "role", "content", "refusal"),
    *("thought", "thoughts", "reasoning"),
}
"""Keys that a call may have beside its name and arguments. Not `description`: a tool's repeated definition is not a call."""

FINAL = "finalanswer"
"""LangChain's action for the final answer, without spaces and in lower case."""
MAX_NESTING = 4
"""Lists and wrappers that a call may be within."""

_MARK = re.compile(
    r"""(?P<fence>```)[\w+-]*\s*|(?P<think><think>)|<function=["']?(?P<named>[^\s<>"']{1,128})["']?>\s*
    |(?P<tag><(?:tool_calls?|function_call)>|<\|python_tag\|>|\[TOOL_CALLS\])\s*
    |(?P<bare>(?:\[\s*)?\{\s*")""",
    re.VERBOSE,
)
_MISTRAL = re.compile(r"(?P<named>[\w.-]{1,128})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_ENDS = {
    "fence": (re.compile(r"```"), re.compile(r"[\s}\],;]*(?:```|\Z)")),
    "tag": (
        re.compile(
            r"</(?:tool_calls?|function_call|function)>|<(?:tool_calls?|function_call)>|<function=|<\|\w+\|>|\[TOOL_CALLS\]"
        ),
        re.compile(r"[\s}\]]*(?:</(?:tool_calls?|function_call|function)>\s*|<\|(?:eom_id|eot_id|im_end)\|>|\Z)+"),
    ),
    "text": (re.compile(r"\Z"), re.compile(r"[\s}\]]*\Z")),
}
"""For each kind of block: the mark that ends it, and what must follow JSON that contains such marks itself."""
_BETWEEN = re.compile(r"[\s,;]*(?=[{\[])")
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")


def find_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """Read the calls in an answer. Never raises.

    Args:
        text: The whole answer.
        names: The names of the tools.

    Returns:
        The text without the calls, and the calls. `id` is "", and `arguments` is a slice of the text; if the model wrote
        the arguments as a JSON string that contains JSON, it is that JSON. LangChain's "Final Answer" is not a call: its
        input becomes the text.
    """
    blocks = list(CallReader(text, frozenset(names)).blocks())
    calls = [item for block in blocks for item in block.items if isinstance(item, ToolCall)]
    finals = [item for block in blocks for item in block.items if isinstance(item, str)]
    if finals or not blocks:
        return "\n\n".join(finals) if finals else text, calls
    parts, at = [], 0
    for block in blocks:
        # LangChain's models write this line before the fence.
        parts.append(text[at : block.start].rstrip().removesuffix("Action:"))
        at = block.end
    parts.append(text[at:])
    return "\n\n".join(part.strip() for part in parts if part.strip()), calls


def describe(tools: Sequence[ToolDefinition]) -> str:
    """The part of the instructions that describes the tools, for a model whose requests contain no `tools`."""
    if not tools:
        return ""
    shown = "\n".join(
        f"- `{tool.name}`: {tool.description.strip() or 'no description'}\n"
        f"  arguments: {json.dumps(tool.parameters, ensure_ascii=False, separators=(',', ':'))}"
        for tool in tools
    )
    return (
        "# Tools\n\nYou can call tools. To call one, write one JSON object in a json code fence, with the tool's name and "
        f"its arguments:\n\n{as_text('NAME', '{...}', check=False)}\n\n"
        "For several calls at once, write a JSON list of such objects in one fence. Then stop: write nothing after the "
        "fence and never make up a result; it is sent to you in the next message. When you need no tool, answer in plain "
        f"text, without such a fence.\n\nThe tools, each with the JSON schema of its arguments:\n{shown}"
    )


def as_text(call_name: str, raw_arguments: str, *, check: bool = True) -> str:
    """A call as text, in the form that `describe` asks for. `find_calls` can read it again.

    Arguments that are no JSON are written as a JSON string, so the block is valid JSON and shows the model its own text.
    """
    raw = raw_arguments.strip() or "{}"
    if check:
        try:
            parse_json(raw)
        except NotJson:
            raw = json.dumps(well_formed(raw), ensure_ascii=False)
    return f'```json\n{{"name": {json.dumps(call_name, ensure_ascii=False)}, "arguments": {raw}}}\n```'


@dataclass(frozen=True)
class Block:
    """A part of the text that contains nothing but calls. `items`: the calls, and final answers as text."""

    start: int
    end: int
    items: list[ToolCall | str]


@dataclass(frozen=True)
class _Context:
    """Where a value is. `trusted`: in a fence or tag. `strict`: it is valid JSON. `depth`: the brackets around it."""

    trusted: bool
    strict: bool
    depth: int = 0

    @property
    def inner(self) -> _Context:
        """The context of what the value contains."""
        return replace(self, depth=self.depth + 1)


class CallReader:
    """Reads the calls in one text."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self.text = text
        self.names = names
        self.json = JsonReader(text)
        self._last_thought_end = text.rfind("</think>")

    def blocks(self) -> Iterator[Block]:
        """The blocks of calls, in their order."""
        start = len(self.text) - len(self.text.lstrip())
        if self.text[start : start + 1] in CLOSER and self.json.json_end(start, raw_breaks=False)[0] is None:
            # The whole text is broken JSON: read first, as its strings may contain fences and tags.
            value = self.json.value(start, len(self.text))
            items = self._calls(value, _Context(trusted=False, strict=False))
            if items and _ENDS["text"][1].match(self.text, value.end):
                yield Block(start, len(self.text), items)
                return
        at = 0
        while not self.json.exhausted and (mark := _MARK.search(self.text, at)):
            block, at = self._block(mark)
            if block:
                yield block

    def _block(self, mark: re.Match[str]) -> tuple[Block | None, int]:
        """The block that begins with a mark, None if it contains anything else; and the position after it."""
        text, start, at, named = self.text, mark.start(), mark.end(), mark["named"]
        if mark["think"]:
            # A model drafts calls in its thoughts. They are not calls.
            return None, text.find("</think>", at) if at <= self._last_thought_end else at
        if mark["bare"]:
            end, stopped = self.json.json_end(start, raw_breaks=False)
            context = _Context(trusted=False, strict=True)
            items = self._calls(Value(start, end, True), context) if end else []
            return (Block(start, end, items) if end and items else None), max(end or stopped, start + 1)
        if mark["fence"] and (inner := _MARK.match(text, at)) and (inner["tag"] or inner["named"]):
            block, at = self._block(inner)
            closing = _ENDS["fence"][1].match(text, at)
            at = closing.end() if closing else at
            return (Block(start, at, block.items) if block else None), at
        if mark["tag"] == "[TOOL_CALLS]" and (mistral := _MISTRAL.match(text, at)):
            named, at = mistral["named"], mistral.end()
        kind = "fence" if mark["fence"] else "tag"
        items, at = self._values(at, kind, named)
        closing = _ENDS[kind][1].match(text, at)
        if closing:
            at = closing.end()
        elif mark["fence"]:
            at = max(at, text.find("```", at) + 3)
        return (Block(start, at, items) if items else None), at

    def _values(self, at: int, kind: str, named: str | None) -> tuple[list[ToolCall | str], int]:
        """The calls of a block, none if any of its values is not a call; and the position after its last value."""
        items: list[ToolCall | str] = []
        limit = -1
        while self.text[at : at + 1] in CLOSER and not self.json.exhausted:
            end, stopped = self.json.json_end(at, raw_breaks=True)
            value = Value(at, end or at, True)
            if not end:
                if limit < at:
                    mark = _ENDS[kind][0].search(self.text, at)
                    limit = mark.start() if mark else len(self.text)
                    self.json.read += limit - at
                self.json.ahead -= max(0, stopped - limit)
                value = self.json.extent(at, limit, _ENDS[kind][1])
            context = _Context(trusted=True, strict=bool(end))
            if named:
                call = self._call(named, value, context)
                return ([call] if call else []), value.end
            more = self._calls(value, context)
            if not more:
                return [], value.end
            items += more
            at = value.end
            between = _BETWEEN.match(self.text, at)
            if not value.whole or not between:
                break
            at = between.end()
        return items, at

    def _calls(self, value: Value, context: _Context) -> list[ToolCall | str]:
        """The calls that a value contains; none if it is anything else."""
        if context.depth > MAX_NESTING:
            return []
        if self.text[value.start] == "[":
            return self._calls_in_list(value, context.inner)
        members = self.json.members(value)
        keys = members.keys() - BESIDE
        if len(keys) == 1:
            key = next(iter(keys))
            begin = self.text[members[key].start : members[key].start + 1]
            if (key in LISTS and begin == "[") or (key in WRAPPERS and begin == "{"):
                return self._calls(members[key], context.inner)
        return self._call_in_object(value, members, context)

    def _calls_in_list(self, value: Value, context: _Context) -> list[ToolCall | str]:
        calls: list[ToolCall | str] = []
        items = list(self.json.items(value))
        for item in items:
            more = self._calls(item, context) if self.text[item.start] == "{" else []
            # A last item that is cut off may be of any kind. The calls before it remain calls.
            if not more and (item is not items[-1] or item.whole):
                return []
            calls += more
        return calls

    def _call_in_object(self, value: Value, members: dict[str, Value], context: _Context) -> list[ToolCall | str]:
        """The call, or the final answer, that an object is."""
        keys = members.keys() - BESIDE
        name_keys, argument_keys = keys & set(NAMES), keys & set(ARGUMENTS)
        if len(name_keys) != 1 or len(argument_keys) > 1 or not self._has_type_of_call(members):
            return []
        name_key = name_keys.pop()
        name = self.json.string(members[name_key])
        if name is None or not members[name_key].whole:
            return []
        arguments = members[argument_keys.pop()] if argument_keys else None
        if others := keys - {name_key} - set(ARGUMENTS):
            # Broken arguments may look as if their last part was beside them: then all that follows belongs to them.
            if context.strict or not arguments or any(members[key].start < arguments.start for key in others):
                return []
            arguments = Value(arguments.start, value.end, False)
        if name_key == "action" and name not in self.names and re.sub(r"[\s_-]", "", name).lower() == FINAL:
            return self._final_answer(arguments)
        if arguments is None or arguments.start == arguments.end:
            return self._call_without_arguments(name, members[name_key], value, set(members))
        call = self._call(name, arguments, context.inner)
        return [call] if call else []

    def _final_answer(self, arguments: Value | None) -> list[ToolCall | str]:
        if arguments is None:
            return []
        text = self.json.string(arguments)
        return [self.text[arguments.start : arguments.end].strip() if text is None else text]

    def _call(self, name: str, arguments: Value, context: _Context) -> ToolCall | None:
        """The call, if one with this name and these arguments is allowed in its context."""
        is_known = name in self.names
        raw = self.text[arguments.start : arguments.end].strip()
        if not is_known and not (context.trusted and context.strict and _TOOL_NAME.fullmatch(name)):
            return None
        if raw[:1] in {'"', "'"} and arguments.whole:
            content = self.json.string(arguments) or ""
            is_json = content.lstrip()[:1] in CLOSER
            raw = content.strip() if is_json or not content.strip() else json.dumps(content, ensure_ascii=False)
        elif raw == "null":
            raw = ""
        elif not arguments.whole:
            raw = _without_outer_closers(raw, context.depth)
        if not is_known and raw[:1] != "{":
            return None
        if raw.startswith("{") and context.strict and _is_schema(raw):
            return None
        return ToolCall(id="", name=name, arguments=raw)

    def _call_without_arguments(self, name: str, position: Value, value: Value, keys: set[str]) -> list[ToolCall | str]:
        """A call whose object has no arguments. If the text ends before them, their beginning is kept: it is not JSON."""
        tail = self.text[position.end : value.end].strip()
        if name not in self.names:
            return []
        if keys & set(ARGUMENTS) or (tail and not value.whole):
            return [ToolCall(id="", name=name, arguments=tail)]
        closed = value.whole or value.end < len(self.text)
        return [ToolCall(id="", name=name, arguments="")] if closed and len(keys) == 1 else []

    def _has_type_of_call(self, members: dict[str, Value]) -> bool:
        kind = self.json.string(members["type"]) if "type" in members else "function"
        return kind in {"function", "function_call", "tool_call", "tool_use", "tool"}


def _without_outer_closers(raw: str, depth: int) -> str:
    """Cut-off arguments without the closers of the brackets around them."""
    for _ in range(depth):
        if raw[-1:] in OPENER and raw[:-1].rstrip()[-1:] in OPENER:
            raw = raw[:-1].rstrip()
    return raw


def _is_schema(raw: str) -> bool:
    """Whether the arguments are a JSON schema: then the model repeated the definition of a tool."""
    if len(raw) > 20_000 or '"properties"' not in raw:
        return False
    try:
        value = json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return False
    return value.get("type") == "object" and isinstance(value.get("properties"), dict)
