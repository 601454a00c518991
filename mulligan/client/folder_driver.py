"""A driver for Temporal's external storage that stores payloads as files in a folder, named by their digest."""

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
"""The maximum size of a payload, the same as in the SDK's driver for S3."""
DIGEST = "sha256"


class StorageError(Exception):
    """A payload cannot be read or stored. Temporal retries, as this may be temporary."""


class FolderDriver(StorageDriver):
    """Stores each payload in the file `folder/ab/abcd…`, named by its SHA-256, so that equal payloads are one file.

    The folder is local, or is mounted by all machines. References in history are not trusted: they can only name such a
    file, and no symbolic link is followed below the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
        """Read payloads.

        Raises:
            StorageError: a file does not exist, or was changed.
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
            with self._open_subfolder(digest, create=True) as subfolder:
                # An existing file is written again, so that its age is that of its last use, for jobs that delete old files.
                _write_whole(subfolder, digest, data)
        except OSError as error:
            raise StorageError(f"{self._file_text(digest)} cannot be written: {error.strerror}.") from error
        return StorageDriverClaim({DIGEST: digest})

    def _read(self, digest: str) -> Payload:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise StorageError("A reference to external storage does not name a stored file.")
        try:
            with self._open_subfolder(digest) as subfolder:
                data = _read_whole(subfolder, digest)
        except FileNotFoundError:
            raise StorageError(
                f"{self._file_text(digest)} is not there: it was deleted, or the run's worker uses another storage."
            ) from None
        except OSError as error:
            raise StorageError(f"{self._file_text(digest)} cannot be read: {error.strerror}.") from error
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise StorageError(f"{self._file_text(digest)} was changed after it was stored.")
        try:
            return Payload.FromString(data)
        except DecodeError:
            raise StorageError(f"{self._file_text(digest)} is not a payload.") from None

    def _file_text(self, digest: str) -> str:
        return f"The stored payload {self._folder / digest[:2] / digest}"

    @contextlib.contextmanager
    def _open_subfolder(self, digest: str, *, create: bool = False) -> Iterator[int]:
        """The open folder of the file. Open handles are used, so that a link that appears meanwhile is not followed."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(digest[:2], 0o700, dir_fd=folder)
                    os.fsync(folder)
            subfolder = os.open(digest[:2], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                yield subfolder
            finally:
                os.close(subfolder)
        finally:
            os.close(folder)


def _write_whole(subfolder: int, name: str, data: bytes) -> None:
    """Write a file so that it is complete or does not exist, also after a power cut."""
    unfinished = f".{name[:16]}-{secrets.token_hex(8)}"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=subfolder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, name, src_dir_fd=subfolder, dst_dir_fd=subfolder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=subfolder)
        raise
    os.fsync(subfolder)


def _read_whole(subfolder: int, name: str) -> bytes | None:
    """The content of a regular file; None for anything else (reading a pipe would block), or if it is too large."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=subfolder)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        return file.read()
