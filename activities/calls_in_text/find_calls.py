"""Read the tool calls that a model without native tool calls writes into its text.

Calls are the block that ends what is left of the text without the model's thoughts (`without_thoughts`): nothing but further
calls, white space, and what ends tags and fences stands after one. Any other is an example.

The instructions ask for the form of LangChain's structured chat agent: one JSON object in a ```json fence. The forms that
weaker models were trained on are read too: the keys below; `<tool_call>` of Hermes and Qwen, `<|python_tag|>` and
`<function=name>` of Llama, `[TOOL_CALLS]` of Mistral; arguments in `<parameter=name>` of Qwen, `<invoke name="name">` of
Claude; calls as Python writes them of Llama and Gemma. Arguments stay as the model wrote them; `prepare_call` repairs them.
Only the form of the JSON, never the prose before it, decides whether it is a call. A call of a tool that does not exist is
one too, where it plainly is a call: its feedback names the tools that there are.

| where it is | JSON in the exact form of a call | broken JSON that begins like a call | Python, or parameters in tags |
|---|---|---|---|
| in a tag, or in a fence of TOOL_FENCES | any name | any name | any name |
| in another fence | known tools, or PLAIN keys | known tools, or PLAIN keys | never |
| the whole of what is left | known tools, or PLAIN keys | known tools, or PLAIN keys | known tools, as Python |
| from the beginning of a line on | known tools, or PLAIN keys | never | never |
| elsewhere | known tools | never | never |

Known tools are those of exactly that name: titles and menus in answers often resemble names of tools. Of any other name,
also if it is spelled a little differently from a tool's, a call must have an object of arguments.
Calls in Python, and parameters in tags, in a fence of another language are examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

from mulligan.activities.answers.json_tokens import CLOSER, OPENER, NoToken, Token, strict_token, value_end
from mulligan.activities.answers.without_thoughts import without_thoughts
from mulligan.activities.calls_in_text.python_calls import python_calls
from mulligan.values import ToolCall, well_formed

NAMES = ("name", "tool", "tool_name", "action", "function", "function_name")
ARGUMENTS = ("arguments", "args", "parameters", "params", "input", "tool_input", "tool_args", "action_input", "kwargs")
WRAPPERS = {"function": "{", "function_call": "{", "tool_call": "{", "tool_calls": "[", "function_calls": "["}
"""Keys of an object that contains a call, or a list of calls; and what their values begin with."""
TYPES = ("function", "function_call", "tool_call", "tool_use", "tool")
PLAIN = ("name", "arguments")
"""Keys of name and arguments that hardly anything but a call has: in a JSON answer, `name` and `input` may be anything."""
TOOL_FENCES = frozenset({"tool_code", "tool_call", "tool_calls", "tool_use", "function_call"})
BESIDE = ("id", "call_id", "tool_call_id", "index", "role", "content", "refusal", "thought", "thoughts", "reasoning")
"""Keys beside name, arguments and `type` that a call may have. Not `description`: a repeated definition is not a call."""

FINAL = "finalanswer"
"""LangChain's action for the final answer, without spaces and in lower case."""
MAX_NESTING = 4
"""Lists and wrappers that a call may be within."""
MAX_WASTED = 3
"""How often the text's length may be read in vain. Reading any text costs at most `MAX_WASTED + 9` times its length."""
MAX_BROKEN = 1_000
"""Limit of places that begin like JSON but are not: for each, Python's JSON decoder counts all lines before it."""

_STRICT = json.JSONDecoder(parse_int=str, parse_float=str)
_LOOSE = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
"""Decoders for the extent of JSON. Both accept numbers of any size; `_LOOSE` also accepts raw line breaks in strings."""


def _key(*names: str) -> str:
    return rf"""["']?(?:{"|".join(names)})["']?\s*+:\s*+"""


