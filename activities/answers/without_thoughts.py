"""Cut a model's thoughts out of the text of its answer, where a server leaves them: neither calls nor output are in them.

`MARKERS` is the one table of how models mark thoughts. A closing marker without an opening one ends a thought that began
with the text: many chat templates write the opening one into the prompt. A thought that does not end reaches to the end of
the text. Within a thought only markers of its own kind count, so `<think>` is not ended by `</thinking>`, and they nest.

A marker that is quoted is none: within the strings of a whole JSON value, or of a Python call, between `<parameter=…>` and
`</parameter>`, in a code fence that is closed, and alone between backticks. A call that writes about markers stays in one
piece. The bracket, quote, tag or fence has to end: what a thought leaves open hides no marker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mulligan.activities.answers.json_tokens import value_end

_WORD = (
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflect(?:ion)?|scratch_?pad|monologue|ant_?thinking|analysis|cot|"
    r"chain_of_thoughts?)"
)
_NAME = rf"(?:[a-z]\w{{0,40}}[:_.-])?{_WORD}(?:[:_.-]\w{{1,40}}+)?"
_BRACKETED = r"(?:think(?:ing)?|thoughts?|reasoning)"


@dataclass(frozen=True)
class Marker:
    """How thoughts are marked, as regular expressions that ignore case.

    `closing` also ends a thought whose opening marker is in the prompt; `ends` mean other things too, and end only a
    thought that was opened. `is_named`: the first word of both is the same. `nests`: an opening marker within a thought
    opens another one.
    """

    opening: str
    closing: str
    source: str
    is_named: bool = False
    ends: str = ""
    nests: bool = True


MARKERS = (
    # `<think/>` has no content; a tag may lack its `>`.
    Marker(
        rf"<\s*+{_NAME}(?=[\s/>]|\Z)(?![^<>]{{0,500}}+(?<=/)>)[^<>]{{0,500}}+>?",
        rf"<\s*+/++\s*+{_NAME}(?=[\s>])[^<>]{{0,500}}+>",
        "think: templates of DeepSeek R1, Qwen3, GLM 4.5, MiniMax M2, Nemotron, Hunyuan, Kimi K2; thought: EXAONE Deep; "
        "seed:think, mm:think, longcat_think: vllm/reasoning; thinking, reason, reasoning: DEFAULT_REASONING_TAGS of Open "
        "WebUI; antThinking: BerriAI/litellm; scratchpad, reflection, inner_monologue: Hermes 3",
        is_named=True,
    ),
    Marker(
        rf"\[{_BRACKETED}\](?!\()",
        rf"\[/{_BRACKETED}\]",
        "[THINK]: Magistral (vllm/reasoning/mistral_reasoning_parser.py)",
        is_named=True,
    ),
    Marker(r"\[unused16\]", r"\[unused17\]", "Pangu (vllm/reasoning/pangu_reasoning_parser.py)"),
    Marker(
        rf"◁\s*{_WORD}\s*▷",
        rf"◁\s*/\s*{_WORD}\s*▷",
        "Kimi VL (Open WebUI; LLaMA-Factory's template kimi_vl)",
        is_named=True,
    ),
    Marker(
        rf"<[|｜](?:(?:begin|start)[_▁]?(?:of[_▁]?)?)?{_WORD}(?:[_▁](?:start|begin))?[|｜]>",
        rf"<(?:[|｜](?:/|end[_▁]?(?:of[_▁]?)?)|/[|｜]){_WORD}[|｜]>|<[|｜]{_WORD}[_▁]end[|｜]>",
        "START_THINKING: Command A; begin_of_thought: Sky-T1, OpenThoughts; think: Solar Open, which ends it as a message "
        "(pkg/reasoning/reasoning.go of LocalAI)",
        ends=r"<\|end\|>",
    ),
    Marker(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", "Apertus (vllm/reasoning/apertus_reasoning_parser.py)"),
    Marker(r"<\|open\|>think\s*<\|sep\|>", r"<\|close\|>think\s*<\|sep\|>", "Kimi K3 (models/templates of llama.cpp)"),
    Marker(r"<unused94>\s*thought\b", r"<unused95>", "MedGemma"),
    Marker(
        r"(?:<\|start\|>\s*assistant\s*)?<\|?channel\|?>\s*(?:analysis|thought|thinking|reasoning)\b"
        r"(?:[^<>\n]{0,200}<\|message\|>)?|\A\s*analysis<\|message\|>",
        r"<\|channel\|>\s*final\b(?:[^<>\n]{0,200}(?:<\|constrain\|>\w*\s*)?<\|message\|>)?|<channel\|>",
        "analysis: harmony, gpt-oss; thought: Gemma 4 (vllm/reasoning/gemma4_reasoning_parser.py)",
        ends=r"<\|(?:end|return|call|start)\|>|<\|channel\|>\s*commentary\b",
        nests=False,
    ),
    Marker(
        r"(?-i:\A\s*(?:assistant)?analysis(?!<\|)(?=[^\sa-z.,:;!?’')\]}]))",
        r"(?-i:assistantfinal)",
        "harmony without its special tokens (oobabooga/textgen#7374)",
        ends=r"(?-i:assistantcommentary)",
        nests=False,
    ),
    Marker(
        r"\A\s*Here(?:'s|’s| is) my thought process:",
        r"Here(?:'s|’s| is) my response:",
        "Granite 3.2 (vllm/reasoning/granite_reasoning_parser.py)",
    ),
    Marker(
        r"\A\s*Here are my reasoning steps:",
        r"\[BEGIN FINAL RESPONSE\]",
        "Apriel 1.5, 1.6 (models/templates of llama.cpp)",
    ),
    Marker(
        rf"^[ \t]*+```[ \t]*+{_WORD}[ \t]*+$",
        "",
        "a fence in place of tags, by models that were told to think in one",
        ends=r"^[ \t]*+```[ \t]*+$",
    ),
)
_ANSWER = r"(?:(?:final[_ ])?(?:answer|response|output|solution))"
_BEFORE_ANSWER = re.compile(
    rf"\s*+(?:<{_ANSWER}>|<\|start\|>\s*assistant|<\|begin\|>\s*assistant|<\|content\|>|<\|START_(?:RESPONSE|TEXT)\|>"
    rf"|<\|begin_of_solution\|>|<\|open\|>response\s*<\|sep\|>)",
    re.IGNORECASE,
)
_AFTER_ANSWER = re.compile(
    rf"(?:</{_ANSWER}>|\[END FINAL RESPONSE\]|<\|close\|>response\s*<\|sep\|>|<\|\w+\|>)\s*\Z", re.IGNORECASE
)
"""What stands around the answer itself, of the models whose thoughts are marked so."""
_MOST_WRAPPERS = 6
_LONGEST_WRAPPER = 60

MAX_WASTED = 3
"""How often the text's length may be read in search of brackets that end. After that no bracket hides a marker."""


