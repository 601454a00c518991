"""The parts of messages in the form that a provider takes: what it does not take is described to the model in text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from mulligan.activities.models import _refusals
from mulligan.activities.models.protocol import Provider, Request, TakesContent
from mulligan.content import Media, Part, Text, media_of, text_of
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message

MOST_TEXT_BYTES = 262_144
"""Bytes of a text file that are written out for a provider that takes no such file."""


def refs_needed(message: Message, provider: Provider) -> list[Media]:
    """The parts whose bytes `fit_content` needs, and which are in the content storage."""
    return [part for part in _media(message) if part.ref is not None and _needs_bytes(part, message, provider)]


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
            read = part
            if part.ref is not None and stored and part.ref in stored:
                read = part.model_copy(update={"data": stored[part.ref], "ref": None, "size": None})
            is_readable = read.ref is None and _is_taken(part, message.role, provider)
            parts.append(read if is_readable else Text(text=_description(read)))
        else:
            parts.append(part)
    text = text_of(parts)
    return message.model_copy(update={"text": text, "content": parts if media_of(parts) else None})


def without_content(request: Request, provider: Provider, error: ModelRequestError) -> Request | None:
    """The request with descriptions of all its content, if the error refuses content of it; None if it does not."""
    has_media = any(map(_media, request.messages))
    if error.status not in (400, 413, 415, 422) or not has_media or not _refusals.CONTENT.search(error.message):
        return None
    described = (fit_content(message, None) for message in request.messages)
    return replace(request, items=[item for message in described for item in provider.encode(message)])


def _media(message: Message) -> list[Media]:
    return [] if isinstance(message, AssistantMessage) else media_of(message.content)


def _needs_bytes(part: Media, message: Message, provider: Provider) -> bool:
    if isinstance(message, AssistantMessage):
        return False
    is_written_out = part.is_text and (part.byte_count or 0) <= MOST_TEXT_BYTES
    return is_written_out or _is_taken(part, message.role, provider)


def _is_taken(part: Media, role: Literal["user", "tool"], provider: Provider | None) -> bool:
    return isinstance(provider, TakesContent) and provider.takes(part, role)


def _description(part: Media) -> str:
    if part.data is not None and part.is_text and (part.byte_count or 0) <= MOST_TEXT_BYTES:
        return f"[{part.label}]\n{part.content.decode('utf-8', 'replace')}"
    return f"[{part.label}: it cannot be shown to this model]"