# Possessive quantifiers (`*+`) avoid the time and memory of backtracking.
_STRING = r"""(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+')"""
_STRINGS = re.compile(_STRING, re.DOTALL)
_BESIDE = rf"""(?:{_key(*BESIDE)}(?:{_STRING}|[\w.-]++)|{_key("type")}["'](?:{"|".join(TYPES)})["'])\s*+"""
_NAME = rf"""(?P<name_key>{_key(*NAMES)})(?P<quote>["'])(?P<name>[^"'\\\n]{{1,128}}+)(?P=quote)"""
_BROKEN_CALL = re.compile(
    rf"""[\s\[]*+\{{\s*+(?:{_BESIDE},\s*+|{_key(*WRAPPERS)}[\[{{][\s\[{{]*+)*+{_NAME}\s*+""", re.DOTALL
)
"""The beginning of a call in broken JSON, up to what follows its name: its arguments, `_NO_ARGUMENTS`, or neither."""
_ARGUMENTS_KEY = rf"""(?:{_BESIDE},\s*+)*+(?P<arguments_key>{_key(*ARGUMENTS)})(?=\S)"""
_BEFORE_ARGUMENTS = re.compile(rf",?\s*+{_ARGUMENTS_KEY}", re.DOTALL)
_NO_ARGUMENTS = re.compile(r",?\s*+\}")
_LAST_WORD = re.compile(r"[\w.+-]++")
"""A number or literal at the end of broken JSON: `12` may be the beginning of 1200."""
_OTHER_KEY = re.compile(rf""",\s*+(?!{_key(*ARGUMENTS, *BESIDE, "type")})(["'])[\w ]++\1\s*+:""")
_ARGUMENTS_FIRST = re.compile(rf"""\{{\s*+{_ARGUMENTS_KEY}(?P<raw>.*),\s*+{_NAME}[\s}}]*+\Z""", re.DOTALL)
_AFTER_CALL = re.compile(rf"(?:[\s}}\],;]++|{_BESIDE})*+", re.DOTALL)
_MARK = re.compile(
    r"""(?P<tag>(?:```[\w+-]*+\s*+)?+(?:
        (?:<(?:tool_calls?|function_calls?)>\s*+)?+<(?:function=|invoke\s+name=)["']?(?P<llama>[^\s<>"']{1,128})["']?>
        |<(?:tool_calls?|function_calls?)>|<\|python_tag\|>
        |\[TOOL_CALLS\]\s*+(?:(?P<mistral>[\w.-]{1,128}+)(?:\[CALL_ID\]\w*+)?(?:\[ARGS\])?\s*+(?=[{"]))?))
    |(?P<fence>```(?P<language>[\w+-]*+))
    |(?P<whole>\A\s*+)(?=\{|\[\s*+\{)
    |(?P<line>^[ \t]*+)?(?=(?:\[\s*+)?+\{\s*+")""",
    re.VERBOSE | re.MULTILINE,
)
_VALUE = re.compile(r"[\s,;]*+(?=\{|\[\s*+\{)")
_NAMED_VALUE = re.compile(r'[\s,;]*+(?=\{|\[\s*+\{|")')
_TAGS = "tool_calls?|function_calls?|function|invoke"
_END = re.compile(rf"```|</?(?:{_TAGS})>|<function=|<invoke\s|<\|\w+\|>|\[TOOL_CALLS\]")
_AFTER_VALUE = re.compile(rf"[\s}}\],;]*+(?:[{{[]|```|</(?:{_TAGS})>|<\||\Z)")
_CLOSING_TAGS = re.compile(rf"[\s}}\],;]*+(?:(?:</(?:{_TAGS})>|<\|(?:e|im_end)\w*\|>)\s*+)*+")
_CLOSERS = " \t\r\n}],;"
_PARAMETER = re.compile(r"""\s*+<parameter(?:=|\s+name=)["']?(?P<key>[^\s<>"']{1,128})["']?>""")
_END_OF_FUNCTION = re.compile(r"\s*+</(?:function|invoke)>")
_PYTHON = re.compile(r"\s*+(?:\[\s*+)?+[A-Za-z_][\w.]*+\(")
"""The beginning of a call in Python, or of a list of them."""
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")
_OBJECT = re.compile(r"\{(?!\s*+(?:\.\.\.|…))")
"""The beginning of an object that is not a placeholder, as in an explanation of calls."""
_GAP = re.compile(r"[\s,:]*+")
_NOTHING = re.compile(rf"(?:\s|```|</(?:{_TAGS})>|<\|\w+\|>)*+")
_FENCE = re.compile(r"```([\w+-]*+)")