def _sides(row: int, *sides: str) -> list[str]:
    return [f"(?P<{side}_{row}>{each})" for side in sides if (each := getattr(MARKERS[row], side))]


_FLAGS = re.IGNORECASE | re.MULTILINE
_STRING = r"""(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+')"""
_STRINGS = re.compile(_STRING, re.DOTALL)
_QUOTES = [
    r"(?P<fence>^[ \t]*+```(?!assistant)[\w+#.-]*+[ \t]*+$)",
    r"(?P<parameter><parameter(?:=|\s+name=)[^<>]{1,200}+>)",
    rf"(?P<keyword>\b\w++\s*+=\s*+(?s:{_STRING})(?=\s*+[,)]))",
    r"(?P<value>[{\[])",
]
_ROWS = range(len(MARKERS))
_ANY = [side for row in _ROWS for side in _sides(row, "opening", "closing")]
_MARKER = re.compile("|".join(_ANY), _FLAGS)
_OUTSIDE = re.compile("|".join([*_ANY, *_QUOTES]), _FLAGS)
_WITHIN = [re.compile("|".join([*_sides(row, "opening", "closing", "ends"), *_QUOTES]), _FLAGS) for row in _ROWS]
"""Outside of thoughts, and within one of each row: markers that count there, and the beginnings of what quotes markers."""
_FENCE_END = re.compile(r"[ \t]*+```[ \t]*+$", re.MULTILINE)
_FIRST_WORD = re.compile(r"\W*+([\w:.-]++)")


