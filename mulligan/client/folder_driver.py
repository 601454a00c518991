"""A driver for Temporal's external storage that stores payloads as files in a folder, named by their digest."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from mulligan.client.stored_files import MOST_BYTES, LostError, StorageError, StoredFiles

DIGEST = "sha256"


class FolderDriver(StorageDriver):
    """Stores each payload in the file `folder/ab/abcd…`, named by its SHA-256, so that equal payloads are one file.

    The folder is local, or is mounted by all machines. References in history are not trusted: they can only name such a
    file, and no symbolic link is followed below the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._files = StoredFiles(folder, "payload", is_never_empty=True)

    def name(self) -> str:
        """The name of the driver in references in history."""
        return "mulligan.folder"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Write payloads, and flush them to the disk.

        Raises:
            StorageError: a payload is too large, or cannot be written.
        """
        del context
        return [await asyncio.to_thread(self._write, payload.SerializeToString()) for payload in payloads]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Read the payloads that the claims refer to.

        Raises:
            LostError: a file does not exist, or was changed.
            StorageError: the folder cannot be read.
        """
        del context
        return [await asyncio.to_thread(self._read, claim.claim_data.get(DIGEST, "")) for claim in claims]

    def _write(self, data: bytes) -> StorageDriverClaim:
        digest = hashlib.sha256(data).hexdigest()
        if len(data) > MOST_BYTES:
            raise StorageError(
                f"A payload of {len(data):,} bytes is too large for external storage: {MOST_BYTES:,} at most."
            )
        self._files.write(digest, data)
        return StorageDriverClaim({DIGEST: digest})

    def _read(self, digest: str) -> Payload:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise LostError("A reference to external storage does not name a stored file.")
        data = self._files.read(digest)
        if data is None:
            raise LostError(
                f"{self._files.text(digest)} is not there: it was deleted, or the run's worker uses another storage."
            )
        if hashlib.sha256(data).hexdigest() != digest:
            raise LostError(f"{self._files.text(digest)} was changed after it was stored.")
        try:
            return Payload.FromString(data)
        except DecodeError:
            raise LostError(f"{self._files.text(digest)} is not a payload.") from None