def find_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """Read the calls that an answer ends with. Never raises.

    Args:
        text: The whole answer.
        names: The names of the tools.

    Returns:
        The text without the calls, and the calls. `id` is "", and `arguments` is a slice of the text; if the model wrote
        the arguments as a JSON string that contains JSON, it is that JSON. LangChain's "Final Answer" is not a call: its
        input becomes the text. Thoughts stay in the text.
    """
    left = without_thoughts(text)
    blocks = CallReader(left, frozenset(names)).blocks()
    calls = [item for block in blocks for item in block.items if isinstance(item, ToolCall)]
    finals = [item for block in blocks for item in block.items if isinstance(item, str)]
    if finals or not blocks:
        return "\n\n".join(finals) if finals else text, calls
    # LangChain's models write this line before the fence.
    parts = [text[: blocks[0].start].rstrip().removesuffix("Action:")]
    for block, end in zip(blocks, [*(each.start for each in blocks[1:]), len(text)], strict=True):
        if text[block.end : end] != left[block.end : end]:
            parts.append(text[block.end : end])  # a thought
    return "\n\n".join(part.strip() for part in parts if part.strip()), calls


Item = ToolCall | str
"""A call, or a final answer as text."""
Trust = Literal["any", "plain", "known"]
"""Which names make a call of what has its form: any name; any name with PLAIN keys; those of the tools."""


class Block(NamedTuple):
    """A part of the text that contains nothing but calls."""

    start: int
    end: int
    items: list[Item]


