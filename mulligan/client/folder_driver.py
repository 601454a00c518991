"""A driver for Temporal's external storage that keeps payloads as files in a folder, named by what is in them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

__all__ = ["FolderDriver", "StorageError"]

MOST_BYTES = 50 * 1024 * 1024
"""Of a payload: as the SDK's driver for S3 has it."""
DIGEST = "sha256"


class StorageError(Exception):
    """A stored payload cannot be had, or not be kept. Temporal tries again: it may be there then."""


class FolderDriver(StorageDriver):
    """Keeps each payload in `folder/ab/abcd…`, the SHA-256 of it: the same payload is one file.

    The folder is this machine's own, or one that all machines mount. A reference in history is not trusted: it can name
    nothing but such a file, and no link is followed below the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self) -> str:
        """As references in history name it."""
        return "mulligan.folder"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Write payloads to the disk, and not only to its cache.

        Raises:
            StorageError: one is too large, or cannot be written.
        """
        del context
        return [await asyncio.to_thread(self._write, payload.SerializeToString()) for payload in payloads]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Read payloads.

        Raises:
            StorageError: one is not there, or was changed.
        """
        del context
        return [await asyncio.to_thread(self._read, claim.claim_data.get(DIGEST, "")) for claim in claims]

    def _write(self, data: bytes) -> StorageDriverClaim:
        digest = hashlib.sha256(data).hexdigest()
        if len(data) > MOST_BYTES:
            raise StorageError(
                f"A payload of {len(data):,} bytes is too large for external storage: {MOST_BYTES:,} at most."
            )
        try:
            with self._shelf(digest, create=True) as shelf:
                # Written again, it is as old as its newest use: whoever deletes old files spares it.
                _write_whole(shelf, digest, data)
        except OSError as error:
            raise StorageError(f"{self._named(digest)} cannot be written: {error.strerror}.") from error
        return StorageDriverClaim({DIGEST: digest})

    def _read(self, digest: str) -> Payload:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise StorageError("A reference to external storage names no file of ours.")
        try:
            with self._shelf(digest) as shelf:
                data = _read_whole(shelf, digest)
        except FileNotFoundError:
            raise StorageError(
                f"{self._named(digest)} is not there: it was deleted, or the run's worker keeps its payloads elsewhere."
            ) from None
        except OSError as error:
            raise StorageError(f"{self._named(digest)} cannot be read: {error.strerror}.") from error
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise StorageError(f"{self._named(digest)} is not what was stored: it was changed.")
        try:
            return Payload.FromString(data)
        except DecodeError:
            raise StorageError(f"{self._named(digest)} holds no payload.") from None

    def _named(self, digest: str) -> str:
        return f"The stored payload {self._folder / digest[:2] / digest}"

    @contextlib.contextmanager
    def _shelf(self, digest: str, *, create: bool = False) -> Iterator[int]:
        """The open folder that the file is in. By handles, so that no link that is put there meanwhile leads away."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(digest[:2], 0o700, dir_fd=folder)
                    os.fsync(folder)
            shelf = os.open(digest[:2], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                yield shelf
            finally:
                os.close(shelf)
        finally:
            os.close(folder)


def _write_whole(shelf: int, name: str, data: bytes) -> None:
    """A file that is whole or not there, also after a power cut."""
    unfinished = f".{name[:16]}-{secrets.token_hex(8)}"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=shelf)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, name, src_dir_fd=shelf, dst_dir_fd=shelf)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=shelf)
        raise
    os.fsync(shelf)


def _read_whole(shelf: int, name: str) -> bytes | None:
    """The file, or None where it is none, or too large. A pipe that was put there would be waited for without end."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=shelf)
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            return None
        return file.read()
