"""The text of a step as it is written: what of it is new, and when what was written is void."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mulligan.wire.event_types import Answered, Event, ModelFallback, RunEnded, TextDelta, TextVoid

__all__ = ["StepText", "TextClosed", "TextOpened", "TextPart"]


@dataclass(frozen=True)
class TextOpened:
    """A text of a step begins. `number`: no other text of the step has it; 1 unless one before it became void."""

    step: int
    number: int


@dataclass(frozen=True)
class TextPart:
    """More text. `seen`: how many characters there are with it."""

    text: str
    seen: int


@dataclass(frozen=True)
class TextClosed:
    """The text is complete; or void: its attempt was lost, and another text replaces it."""

    text: str
    is_void: bool


Change = TextOpened | TextPart | TextClosed


class StepText:
    """Turns the events of a run into changes of the text that a client has."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        """Of the open text; None: there is none."""
        self._text = ""
        self._seen = 0
        """More than the characters of `_text` if the client got the beginning elsewhere."""
        self._opened: tuple[int, int] = 0, 0
        """The step of the text that was opened last, and its number."""

    def open_at(self, step: int, attempt: int, seen: int) -> TextOpened:
        """The client has the first characters of an attempt already."""
        self._attempt, self._text, self._seen = attempt, "", seen
        number = max(attempt, self._opened[1] + 1) if self._opened[0] == step else attempt
        self._opened = step, number
        return TextOpened(step, number)

    def changes(self, event: Event) -> Iterator[Change]:
        """What an event changes."""
        match event:
            case TextDelta():
                yield from self._delta(event)
            case Answered():
                yield from self._answered(event)
            case TextVoid() | ModelFallback() | RunEnded():
                yield from self._void()

    def _delta(self, event: TextDelta) -> Iterator[Change]:
        if self._attempt is not None and self._attempt != event.attempt:
            yield from self._void()
        if event.start > self._seen:
            return  # a client that came late has not got what is between: all of it comes with the whole text
        if self._attempt is None:
            yield self.open_at(event.step, event.attempt, 0)
        yield self._part(event.text[self._seen - event.start :])

    def _answered(self, event: Answered) -> Iterator[Change]:
        is_continued = (
            event.text.startswith(self._text) if len(self._text) == self._seen else len(event.text) >= self._seen
        )
        if self._attempt is not None and not (event.text and is_continued):
            yield from self._void()
        if not event.text:
            return
        if self._attempt is None:
            yield self.open_at(event.step, 1, 0)
        if len(event.text) > self._seen:
            yield self._part(event.text[self._seen :])
        yield self._close(event.text, is_void=False)

    def _void(self) -> Iterator[Change]:
        if self._attempt is not None:
            yield self._close(self._text, is_void=True)

    def _part(self, text: str) -> TextPart:
        self._text += text
        self._seen += len(text)
        return TextPart(text, self._seen)

    def _close(self, text: str, *, is_void: bool) -> TextClosed:
        self._attempt, self._text, self._seen = None, "", 0
        return TextClosed(text, is_void)