class CallReader:
    """Reads the calls in one text, which has no thoughts.

    `read` counts the characters that it has read, `wasted` those of them that were not JSON, and `broken` the places that
    begin like JSON but are none.
    """

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self.text = text
        self.names = names
        self.read = self.wasted = self.broken = 0

    def blocks(self) -> list[Block]:
        """The blocks of calls that the text ends with, in their order."""
        if _PYTHON.match(self.text) and (items := self._python("known", self.text)):
            return [Block(len(self.text) - len(self.text.lstrip()), len(self.text), items)]
        blocks: list[Block] = []
        end = len(self.text)
        for block in reversed(list(self._possible_blocks())):
            if not _NOTHING.fullmatch(self.text, block.end, end):
                break
            blocks.append(block)
            end = block.start
        return blocks[::-1]

    def _possible_blocks(self) -> Iterator[Block]:
        at = 0
        while self.wasted <= MAX_WASTED * len(self.text) and self.broken < MAX_BROKEN:
            if not (mark := _MARK.search(self.text, at)):
                return
            try:
                start = mark.start() if mark["tag"] or mark["fence"] else mark.end()
                if start == mark.end():
                    items, at = self._read_bare(mark)
                else:
                    items, at = self._end(mark, *(self._read_written(mark) or self._read_trusted(mark)))
            except RecursionError:
                return  # lists or objects of about a thousand levels
            if items:
                yield Block(start, at, items)

    def _read_bare(self, mark: re.Match[str]) -> tuple[list[Item], int]:
        """The calls in JSON that is in no fence or tag, and the position after it."""
        at = mark.end()
        end, is_json = self._decode(at, _STRICT)
        if is_json:
            return self._calls(self.text[at:end], "known" if mark["whole"] is mark["line"] is None else "plain"), end
        if mark["whole"] is not None:
            stop, is_whole = value_end(self.text, at)
            self._waste(stop - at)
            is_all = not is_whole or not self.text[stop:].strip(_CLOSERS)
            if is_all and (items := self._calls_in_broken(self.text[at : stop if is_whole else None], "plain")):
                return items, len(self.text)
        return [], max(end, at + 1)

    def _read_trusted(self, mark: re.Match[str]) -> tuple[list[Item], int]:
        """The calls in a fence or tag, none if it contains any other JSON; and the position after them."""
        name = mark["llama"] or mark["mistral"]
        trust: Trust = "any" if mark["tag"] or mark["language"] in TOOL_FENCES else "plain"
        items: list[Item] = []
        at = mark.end()
        while (begin := (_NAMED_VALUE if name else _VALUE).match(self.text, at)) and self.broken < MAX_BROKEN:
            at = begin.end()
            end, is_json = self._decode(at, _LOOSE)
            value, is_whole = self.text[at:end], True
            if not is_json:
                limit = _END.search(self.text, at)
                value, is_whole = self._broken_value(at, limit.start() if limit else len(self.text))
            if name:
                more = self._call(name, value, is_whole=is_whole, trust="any")
            elif is_json:
                more = self._calls(value, trust)
            else:
                more = self._calls_in_broken(value, trust)
            at += len(value)
            items = items + more if more else []
            if name or not more:
                break
        return items, at

    def _read_written(self, mark: re.Match[str]) -> tuple[list[Item], int] | None:
        """The calls in a fence or tag whose arguments are in tags, or which Python writes, and the position after them.

        None if it contains anything else. In a fence of another language they are an example, and no calls.
        """
        fence = _FENCE.match(mark[0])
        language = fence[1] if fence else ""
        if mark["llama"] and (written := self._parameters(mark.end())):
            items, at = self._call(mark["llama"], written[0], trust="any"), written[1]
        elif (
            not (mark["llama"] or mark["mistral"])
            and (mark["tag"] or language in TOOL_FENCES)
            and _PYTHON.match(self.text, mark.end())
        ):
            limit = _END.search(self.text, mark.end())
            at = limit.start() if limit else len(self.text)
            items = self._python("any", self.text[mark.end() : at])
            if not items:
                return None
        else:
            return None
        is_example = language not in ("", "json", *TOOL_FENCES)
        return [] if is_example else items, at

    def _end(self, mark: re.Match[str], items: list[Item], at: int) -> tuple[list[Item], int]:
        """The calls in a fence or tag that were read up to `at`, none if its fence contains more; and what follows it."""
        closed = _CLOSING_TAGS.match(self.text, at) if mark["tag"] else None
        at = closed.end() if closed else at
        if not mark[0].startswith("```"):
            return items, at
        end = self.text.find("```", at)
        rest = self.text[at : end if end >= 0 else len(self.text)]
        return [] if rest.strip(_CLOSERS) else items, end + 3 if end >= 0 else at

    def _decode(self, at: int, decoder: json.JSONDecoder) -> tuple[int, bool]:
        """The position up to which the text is JSON, from `at` on; and whether it is one whole value of it."""
        try:
            end = decoder.raw_decode(self.text, at)[1]
        except json.JSONDecodeError as error:
            # For a string without an end, the error has the position of its start, but the decoder read the whole text.
            self._waste((len(self.text) if error.msg.startswith("Unterminated") else error.pos) - at)
            self.broken += 1
            return error.pos, False
        self.read += end - at
        return end, True

    def _broken_value(self, at: int, limit: int) -> tuple[str, bool]:
        """The broken JSON at `at`, up to the end of its brackets or up to `limit`; and whether its brackets end there."""
        end, is_whole = value_end(self.text, at)
        self._waste(end - at)
        # Quotes that are wrong make a value appear to reach beyond the mark that ends it.
        is_whole = is_whole and bool(_AFTER_VALUE.match(self.text, end))
        return self.text[at : end if is_whole else limit], is_whole

    def _waste(self, length: int) -> None:
        self.read += length
        self.wasted += length

    def _parts(self, raw: str) -> list[str]:
        """The items of a JSON list, or the keys and values of a JSON object in turn, as they are written."""
        self.read += len(raw)
        parts: list[str] = []
        at = 1
        while (gap := _GAP.match(raw, at)) and gap.end() < len(raw) - 1:
            at = _LOOSE.raw_decode(raw, gap.end())[1]
            parts.append(raw[gap.end() : at])
        return parts

    def _python(self, trust: Trust, text: str) -> list[Item]:
        """The calls that the text consists of as Python writes them."""
        self._waste(len(text))
        calls = python_calls(text)
        each = [self._call(call.name, call.arguments, trust=trust) for call in calls]
        return [call for items in each for call in items] if all(each) else []

    def _parameters(self, at: int) -> tuple[str, int] | None:
        """Arguments that are written as tags, as JSON, and the position after them; None if there are none.

        If they are cut off, they are the rest of the text, which is not JSON. All values are texts.
        """
        values: dict[str, str] = {}
        start = at
        while begin := _PARAMETER.match(self.text, at):
            end = self.text.find("</parameter>", begin.end())
            if end < 0:
                break
            values[begin["key"]] = self.text[begin.end() : end].removeprefix("\n").removesuffix("\n")
            at = end + len("</parameter>")
        closing = _END_OF_FUNCTION.match(self.text, at)
        self.read += at - start
        if closing:
            return json.dumps(values, ensure_ascii=False), closing.end()
        if at == start and not begin:
            return None
        return self.text[start:], len(self.text)

    def _calls(self, raw: str, trust: Trust, *, depth: int = 0) -> list[Item]:
        """The calls that JSON contains; none if it is anything else."""
        if depth > MAX_NESTING or raw[0] not in CLOSER:
            return []
        parts = self._parts(raw)
        if raw[0] == "[":
            each = [self._calls(item, trust, depth=depth + 1) for item in parts]
            return [call for calls in each for call in calls] if all(each) else []
        members = {_string(key) or "": value for key, value in zip(parts[::2], parts[1::2], strict=True)}
        kind = members.pop("type", '"function"')
        keys = members.keys() - BESIDE
        wrapped = [members[key] for key, opener in WRAPPERS.items() if key in keys and members[key][0] == opener]
        if wrapped and len(keys) == 1:
            return self._calls(wrapped[0], trust, depth=depth + 1)
        name_keys, argument_keys = keys & set(NAMES), keys & set(ARGUMENTS)
        if len(name_keys) != 1 or len(argument_keys) > 1 or keys - name_keys - argument_keys:
            return []
        name_key = name_keys.pop()
        name = _string(members[name_key])
        if name is None or _string(kind) not in TYPES:
            return []
        if not argument_keys:
            return [ToolCall(id="", name=name, arguments="")] if name in self.names and len(parts) == 2 else []
        arguments_key = argument_keys.pop()
        return self._call(name, members[arguments_key], keys=(name_key, arguments_key), trust=trust)

    def _calls_in_broken(self, raw: str, trust: Trust) -> list[Item]:
        """The calls that broken JSON consists of; none if it does not begin like a call, or contains more."""
        self.read += len(raw)
        calls: list[Item] = []
        raw, at = raw.rstrip(), 0
        if first := _ARGUMENTS_FIRST.match(raw):
            end, is_whole = value_end(first["raw"], 0)
            if is_whole and first["raw"][end:].strip() and first["name"] not in self.names:
                return []  # other members follow: it is data
            # With the comma after them, arguments that are not closed are nowhere taken for whole ones.
            arguments = first["raw"] if is_whole else first["raw"] + ","
            return self._call(first["name"], arguments, keys=_keys(first, first), is_whole=is_whole, trust=trust)
        while at < len(raw):
            begin = _BROKEN_CALL.match(raw, at)
            if not begin:
                return []
            key = _BEFORE_ARGUMENTS.match(raw, begin.end())
            arguments, is_whole, at = self._broken_arguments(raw, begin, key)
            if arguments is None:
                return []
            more = self._call(begin["name"], arguments, keys=_keys(begin, key), is_whole=is_whole, trust=trust)
            if not more:
                return []
            calls += more
        return calls

    def _broken_arguments(
        self, raw: str, call: re.Match[str], key: re.Match[str] | None
    ) -> tuple[str | None, bool, int]:
        """The arguments of a call in broken JSON, None if it is not a call; whether they are whole; and what follows.

        What follows that is not another call belongs to the arguments: a quote or bracket in them is wrong.
        """
        is_known = call["name"] in self.names
        if key and not _LAST_WORD.fullmatch(raw, key.end()):
            start = key.end()
            end, is_whole = value_end(raw, start)
        elif empty := _NO_ARGUMENTS.match(raw, call.end()):
            start = call.end()
            end, is_whole = empty.end(), True
        else:
            # The text ends before or in the arguments, or their key is broken. What is there is not JSON.
            rest = raw[call.end() :]
            is_call = rest and is_known and not _OTHER_KEY.match(rest)
            return rest if is_call else None, False, len(raw)
        after = _AFTER_CALL.match(raw, end)
        at = after.end() if after else end
        if is_whole and (at == len(raw) or _BROKEN_CALL.match(raw, at)):
            return raw[start:end] if key else "", True, at
        if is_whole and not is_known and raw[start] == "{":
            return None, False, at  # other members follow: it is data
        before = _STRINGS.sub("", raw[call.start() : start])
        return _without_outer_closers(raw[start:], before), False, len(raw)

    def _call(
        self, name: str, raw: str, *, keys: tuple[str, str] = ("", ""), is_whole: bool = True, trust: Trust
    ) -> list[Item]:
        """The call, if one with this name and these arguments is allowed; or the final answer.

        `keys`: those of the name and of the arguments. `is_whole`: the arguments are not cut off.
        """
        is_trusted = trust == "any" or (trust == "plain" and keys == PLAIN)
        is_known = name in self.names
        content = _string(raw if is_whole else raw + raw[0])
        if keys[0] == "action" and not is_known and re.sub(r"[\s_-]", "", name).lower() == FINAL:
            return [raw if content is None else content]
        if not is_known and not (is_trusted and _TOOL_NAME.fullmatch(name)):
            return []
        if content is not None and is_whole:
            is_json = content.lstrip()[:1] in CLOSER
            raw = content.strip() if is_json or not content.strip() else json.dumps(content, ensure_ascii=False)
        elif raw == "null":
            raw = ""
        if _is_schema(raw) or not (is_known or _OBJECT.match(raw)):
            return []
        return [ToolCall(id="", name=name, arguments=raw)]


