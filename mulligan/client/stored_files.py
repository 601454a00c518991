"""A folder of files that are named by digests, for storage that several machines share."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 50 * 1024 * 1024
"""The maximum size of a file, the same as in the SDK's driver for S3."""


_TOUCHED_AFTER = 3600.0
"""Seconds of age from which a file that is read gets the current time: fewer writes, and exact enough for `prune`."""
_NAME = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{16}-[0-9a-f]{16}")
"""A file, and one whose writer was interrupted."""
_SUBFOLDER = re.compile(r"[0-9a-f]{2}")


class StorageError(Exception):
    """Something cannot be read or stored. Temporal retries, as this may be temporary."""


class LostError(StorageError):
    """The storage answers, but does not have what a reference names, or something else in its place."""


class StoredFiles:
    """Files `folder/ab/abcd…`, each whole or not there. No symbolic link is followed below the folder.

    Args:
        folder: The folder.
        kind: What is stored, for errors: `The stored payload …`.
        creates_folder: Whether the first file creates the folder, below an existing folder.
        is_never_empty: Whether a folder without such files is not mounted: its mount point may have other files.
    """

    def __init__(self, folder: Path, kind: str, *, creates_folder: bool = False, is_never_empty: bool = False) -> None:
        self._folder, self._kind, self._creates_folder = folder, kind, creates_folder
        self._is_never_empty = is_never_empty

    def write(self, name: str, data: bytes) -> None:
        """Write a file, and flush it to the disk.

        An existing file is written again, so that its age is that of its last use: jobs that delete old files keep it.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            with self._open_subfolder(name, create=True) as subfolder:
                _write_whole(subfolder, name, data)
        except OSError as error:
            raise StorageError(f"{self.text(name)} cannot be written: {error.strerror}.") from error

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none. Its age begins again: jobs that delete old files keep it.

        Raises:
            LostError: it is no regular file of at most `MOST_BYTES`.
            StorageError: it cannot be read.
        """
        try:
            return self._read_file(name)
        except FileNotFoundError:
            if not self._creates_folder and not self._is_there():
                raise StorageError(f"The folder of the stored {self._kind}s is not there: is it mounted?") from None
            # It may have been mounted between the two looks.
            with contextlib.suppress(FileNotFoundError):
                return self._read_file(name)
            return None

    def _read_file(self, name: str) -> bytes:
        try:
            with self._open_subfolder(name) as subfolder:
                data = _read_whole(subfolder, name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"{self.text(name)} cannot be read: {error.strerror}.") from error
        if data is None:
            raise LostError(f"{self.text(name)} was changed after it was stored.")
        return data

    def prune(self, before: float, *, dry_run: bool = False) -> tuple[int, int]:
        """Delete the files that have been neither written nor read since a time; returns their number and their bytes.

        Args:
            before: The time, in seconds since the epoch.
            dry_run: Whether they are only counted.

        Raises:
            StorageError: the folder cannot be read, or a file in it cannot be deleted.
        """
        count = size = 0
        try:
            for name in sorted(os.listdir(self._folder)) if self._folder.is_dir() else ():
                if not _SUBFOLDER.fullmatch(name):
                    continue
                with self._open_subfolder(name) as subfolder:
                    for deleted in _delete_old(subfolder, before, dry_run=dry_run):
                        count, size = count + 1, size + deleted
        except OSError as error:
            raise StorageError(f"The files in {self._folder} cannot be deleted: {error.strerror}.") from error
        return count, size

    def _is_there(self) -> bool:
        if not (self._is_never_empty and self._folder.is_dir()):
            return self._folder.is_dir()
        return any(_SUBFOLDER.fullmatch(name) for name in os.listdir(self._folder))

    def text(self, name: str) -> str:
        """Name the file in an error's sentence."""
        # Without the folder: the text is told to clients of the run, too.
        return f"The stored {self._kind} {name[:2]}/{name}"

    @contextlib.contextmanager
    def _open_subfolder(self, name: str, *, create: bool = False) -> Iterator[int]:
        """The open folder of the file. Open handles are used, so that a link that appears meanwhile is not followed."""
        if create and self._creates_folder:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
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
        if time.time() - status.st_mtime > _TOUCHED_AFTER:
            with contextlib.suppress(OSError):  # a folder that this process may only read
                os.utime(handle)
        return file.read()


def _delete_old(subfolder: int, before: float, *, dry_run: bool) -> Iterator[int]:
    """Delete the old files of a folder; yields the size of each."""
    for name in os.listdir(subfolder):
        status = os.stat(name, dir_fd=subfolder, follow_symlinks=False)
        if _NAME.fullmatch(name) and stat.S_ISREG(status.st_mode) and status.st_mtime < before:
            if not dry_run:
                os.unlink(name, dir_fd=subfolder)
            yield status.st_size
