"""A folder of files that are named by digests, for storage that several machines share."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MOST_BYTES", "StorageError", "StoredFiles"]

MOST_BYTES = 50 * 1024 * 1024
"""The maximum size of a file, the same as in the SDK's driver for S3."""


class StorageError(Exception):
    """Something cannot be read or stored. Temporal retries, as this may be temporary."""


class StoredFiles:
    """Files `folder/ab/abcd…`, each whole or not there. No symbolic link is followed below the folder.

    Args:
        folder: An existing folder.
        kind: What is stored, for errors: `The stored payload …`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind

    def write(self, name: str, data: bytes) -> None:
        """Write a file, and flush it to the disk.

        One that is there is written again, so that its age is that of its last use: jobs that delete old files keep it.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            with self._open_subfolder(name, create=True) as subfolder:
                _write_whole(subfolder, name, data)
        except OSError as error:
            raise StorageError(f"{self.text(name)} cannot be written: {error.strerror}.") from error

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none.

        Raises:
            StorageError: it cannot be read, or is no regular file of at most `MOST_BYTES`.
        """
        try:
            with self._open_subfolder(name) as subfolder:
                data = _read_whole(subfolder, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.text(name)} cannot be read: {error.strerror}.") from error
        if data is None:
            raise StorageError(f"{self.text(name)} was changed after it was stored.")
        return data

    def text(self, name: str) -> str:
        """The file, for errors."""
        return f"The stored {self._kind} {self._folder / name[:2] / name}"

    @contextlib.contextmanager
    def _open_subfolder(self, name: str, *, create: bool = False) -> Iterator[int]:
        """The open folder of the file. Open handles are used, so that a link that appears meanwhile is not followed."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name[:2], 0o700, dir_fd=folder)
                    os.fsync(folder)
            subfolder = os.open(name[:2], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
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
