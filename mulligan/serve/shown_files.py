"""The files that providers have made for a run, with their bytes, for doors whose protocols have no references."""

from __future__ import annotations

import base64
import logging

from mulligan.client.content_store import ChangedContentError, ContentStore, configured_content_store
from mulligan.client.find_runs import memo_of
from mulligan.client.stored_files import StorageError
from mulligan.content import Media, Part
from mulligan.errors import DeclarationError
from mulligan.serve.caller import Caller
from mulligan.serve.runs import Runs
from mulligan.wire.event_types import Answered, Event
from mulligan.wire.run_priority import TENANT_MEMO

MOST_BYTES = 30_000_000
"""Of the files of one answer to a client, which is in memory as a whole."""
_log = logging.getLogger(__name__)


class ShownFiles:
    """Adds the bytes of files to the events of a run, for one request of a caller who may see it."""

    def __init__(self, runs: Runs, caller: Caller, run_id: str) -> None:
        self._runs, self._caller, self._run_id = runs, caller, run_id
        self._store: ContentStore | None = None
        self._is_open = False
        self._bytes_left = MOST_BYTES

    async def within(self, event: Event) -> Event:
        """The event with the bytes of its files. Those that are not there, or are too many, stay references."""
        if not isinstance(event, Answered) or not event.files:
            return event
        return event.model_copy(update={"files": await self.of(event)})

    async def of(self, event: Event) -> list[Part]:
        """The files of an event, with their bytes as far as `within` adds them."""
        return [await self._read(part) for part in event.files] if isinstance(event, Answered) else []

    async def _read(self, part: Part) -> Part:
        if not isinstance(part, Media) or part.ref is None or (part.size or 0) > self._bytes_left:
            return part
        try:
            store = await self._content_store()
            data = await store.get(part.ref) if store else None
        except (StorageError, ChangedContentError, DeclarationError) as error:
            _log.warning("The %s of the run %s is shown without its bytes: %s", part.label, self._run_id, error)
            return part
        if data is None:
            return part
        self._bytes_left -= len(data)
        return part.model_copy(update={"data": base64.b64encode(data).decode(), "ref": None, "size": None})

    async def _content_store(self) -> ContentStore | None:
        if not self._is_open and (store := configured_content_store()) is not None:
            memo = await memo_of(await self._runs.describe(self._caller, self._run_id))
            self._store = store.of(memo.get(TENANT_MEMO))
        self._is_open = True
        return self._store
