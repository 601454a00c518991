"""Read the content of messages that is in the content storage, for a model call."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable

from mulligan.activities.models.protocol import Unavailable
from mulligan.client.content_store import ChangedContentError, ContentStore
from mulligan.client.stored_files import StorageError
from mulligan.content import Media
from mulligan.errors import ModelRequestError

MOST_BYTES = 50_000_000
"""Bytes of content that are read at once. Providers refuse requests of that size."""


class ContentUnavailable(Unavailable):
    """Content cannot be read now."""


async def read_content(parts: Iterable[Media], store: ContentStore | None, tenant: str | None = None) -> dict[str, str]:
    """Read the content that parts refer to: base64 by `ref`.

    Args:
        parts: The parts.
        store: The content storage, if this worker has one.
        tenant: That of the run.

    Raises:
        ModelRequestError: it was changed after it was stored, or is too much for a request.
        ContentUnavailable: it cannot be read now, or this worker has no content storage.
    """
    refs = {part.ref: part for part in parts if part.ref is not None}
    if not refs:
        return {}
    if store is None:
        raise ContentUnavailable(
            f"The conversation has an {next(iter(refs.values())).label} in the content storage, but this worker has none: "
            "set MULLIGAN_EXTERNAL_STORAGE or MULLIGAN_CONTENT_DIR to that of the client."
        )
    total, stored = 0, {}
    for ref, part in refs.items():
        try:
            data = await store.of(tenant).get(ref)
        except ChangedContentError as error:
            raise ModelRequestError(f"The {part.label} cannot be sent to the model. {error}") from None
        except StorageError as error:
            raise ContentUnavailable(str(error)) from None
        total += len(data)
        if total > MOST_BYTES:
            raise ModelRequestError(
                f"The conversation has more than {MOST_BYTES:,} bytes of images and files, the most that a request can "
                "have. Start another run with fewer of them."
            )
        stored[ref] = (await asyncio.to_thread(base64.b64encode, data)).decode()
    return stored