def without_thoughts(text: str) -> str:
    """The text with spaces in place of its thoughts, of the same length; the same text, if it has none. Never raises."""
    if not _MARKER.search(text):
        return text
    spoken = _Reader(text).spoken()
    if spoken == [(0, len(text))]:
        return text
    said, at = [], 0
    for start, end in [*spoken, (len(text), len(text))]:
        said += [" " * (start - at), text[start:end]]
        at = end
    return _without_wrappers("".join(said))


class _Reader:
    """Finds the thoughts in one text. `wasted` counts the characters of brackets that were read in vain."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.wasted = 0

    def spoken(self) -> list[tuple[int, int]]:
        """What is no thought: beginnings and ends, in their order."""
        spoken: list[tuple[int, int]] = []
        start = 0
        while marker := self._marker(_OUTSIDE, start):
            side, row = _side(marker)
            end: int | None = marker.end()
            if side == "closing":
                spoken = []
            else:
                spoken.append((start, marker.start()))
                end = self._thought_end(marker, row)
            if end is None:
                return spoken
            start = end
        return [*spoken, (start, len(self.text))]

    def _thought_end(self, opening: re.Match[str], row: int) -> int | None:
        """The position after a thought; None if it does not end."""
        kind, depth, at = MARKERS[row], 1, opening.end()
        while marker := self._marker(_WITHIN[row], at):
            is_same = not kind.is_named or _name(marker) == _name(opening)
            # Written by the server and again by the model, an opening marker is one.
            if is_same and _side(marker)[0] == "opening":
                depth += kind.nests and bool(self.text[at : marker.start()].strip())
            elif is_same:
                depth -= 1
            at = marker.end()
            if not depth:
                return at
        return None

    def _marker(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """The next marker from there on that is not quoted."""
        while found := pattern.search(self.text, at):
            at = self._quote_end(found)
            if at == found.start():
                return found
        return None

    def _quote_end(self, found: re.Match[str]) -> int:
        """Where a marker is searched next; where `found` begins, if it is one."""
        text, start, end = self.text, *found.span()
        match found.lastgroup:
            case "fence":
                closed = _FENCE_END.match(text, text.rfind("\n", 0, text.find("```", end)) + 1)
                return closed.end() if closed and closed.start() > end else end
            case "parameter":
                another = text.find("<parameter", end)
                close = text.find("</parameter>", end, another if another >= 0 else len(text))
                return close if close >= 0 else end
            case "keyword":
                return end
            case "value":
                return self._value_end(start)
        is_quoted = text[start - 1 : start] == "`" == text[end : end + 1]
        return end if is_quoted else start

    def _value_end(self, start: int) -> int:
        """The end of a list or an object that is whole and has markers in its strings only; otherwise the next position."""
        if self.wasted > MAX_WASTED * len(self.text):
            return start + 1
        end, is_whole = value_end(self.text, start)
        if is_whole and not _MARKER.search(_STRINGS.sub('""', self.text[start:end])):
            return end
        self.wasted += end - start
        return start + 1


def _side(marker: re.Match[str]) -> tuple[str, int]:
    side, _, row = str(marker.lastgroup).partition("_")
    return side, int(row)


def _name(marker: re.Match[str]) -> str:
    word = _FIRST_WORD.match(marker[0])
    return word[1].lower() if word else ""


def _without_wrappers(text: str) -> str:
    """Without what some models write around their answer after a thought."""
    for _ in range(_MOST_WRAPPERS):
        if begin := _BEFORE_ANSWER.match(text):
            text = " " * begin.end() + text[begin.end() :]
        end = len(text.rstrip())
        tail = max(0, end - _LONGEST_WRAPPER)
        if after := _AFTER_ANSWER.search(text[tail:end]):
            text = text[: tail + after.start()] + " " * (len(text) - tail - after.start())
    return text