def _keys(name: re.Match[str], arguments: re.Match[str] | None) -> tuple[str, str]:
    """The keys of the name and of the arguments of a call in broken JSON."""
    return name["name_key"].strip(" \t\r\n:\"'"), arguments["arguments_key"].strip(" \t\r\n:\"'") if arguments else ""


def _string(raw: str) -> str | None:
    """The content of a string, also of a misspelled one; None if the text is not a string."""
    if raw[:1] not in {'"', "'"}:
        return None
    try:
        return str(well_formed(json.loads(strict_token(Token("string", raw))[0], strict=False)))
    except (NoToken, ValueError):
        return raw[1:-1]


def _without_outer_closers(raw: str, before: str) -> str:
    """Cut-off arguments without the closers of the brackets that are opened before them."""
    for _ in range(before.count("{") + before.count("[")):
        if raw[-1:] in OPENER and raw[:-1].rstrip()[-1:] in OPENER:
            raw = raw[:-1].rstrip()
    return raw


def _is_schema(raw: str) -> bool:
    """Whether the arguments are a JSON schema: then the model repeated the definition of a tool."""
    if not raw.startswith("{") or len(raw) > 20_000 or '"properties"' not in raw:
        return False
    try:
        value = json.loads(raw, strict=False)
    except ValueError:
        return False
    return value.get("type") == "object" and isinstance(value.get("properties"), dict)
