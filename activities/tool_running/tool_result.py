"""The result of a tool as the model gets it: a text, or parts where it has images, files or audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.activities.tool_running.render_result import MAX_BYTES, UnusableResult, cut, render
from mulligan.client.content_store import ContentStore
from mulligan.client.store_content import store_parts
from mulligan.content import MAX_PARTS, ContentError, Media, Part, Text, media_of, text_of
from mulligan.tool import UntilTime


class UnusableContent(UnusableResult):
    """An image or a file in a result cannot be used. The message says why, as a sentence."""


@dataclass(frozen=True)
class ToolResult:
    """A result. `text`: that of its parts alone, if it has others than a text in `content`. `is_cut`: whether it is cut."""

    text: str
    content: list[Part] | None = None
    is_cut: bool = False


def parts_of(value: object) -> list[Part] | None:
    """The parts of a result that is a part, or a list with parts; None for any other value."""
    if isinstance(value, Text | Media):
        return [value]  # type: ignore[list-item]  # Media itself is never made
    if not isinstance(value, list | tuple) or not any(isinstance(each, Text | Media) for each in value):
        return None
    return [each if isinstance(each, Text | Media) else Text(text=render(each)) for each in value]  # type: ignore[misc]


def plain_result(value: object) -> str | list[Part] | UntilTime:
    """Convert a tool's result to a value without objects of users' classes. Call it where the tool runs: it runs their code.

    Raises:
        UnusableResult: it cannot be written as JSON.
    """
    if isinstance(value, UntilTime):
        return value
    parts = parts_of(value)
    return render(value) if parts is None else parts


async def tool_result(
    value: object, store: ContentStore | None, *, max_chars: int, max_bytes: int | None = None
) -> ToolResult:
    """Convert what a tool returned to what the model gets. Bytes of images and files go to the content storage.

    Args:
        value: What it returned.
        store: The content storage, if there is one.
        max_chars: The maximum number of characters of its text.
        max_bytes: The maximum size in history, if it is less than usual.

    Raises:
        UnusableResult: it cannot be written as JSON.
        UnusableContent: a part of it is too large, or refers to content that is not stored, or cannot be stored.
    """
    parts = parts_of(value)
    if parts is None:
        return _cut_text(render(value), max_chars, max_bytes)
    if not media_of(parts):
        return _cut_text(text_of(parts), max_chars, max_bytes)
    if len(parts) > MAX_PARTS:
        raise UnusableContent(f"it has {len(parts):,} parts; the limit is {MAX_PARTS}.")
    try:
        content = await store_parts(parts, store, "result", check=True)
    except ContentError as error:
        raise UnusableContent(str(error)) from None
    most = max_bytes or MAX_BYTES
    inline = sum(len(part.model_dump_json()) for part in media_of(content))
    if inline > most:
        raise UnusableContent(
            f"its content has {inline:,} bytes as JSON; without a content storage the limit is {most:,}."
        )
    shortened = _cut(content, max_chars, most - inline)
    return ToolResult(text_of(shortened), shortened, is_cut=len(text_of(shortened)) != len(text_of(content)))


def _cut_text(whole: str, max_chars: int, max_bytes: int | None) -> ToolResult:
    text = cut(whole, max_chars, max_bytes)
    return ToolResult(text, is_cut=len(text) != len(whole))


def _cut(parts: Sequence[Part], max_chars: int, max_bytes: int) -> list[Part]:
    """The parts, with texts cut to so many characters together. They are in history twice: as `text` as well."""
    result: list[Part] = []
    room = max_chars
    for part in parts:
        if isinstance(part, Text):
            part = Text(text=cut(part.text, room, max(200, max_bytes // 2)))
            room = max(0, room - len(part.text))
        result.append(part)
    return result
