"""Generated answers of thoughts, calls and prose in any order, and which of their calls are meant."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from mulligan.activities.answers.repair_json import NotJson, parse_json, repair_json
from mulligan.activities.calls_in_text.find_calls import find_calls
from tests.support.cut_off_calls import DIALECTS, VALUE_DIALECTS

NAME = "send"
PAIRS = [
    ("<think>", "</think>"),
    ("<think>\n", "\n</think>\n\n"),
    ("<THINK>", "</Think>"),
    ("< think >", "</ think >"),
    ('<think lang="en">', "</think>"),
    ("<think>\n<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<Thought>", "</Thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reason>", "</reason>"),
    ("<reasoning>", "</reasoning>"),
    ("<reflection>", "</reflection>"),
    ("<scratchpad>", "</scratchpad>"),
    ("<inner_monologue>", "</inner_monologue>"),
    ("<antThinking>", "</antThinking>"),
    ("<analysis>", "</analysis>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<redacted_thinking>", "</redacted_thinking>"),
    ("<thought_process>", "</thought_process>"),
    ("[THINK]", "[/THINK]"),
    ("[think]", "[/think]"),
    ("[unused16]", "[unused17]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>\n\n", "\n\n<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|think|>", "<|/think|>"),
    ("<|thinking|>", "</|thinking|>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<unused94>thought\n", "<unused95>"),
    ("<|channel>thought\n", "<channel|>"),
]
"""Markers of thoughts whose closing ones also stand alone, if the opening ones are in the prompt."""
OPENED = [
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>"),
    ("<|think|>", "<|end|>"),
    ("```thinking\n", "\n```\n"),
    ("```thought\n", "\n```\n"),
]
"""Markers that stand in pairs only."""
AT_FIRST = [
    ("Here is my thought process: ", "Here is my response:"),
    ("Here's my thought process:\n", "\nHere's my response:\n"),
    ("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n"),
    ("analysisWe ", "assistantfinal"),
    ("analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final <|constrain|>json<|message|>"),
]
"""Markers of a thought at the beginning of an answer."""
CLOSERS = [closing for _, closing in [*PAIRS, *AT_FIRST]]
MARKERS = [marker.strip() for pair in PAIRS for marker in pair]

PROSE = st.lists(
    st.sampled_from(["It's so.", "Shall I pay?", "Well: 5 > 3", "a {set}", "[1, 2]", "`code`", "f(x)", "</b>", "*so*", "é"]),
    min_size=1,
    max_size=3,
).map(" ".join)  # fmt: skip
_TEXTS = st.lists(st.sampled_from(["a", " ", "it's", '"', "\\", "{", "}", "[", "\n", "```", *MARKERS]), max_size=4).map(
    "".join
)
_TAGGED = ["Gemma", "Python in a tag", "Qwen", "Claude"]


@dataclass(frozen=True)
class Answer:
    """`called`: the arguments of the calls that are meant. `prose`: what else it says that is no thought."""

    text: str
    called: list[dict[str, object]]
    prose: list[str]


@dataclass(frozen=True)
class _Part:
    kind: str
    text: str
    arguments: dict[str, object] | None = None


@st.composite
def _calls(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> _Part:
    """A call in one of the forms that are read at the end of any text."""
    arguments: dict[str, object] = {"n": draw(st.integers(0, 10**9)), "text": draw(texts)}
    dialect = draw(st.sampled_from([*DIALECTS, *_TAGGED]))
    if dialect in DIALECTS:
        raw = json.dumps(arguments, ensure_ascii=draw(st.booleans()))
        return _Part("call", DIALECTS[dialect](raw, NAME).removeprefix("So:\n"), arguments)
    plain = {"n": arguments["n"], "text": draw(st.sampled_from(["a", "it is", "<think>", "</think>", "[THINK] x"]))}
    return _Part("call", VALUE_DIALECTS[dialect](plain, NAME), plain)


@st.composite
def _thoughts(draw: st.DrawFn, opening: str, closing: str) -> str:
    """A thought with drafts of calls in it, and markers of other kinds."""
    drafts = _calls(st.just("draft")).map(lambda call: call.text)
    content = draw(st.lists(PROSE | drafts, max_size=3))
    return opening + "\n".join(content) + closing


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Parts in any order, each on lines of its own."""
    parts: list[_Part] = []
    if draw(st.integers(0, 4)) == 0:
        parts.append(_Part("thought", draw(_thoughts(*draw(st.sampled_from(AT_FIRST))))))
    kinds = st.sampled_from(["thought", "thought", "call", "call", "prose", "closer"])
    for kind in draw(st.lists(kinds, max_size=6)):
        if kind == "call":
            parts.append(draw(_calls(_TEXTS)))
        elif kind == "prose":
            parts.append(_Part(kind, draw(PROSE)))
        elif kind == "thought":
            parts.append(_Part(kind, draw(_thoughts(*draw(st.sampled_from([*PAIRS, *OPENED]))))))
        else:
            parts.append(_Part(kind, draw(_thoughts("", draw(st.sampled_from(CLOSERS))))))
    if draw(st.integers(0, 4)) == 0:
        opening = draw(st.sampled_from([*PAIRS, *OPENED]))[0]
        parts.append(_Part("unended", draw(_thoughts(opening, ""))))
    return _answer(parts)


def _answer(parts: list[_Part]) -> Answer:
    said: list[_Part] = []
    for part in parts:
        if part.kind == "closer":
            said = []
        elif part.kind in ("call", "prose"):
            said.append(part)
    called: list[dict[str, object]] = []
    while said and (last := said[-1]).arguments is not None:
        called.insert(0, last.arguments)
        said.pop()
    return Answer("\n".join(part.text for part in parts), called, [part.text for part in said if part.kind == "prose"])


def check_calls(answer: Answer) -> None:
    """Check that exactly the calls that are meant are found, and that the rest of the answer is kept.

    Raises:
        AssertionError: they are not.
    """
    rest, calls = find_calls(answer.text, {NAME})
    assert [_value(call.arguments) for call in calls] == answer.called
    assert all(prose in rest for prose in answer.prose)


def _value(raw: str) -> Any:
    try:
        value = parse_json(raw)
    except NotJson:
        value = next(repair_json(raw)).value
    assert isinstance(value, dict)
    return {**value, "n": int(str(value["n"]))}  # in tags, all values are texts
