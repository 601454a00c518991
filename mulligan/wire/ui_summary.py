"""The one-line texts that Temporal's UI shows for a run, an activity or a timer."""

from __future__ import annotations

import json

from mulligan.content import described
from mulligan.run_input import RunInput
from mulligan.values import UserMessage

SUMMARY_BYTES = 180
"""Bytes of a summary as JSON. Temporal's limit is 400 for the payload, which is up to 211 bytes longer with encryption."""
AGENT_CHARS = 60
PROMPT_CHARS = 100
_NOTE = "…"


def run_summary(agent: str, prompt: str | None) -> str:
    """The summary of a run: its agent and the first line of its prompt."""
    line = first_line(prompt or "")
    return ui_summary(f"{_cut(agent, AGENT_CHARS)}: {line}" if line else agent)


def task_of(run_input: RunInput) -> str:
    """The task of a run in one line: its prompt, or the last message of its user."""
    messages = (
        described(each.content or each.text) for each in reversed(run_input.messages) if isinstance(each, UserMessage)
    )
    return first_line(next(messages, "") if run_input.prompt is None else described(run_input.prompt))


def first_line(text: str) -> str:
    """The first line of a text that is not empty, cut to about a hundred characters."""
    lines = (one_line(line) for line in text[:10_000].splitlines())
    return _cut(next((line for line in lines if line), ""), PROMPT_CHARS)


def ui_summary(text: str) -> str:
    """The text in one line, cut to the size of a summary in Temporal."""
    line = _cut(one_line(text[:1_000]), SUMMARY_BYTES)
    while len(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")) > SUMMARY_BYTES:
        line = _cut(line, max(len(line) - 10, 0))
    return line


def one_line(text: str) -> str:
    """The text without line breaks, control characters and repeated spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: max(longest - len(_NOTE), 0)] + _NOTE
