"""The parts of messages in the form that a provider takes: what it does not take is described to the model in text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, runtime_checkable

from mulligan.activities.models import _refusals
from mulligan.activities.models._made_files import bytes_of, marks_in, with_bytes
from mulligan.activities.models.protocol import Provider, Request, TakesContent
from mulligan.content import Media, Part, Text, media_of, text_of
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message, UserMessage, parts_of

MOST_TEXT_BYTES = 262_144
"""Bytes of a text file that are written out for a provider that takes no such file."""
FOLLOWS, NOT_SHOWN = "it follows", "it cannot be shown to this model"


@runtime_checkable
class KeepsItems(Protocol):
    """A provider that keeps the items of its answers, under a key of `provider_data`."""

    data_key: str


def refs_needed(message: Message, provider: Provider) -> list[Media]:
    """The parts whose bytes `encoded` needs, and which are in the content storage."""
    return [
        part for part in media_of(parts_of(message)) if part.ref is not None and _needs_bytes(part, message, provider)
    ]


def encoded(message: Message, provider: Provider, stored: Mapping[str, str] | None = None) -> list[Any]:
    """The items for a message with its content. `stored`: the base64 of the parts that have a `ref`.

    What a provider has made for an answer goes back to it in its items. Another one is told of it, and gets it in a message
    of the user where it takes it so, unless calls are between the two.
    """
    if not isinstance(message, AssistantMessage) or not message.files:
        return provider.encode(fit_content(message, provider, stored))
    own = _own_items(message, provider)
    if own is not None:
        return provider.encode(_with_own_bytes(message, own, bytes_of(message.files, stored)))
    known = bytes_of(message.files, stored)
    taken = [part for part in media_of(message.files) if not message.tool_calls and _is_taken(part, "user", provider)]
    shown = [part for part in (_read(each, known) for each in taken) if part.ref is None]
    digests = {part.digest or part.url for part in shown}
    items = provider.encode(_described(message, digests))
    if not shown:
        return items
    return [
        *items,
        *provider.encode(UserMessage(role="user", content=[Text(text="[Made in the answer above:]"), *shown])),
    ]


def _described(message: AssistantMessage, shown: set[str | None] | None = None) -> AssistantMessage:
    """The answer for a provider that has not given it: with a line for each of its files. `shown`: those that follow it."""
    lines = [
        f"[{part.text}]"
        if isinstance(part, Text)
        else f"[{part.label}: {FOLLOWS if (part.digest or part.url) in (shown or ()) else NOT_SHOWN}]"
        for part in message.files or ()
    ]
    return message.model_copy(update={"text": "\n\n".join(filter(None, (message.text, *lines))), "files": None})


def _own_items(message: AssistantMessage, provider: Provider | None) -> Any:
    key = provider.data_key if isinstance(provider, KeepsItems) else ""
    return (message.provider_data or {}).get(key)


def _with_own_bytes(message: AssistantMessage, own: Any, known: Mapping[str, str]) -> AssistantMessage:
    """The answer with its bytes in the provider's own items."""
    if not marks_in(own):
        return message
    labels = {part.digest: part.label for part in media_of(message.files) if part.digest}
    given = message.provider_data or {}
    data = {key: with_bytes(own, known, labels) if value is own else value for key, value in given.items()}
    return message.model_copy(update={"provider_data": data})


def _read(part: Media, known: Mapping[str, str]) -> Any:
    """The part with its bytes, if they are known."""
    if part.ref is not None and part.ref in known:
        return part.model_copy(update={"data": known[part.ref], "ref": None, "size": None})
    return part


def fit_content(message: Message, provider: Provider | None, stored: Mapping[str, str] | None = None) -> Message:
    """The message with only those parts that the provider takes, and descriptions in the place of the others; of all where
    the provider is None.

    `stored`: the base64 of the parts that have a `ref`.
    """
    if isinstance(message, AssistantMessage) or message.content is None:
        return message
    parts: list[Part] = []
    for part in message.content:
        if isinstance(part, Media):
            read = _read(part, stored or {})
            is_readable = read.ref is None and _is_taken(part, message.role, provider)
            parts.append(read if is_readable else Text(text=_description(read)))
        else:
            parts.append(part)
    text = text_of(parts)
    return message.model_copy(update={"text": text, "content": parts if media_of(parts) else None})


def without_content(request: Request, provider: Provider, error: ModelRequestError) -> Request | None:
    """The request with descriptions of all its content, if the error refuses content of it; None if it does not."""
    has_media = any(media_of(parts_of(message)) for message in request.messages)
    if error.status not in (400, 413, 415, 422) or not has_media or not _refusals.CONTENT.search(error.message):
        return None
    described = (_without_files(fit_content(message, None), provider) for message in request.messages)
    return replace(request, items=[item for message in described for item in provider.encode(message)])


def _without_files(message: Message, provider: Provider) -> Message:
    """An answer with descriptions of all of its files."""
    if not isinstance(message, AssistantMessage) or not message.files:
        return message
    own = _own_items(message, provider)
    return _described(message) if own is None else _with_own_bytes(message, own, {})


def _needs_bytes(part: Media, message: Message, provider: Provider) -> bool:
    if isinstance(message, AssistantMessage):
        if (own := _own_items(message, provider)) is not None:
            return part.ref in marks_in(own)
        return not message.tool_calls and _is_taken(part, "user", provider)
    is_written_out = part.is_text and (part.byte_count or 0) <= MOST_TEXT_BYTES
    return is_written_out or _is_taken(part, message.role, provider)


def _is_taken(part: Media, role: Literal["user", "tool"], provider: Provider | None) -> bool:
    return isinstance(provider, TakesContent) and provider.takes(part, role)


def _description(part: Media) -> str:
    if part.data is not None and part.is_text and (part.byte_count or 0) <= MOST_TEXT_BYTES:
        return f"[{part.label}]\n{part.content.decode('utf-8', 'replace')}"
    return f"[{part.label}: {NOT_SHOWN}]"
