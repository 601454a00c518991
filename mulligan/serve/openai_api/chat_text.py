"""The events of a run as the text of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from mulligan.content import Image, Part, described
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.values import Citation
from mulligan.wire.event_types import Event, RunEnded
from mulligan.wire.shorten import shorten_middle

VOID_NOTE = "\n\n[The text above was cut off and is void. It begins again.]\n\n"
"""Chat completions cannot withdraw text."""
BETWEEN_STEPS = "\n\n"
SHOWN_CHARS = 300
"""Characters of arguments, or of a question."""


class ChatText:
    """The pieces of text that a client gets: the texts of all steps, and a line for each call that waits for a person.

    The output follows at the end, unless it is the last text.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.view = RunView(joins_gaps=False, most_steps=1)
        self._before = ""
        """What comes before the next piece: steps are separated, and void text has a note."""

    @property
    def citations(self) -> Sequence[Citation]:
        """The sources of the last answer."""
        return self.view.newest_step.citations if self.view.newest_step else ()

    def pieces(self, event: Event) -> Iterator[str]:
        """The new text of an event."""
        for change in self.view.add(event):
            match change:
                case changes.TextExtended():
                    yield self._before + change.text
                    self._before = ""
                case changes.TextClosed():
                    self._before = VOID_NOTE if change.is_void else BETWEEN_STEPS
                case changes.WaitOpened():
                    yield self._waiting(self._run_id, change)
                case changes.Below(source, changes.WaitOpened() as below):
                    yield self._waiting(source.id, below)
                case changes.Ended():
                    output = output_text(change.end)
                    if output and not _is_same(output, self.view.last_text):
                        yield self._before + output

    def _waiting(self, run_id: str, change: changes.WaitOpened) -> str:
        before, self._before = self._before, BETWEEN_STEPS
        return before + waiting_line(run_id, change)


def waiting_line(run_id: str, change: changes.WaitOpened) -> str:
    """What waits for a person: the call, what is to be decided, and where."""
    waiting, call = change.wait.asked, change.call
    if waiting.kind == "approval":
        given = shorten_middle(json.dumps(waiting.arguments, ensure_ascii=False), SHOWN_CHARS)
        what, how, path = (
            f"`{call.name}` with {given} waits for approval",
            f"mulligan approve {run_id} {call.id}",
            "decisions",
        )
    else:
        what = f"a person has to answer: {shorten_middle(waiting.text, SHOWN_CHARS)}"
        how, path = f'mulligan answer {run_id} {call.id} "…"', "answers"
    return f"[{' '.join(what.split())} - `{how}`, or POST /api/runs/{quote(run_id, safe='')}/{path}]"


def output_text(end: RunEnded) -> str:
    """The output of a run as text: structured output as JSON."""
    output = end.result.output if end.result else None
    if output is None or isinstance(output, str):
        return output or ""
    return json.dumps(output, ensure_ascii=False)


def images_in(files: Sequence[Part], first: int = 0) -> list[dict[str, Any]]:
    """The images whose bytes or address are here, as OpenRouter has them. `first`: the number of the first one."""
    urls = [part.url or part.data_url for part in files if isinstance(part, Image) and part.ref is None]
    return [{"type": "image_url", "index": first + n, "image_url": {"url": url}} for n, url in enumerate(urls)]


def lines_of(files: Sequence[Part], end: RunEnded) -> str:
    """Lines on the files that are no images here, for the end of an output that is a text."""
    lines = [described([part]) for part in files if not isinstance(part, Image) or part.ref is not None]
    is_text = isinstance(end.result.output, str) if end.result else False
    return "".join(f"\n\n{line}" for line in lines) if is_text else ""


def finish_reason(end: RunEnded) -> str:
    """Why a run with a result has ended, in the words of chat completions."""
    match end.status:
        case "completed" | "stopped":
            return "stop"
        case "refused":
            return "content_filter"
    return "length"


def chat_usage_json(end: RunEnded) -> dict[str, Any]:
    """Tokens of the run, as Chat Completions names them."""
    assert end.result is not None
    usage = end.result.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _is_same(output: str, text: str) -> bool:
    if output == text:
        return True
    try:
        return bool(json.loads(output) == json.loads(text))
    except ValueError:
        return False
