"""Moves the bytes of messages to the content storage before they are sent to Temporal: history refers to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from mulligan.client.content_store import (
    ChangedContentError,
    ContentStore,
    MissingContentError,
    configured_content_store,
)
from mulligan.client.stored_files import StorageError
from mulligan.content import ContentError, Media, Part, media_of
from mulligan.errors import InvalidRunInputError
from mulligan.run_input import RunInput
from mulligan.values import AssistantMessage, parts_of

Input = TypeVar("Input", bound=RunInput)
INLINE_BYTES = 2_048
"""Content up to this size stays in history: a reference and a file would cost more than they save."""
MOST_INLINE_BYTES = 1_000_000
"""Without a content storage: bytes of the content of a message at most. Temporal refuses payloads of 2 MB, and base64 adds a
third."""


async def store_content(run_input: Input, store: ContentStore | None = None, *, check_messages: bool = False) -> Input:
    """The input with references in place of bytes. References in the prompt must be to stored content of its tenant.

    Args:
        run_input: The input.
        store: The content storage; None: that of the settings.
        check_messages: Whether the references in `messages` must be so too. Those that continue a run were checked when
            they were stored.

    Raises:
        InvalidRunInputError: there is no content storage and the content is too large, or a reference is to content that is
            not stored, or the storage cannot be used.
    """
    update: dict[str, Any] = {}
    store = store or (configured_content_store() if _has_media(run_input) else None)
    store = store and store.of(run_input.tenant)
    try:
        if isinstance(run_input.prompt, list):
            update["prompt"] = await store_parts(run_input.prompt, store, "prompt", check=True)
        if any(map(parts_of, run_input.messages)):
            update["messages"] = messages = []
            for index, message in enumerate(run_input.messages):
                if given := parts_of(message):
                    field = "files" if isinstance(message, AssistantMessage) else "content"
                    parts = await store_parts(given, store, f"messages[{index}].{field}", check=check_messages)
                    message = message.model_copy(update={field: parts})
                messages.append(message)
    except ContentError as error:
        raise InvalidRunInputError(str(error)) from None
    return run_input.model_copy(update=update)


async def store_parts(
    parts: Sequence[Part], store: ContentStore | None, where: str, *, check: bool = False
) -> list[Part]:
    """The parts with references in place of bytes.

    Args:
        parts: The parts.
        store: The content storage, if there is one.
        where: What has the parts, for errors: `prompt`.
        check: Whether references must be to stored content of that size.

    Raises:
        ContentError: the content is too large without a content storage, a reference is wrong, or the storage cannot be
            used.
    """
    stored: list[Part] = []
    if store is None:
        if check and any(part.ref is not None for part in media_of(parts)):
            raise ContentError(
                f'"{where}" refers to stored content, but there is no content storage: set MULLIGAN_CONTENT_DIR or '
                "MULLIGAN_EXTERNAL_STORAGE (docs/content.md)."
            )
        _check_inline(parts, where)
        return list(parts)
    for index, part in enumerate(parts):
        stored.append(part)
        if not isinstance(part, Media):
            continue
        try:
            if part.data is not None and (part.byte_count or 0) > INLINE_BYTES:
                stored[-1] = part.referring_to(await store.put(part.content))
            elif part.ref is not None and check:
                size = len(await store.get(part.ref))
                if part.size not in (None, size):
                    raise ContentError(
                        f'"{where}[{index}]" has a "size" of {part.size:,}, but its content {size:,} bytes.'
                    )
                stored[-1] = part.model_copy(update={"size": size})
        except (MissingContentError, ChangedContentError, StorageError) as error:
            raise ContentError(f'"{where}[{index}]" cannot be used: {error}') from None
    return stored


def _check_inline(parts: Sequence[Part], where: str) -> None:
    size = sum(part.byte_count or 0 for part in media_of(parts) if part.data is not None)
    if size > MOST_INLINE_BYTES:
        raise ContentError(
            f'"{where}" has {size:,} bytes of content; without a content storage the limit is {MOST_INLINE_BYTES:,}. Set '
            "MULLIGAN_CONTENT_DIR or MULLIGAN_EXTERNAL_STORAGE, for the workers too (docs/content.md)."
        )


def _has_media(run_input: RunInput) -> bool:
    messages = map(parts_of, run_input.messages)
    prompt = run_input.prompt if isinstance(run_input.prompt, list) else None
    return any(media_of(parts) for parts in (prompt, *messages))
