"""The versions of agents' files in the content storage: each by its digest, a list of them for each agent, and its labels.

They are there under names that no tenant can have, so that what a client stores is never taken for an agent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from mulligan.activities.agent_files.labels import Label
from mulligan.client.content_store import ChangedContentError, ContentStore, MissingContentError
from mulligan.wire.times import iso

MOST_LISTED = 1_000
"""Versions of an agent in its list; the oldest ones leave it."""
_OWNER = "the versions of the file of an agent, by which runs begin and continue: {agent}"
"""In place of a tenant's name, which has at most 64 bytes."""


@dataclass(frozen=True)
class ListedVersion:
    """A version in the list of an agent. `since`: when it began to be served the last time, in ISO 8601."""

    digest: str
    since: str


class VersionStore:
    """The versions in a content storage. `contents`: None where there is none; then it is empty, and keeps nothing."""

    def __init__(self, contents: ContentStore | None) -> None:
        self._contents = contents

    @property
    def is_there(self) -> bool:
        """Whether there is a content storage."""
        return self._contents is not None

    async def put(self, agent: str, text: str) -> None:
        """Store a version. Where it is stored already, its time of last use is now.

        Raises:
            StorageError: it cannot be written.
        """
        if (contents := self._of(agent)) is not None:
            await contents.put(text.encode())

    async def get(self, agent: str, digest: str) -> str | None:
        """The file of a version; None if it is not there.

        Raises:
            StorageError: the storage cannot be read.
        """
        if (contents := self._of(agent)) is None:
            return None
        with suppress(MissingContentError, ChangedContentError):
            return (await contents.get(f"sha256:{digest}")).decode()
        return None

    async def listed(self, agent: str) -> list[ListedVersion]:
        """The versions of an agent that were served, the newest last.

        Raises:
            StorageError: the storage cannot be read.
        """
        contents = self._of(agent)
        data = None
        with suppress(ChangedContentError):
            data = await contents.get_named("list") if contents is not None else None
        return [ListedVersion(each["digest"], each["since"]) for each in json.loads(data)] if data else []

    async def serve(self, agent: str, text: str, digest: str) -> None:
        """Store a version that is served from now on, as the newest of the list.

        Processes that write the list at the same time write the same: they serve the same folder.

        Raises:
            StorageError: it cannot be written.
        """
        if (contents := self._of(agent)) is None:
            return
        await self.put(agent, text)
        listed = await self.listed(agent)
        if not listed or listed[-1].digest != digest:
            now = iso(datetime.now(UTC), "seconds")
            listed = [*(each for each in listed if each.digest != digest), ListedVersion(digest, now)]
        await contents.put_named("list", _written(listed[-MOST_LISTED:]))

    async def labels(self, agent: str) -> list[Label] | None:
        """The labels of an agent that were right last, each with line 1; None: none were ever stored.

        Raises:
            StorageError: the storage cannot be read.
        """
        contents, data = self._of(agent), None
        with suppress(ChangedContentError):
            data = await contents.get_named("labels") if contents is not None else None
        if data is None:
            return None
        return [Label(each["label"], each["version"], each.get("share", ""), 1) for each in json.loads(data)]

    async def put_labels(self, agent: str, labels: Sequence[Label]) -> None:
        """Store the labels of an agent in place of those before.

        Raises:
            StorageError: it cannot be written.
        """
        if (contents := self._of(agent)) is not None:
            await contents.put_named("labels", json.dumps([each.listed for each in labels]).encode())

    def _of(self, agent: str) -> ContentStore | None:
        return None if self._contents is None else self._contents.of(_OWNER.format(agent=agent))


def _written(listed: Sequence[ListedVersion]) -> bytes:
    return json.dumps([vars(each) for each in listed]).encode()
