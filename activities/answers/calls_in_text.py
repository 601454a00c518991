"""Calls of tools that a model without native tool calls wrote into its text, and how such a model is told to.

The form asked for is that of LangChain's structured chat agent: one JSON object in a ```json fence. What weaker models make
of it is read in the dialects that they were trained on: the keys below; Hermes' and Qwen's `<tool_call>`, Llama's
`<|python_tag|>` and `<function=name>`, Mistral's `[TOOL_CALLS]`. Arguments stay as the model wrote them: `prepare_call`
mends them. Its shape alone says whether something is a call, never the prose around it:

| where it stands | JSON in the exact shape of a call | broken JSON that begins like one |
|---|---|---|
| in a fence or tag | a call, whatever its name | of a known tool only |
| in the prose | of a known tool only | never |
| alone, as the whole text | of a known tool only | of a known tool only |
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mulligan.activities.answers.json_places import Places, Value
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
"""What may stand beside a name and arguments. A `description` may not: so a tool's definition, echoed, is no call."""

FINAL = "finalanswer"

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
"""For each kind of block: a mark that ends it wherever it stands, and what must follow JSON that held such marks."""
_BETWEEN = re.compile(r"[\s,;]*(?=[{\[])")
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")


def find_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """Read the calls in what a model said. Never raises.

    Args:
        text: the whole answer.
        names: the tools that there are.

    Returns:
        The text without the calls, and the calls: `id` is "", `arguments` is the slice of the text that the model wrote,
        or, where it wrote them as a JSON string that holds JSON, what that holds. LangChain's "Final Answer" is no call:
        its input is the text then.
    """
    blocks = list(Finder(text, frozenset(names)).blocks())
    calls = [found for block in blocks for found in block.found if isinstance(found, ToolCall)]
    finals = [found for block in blocks for found in block.found if isinstance(found, str)]
    if finals or not blocks:
        return "\n\n".join(finals) if finals else text, calls
    parts, at = [], 0
    for block in blocks:
        # LangChain's line before the fence says nothing of its own.
        parts.append(text[at : block.start].rstrip().removesuffix("Action:"))
        at = block.end
    parts.append(text[at:])
    return "\n\n".join(part.strip() for part in parts if part.strip()), calls


