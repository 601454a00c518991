"""Keep what a provider has made for an answer: its bytes go to the content storage before the answer reaches history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mulligan.client.content_store import ContentStore
from mulligan.client.stored_files import StorageError
from mulligan.content import MAX_PARTS, Media, Part, Text
from mulligan.schema.cut_text import beginning

INLINE_BYTES = 300_000
"""Without a content storage: bytes of the files of an answer, which history has then."""
TRIES, SECONDS_BETWEEN = 3, 0.5
"""How often a file is stored before the answer goes on without it: it would cost a model call to lose that."""
_NOTE_CHARS = 500


async def kept_files(files: Sequence[Part], store: ContentStore | None) -> list[Part]:
    """The files with references in place of their bytes, and sentences in place of those that cannot be kept.

    Args:
        files: What a provider has made for one answer.
        store: The content storage of the run's tenant, if there is one.
    """
    kept: list[Part] = []
    inline = 0
    for part in files[:MAX_PARTS]:
        if isinstance(part, Text):
            kept.append(Text(text=beginning(part.text, _NOTE_CHARS)))
        elif part.data is None:
            kept.append(part)
        elif store is not None:
            kept.append(await _stored(part, store))
        elif inline + (size := part.byte_count or 0) <= INLINE_BYTES:
            inline += size
            kept.append(part)
        else:
            kept.append(
                _not_kept(part, f"without a content storage an answer may have {INLINE_BYTES:,} bytes of files")
            )
    return kept


def without_bytes(files: Sequence[Part] | None) -> list[Part] | None:
    """The files of an answer that is too large for history: those whose bytes would be in it are sentences."""
    why = "the answer is too large beside it"
    return [_not_kept(part, why) if isinstance(part, Media) and part.data else part for part in files or ()] or None


async def _stored(part: Media, store: ContentStore) -> Part:
    error = ""
    for number in range(TRIES):
        try:
            return part.referring_to(await store.put(part.content))  # type: ignore[return-value]  # an Image stays one
        except StorageError as failed:
            error = str(failed)
        if number < TRIES - 1:
            await asyncio.sleep(SECONDS_BETWEEN)
    return _not_kept(part, error)


def _not_kept(part: Media, why: str) -> Text:
    return Text(
        text=beginning(f"The {part.label} that the provider has made is not kept: {why.rstrip('.')}.", _NOTE_CHARS)
    )