def describe(tools: Sequence[ToolDefinition]) -> str:
    """What the instructions say of the tools, to a model that is shown them in no other way."""
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
    """A call in the form that `describe` asks for, for a server that takes no `tools`. `find_calls` reads it back.

    Arguments that are no JSON stand in it as a string: the model sees what it wrote, in a block that shows how to write.
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
    """A part of the text that is calls and nothing else. What was found in it: calls, and final answers (str)."""

    start: int
    end: int
    found: list[ToolCall | str]


class Finder:
    """One reading of one text."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self.text = text
        self.names = names
        self.places = Places(text)
        self._thought_until = text.rfind("</think>")

    def blocks(self) -> Iterator[Block]:
        """Give the blocks of calls, in their order."""
        start = len(self.text) - len(self.text.lstrip())
        if self.text[start : start + 1] in CLOSER and self.places.json_end(start, raw_breaks=False)[0] is None:
            # Broken and alone: looked at first, as its strings may hold fences and tags.
            value = self.places.skip(start, len(self.text))
            found = self._calls(value, trusted=False, clean=False)
            if found and _ENDS["text"][1].match(self.text, value.end):
                yield Block(start, len(self.text), found)
                return
        at = 0
        while not self.places.exhausted and (mark := _MARK.search(self.text, at)):
            block, at = self._block(mark)
            if block:
                yield block

    def _block(self, mark: re.Match[str]) -> tuple[Block | None, int]:
        """What a mark begins, and where to go on. A block of something else is passed over, with all that it holds."""
        text, start, at, named = self.text, mark.start(), mark.end(), mark["named"]
        if mark["think"]:
            # Drafts of calls are no calls.
            return None, text.find("</think>", at) if at <= self._thought_until else at
        if mark["bare"]:
            end, stopped = self.places.json_end(start, raw_breaks=False)
            found = self._calls(Value(start, end, True), trusted=False, clean=True) if end else []
            return (Block(start, end, found) if end and found else None), max(end or stopped, start + 1)
        if mark["fence"] and (inner := _MARK.match(text, at)) and (inner["tag"] or inner["named"]):
            block, at = self._block(inner)
            closing = _ENDS["fence"][1].match(text, at)
            at = closing.end() if closing else at
            return (Block(start, at, block.found) if block else None), at
        if mark["tag"] == "[TOOL_CALLS]" and (mistral := _MISTRAL.match(text, at)):
            named, at = mistral["named"], mistral.end()
        kind = "fence" if mark["fence"] else "tag"
        found, at = self._values(at, kind, named)
        closing = _ENDS[kind][1].match(text, at)
        if closing:
            at = closing.end()
        elif mark["fence"]:
            at = max(at, text.find("```", at) + 3)
        return (Block(start, at, found) if found else None), at

    def _values(self, at: int, kind: str, named: str | None) -> tuple[list[ToolCall | str], int]:
        """The calls of a block: all of its values are calls, or it is something else."""
        found: list[ToolCall | str] = []
        limit = -1
        while self.text[at : at + 1] in CLOSER and not self.places.exhausted:
            end, stopped = self.places.json_end(at, raw_breaks=True)
            value = Value(at, end or at, True)
            if not end:
                if limit < at:
                    mark = _ENDS[kind][0].search(self.text, at)
                    limit = mark.start() if mark else len(self.text)
                    self.places.read += limit - at
                self.places.ahead -= max(0, stopped - limit)
                value = self.places.extent(at, limit, _ENDS[kind][1])
            if named:
                one = self._call(named, value, trusted=True, clean=bool(end), depth=0)
                return ([one] if one else []), value.end
            more = self._calls(value, trusted=True, clean=bool(end))
            if not more:
                return [], value.end
            found += more
            at = value.end
            between = _BETWEEN.match(self.text, at)
            if not value.whole or not between:
                break
            at = between.end()
        return found, at

    def _calls(self, value: Value, *, trusted: bool, clean: bool, depth: int = 0) -> list[ToolCall | str]:
        """The calls that a value is; none if it is anything else. `depth`: the brackets around it, for what is cut off."""
        if depth > 4:
            return []
        options = {"trusted": trusted, "clean": clean}
        found: list[ToolCall | str] = []
        if self.text[value.start] == "[":
            items = list(self.places.items(value))
            for item in items:
                more = self._calls(item, **options, depth=depth + 1) if self.text[item.start] == "{" else []
                # What was cut off before it could be told what it is does not take back the calls before it.
                if not more and (item is not items[-1] or item.whole):
                    return []
                found += more
            return found
        members = self.places.members(value)
        beside = members.keys() - BESIDE
        for key in beside if len(beside) == 1 else ():
            inner = members[key]
            begin = self.text[inner.start : inner.start + 1]
            if (key in LISTS and begin == "[") or (key in WRAPPERS and begin == "{"):
                return self._calls(inner, **options, depth=depth + 1)
        called, given = beside & set(NAMES), beside & set(ARGUMENTS)
        if len(called) != 1 or len(given) > 1 or not self._is_said_to_be_call(members):
            return []
        other = beside - called - given
        key = called.pop()
        name, name_at = self.places.string(members[key]), members[key]
        arguments = members[given.pop()] if given else None
        if name is None or not name_at.whole:
            return []
        if other:
            # Of broken arguments a part may seem to stand behind them: they are all that follows, and no JSON.
            if clean or not arguments or any(members[beyond].start < arguments.start for beyond in other):
                return []
            arguments = Value(arguments.start, value.end, False)
        if key == "action" and name not in self.names and re.sub(r"[\s_-]", "", name).lower() == FINAL:
            said = self.places.string(arguments) if arguments else None
            return [self.text[arguments.start : arguments.end].strip() if said is None else said] if arguments else []
        if arguments is None or arguments.start == arguments.end:
            return self._without(name, name_at, value, said=set(members))
        call = self._call(name, arguments, trusted=trusted, clean=clean, depth=depth + 1)
        return [call] if call else []

    def _call(self, name: str, arguments: Value, *, trusted: bool, clean: bool, depth: int) -> ToolCall | None:
        """The call, if its name and its arguments may be such where they stand."""
        known = name in self.names
        raw = self.text[arguments.start : arguments.end].strip()
        if not known and not (trusted and clean and _TOOL_NAME.fullmatch(name)):
            return None
        if raw[:1] in {'"', "'"} and arguments.whole:
            said = self.places.string(arguments) or ""
            is_json = said.lstrip()[:1] in CLOSER
            raw = said.strip() if is_json or not said.strip() else json.dumps(said, ensure_ascii=False)
        elif raw == "null":
            raw = ""
        elif not arguments.whole:
            for _ in range(depth):  # the brackets around the arguments are none of theirs
                if raw[-1:] in OPENER and raw[:-1].rstrip()[-1:] in OPENER:
                    raw = raw[:-1].rstrip()
        if not known and raw[:1] != "{":
            return None
        if raw.startswith("{") and clean and _is_schema(raw):
            return None
        return ToolCall(id="", name=name, arguments=raw)

    def _without(self, name: str, name_at: Value, value: Value, *, said: set[str]) -> list[ToolCall | str]:
        """A call without arguments. Where the text stops before they come, what is there of them is given: it is no JSON."""
        tail = self.text[name_at.end : value.end].strip()
        if name not in self.names:
            return []
        if said & set(ARGUMENTS) or (tail and not value.whole):
            return [ToolCall(id="", name=name, arguments=tail)]
        closed = value.whole or value.end < len(self.text)
        return [ToolCall(id="", name=name, arguments="")] if closed and len(said) == 1 else []

    def _is_said_to_be_call(self, members: dict[str, Value]) -> bool:
        said = self.places.string(members["type"]) if "type" in members else "function"
        return said in {"function", "function_call", "tool_call", "tool_use", "tool"}


def _is_schema(raw: str) -> bool:
    """Whether what stands in place of arguments is a JSON schema: a definition of a tool, echoed, is no call of it."""
    if len(raw) > 20_000 or '"properties"' not in raw:
        return False
    try:
        value = json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return False
    return value.get("type") == "object" and isinstance(value.get("properties"), dict)
