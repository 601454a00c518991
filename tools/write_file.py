"""`write_file`: create, replace or append to a file, completely or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from mulligan import ToolError, tool
from mulligan.tools.workspace import Place, not_a_file, open_entry, open_folder, resolve

MAX_WRITTEN = 16_000_000
"""Bytes that a file may have after writing."""

LOCK_SECONDS = 10
"""How long to wait while another call writes in the same folder. Writing takes far less."""


@tool(timeout=60)
def write_file(path: str, content: str, mode: Literal["create", "overwrite", "append"] = "create") -> str:
    """Write a text file in the workspace. Folders that are missing are made.

    Args:
        path: Path of the file, relative to the workspace.
        content: The text to write, as it shall stand in the file.
        mode: "create" refuses a file that exists, "overwrite" replaces it, "append" adds to its end;
            the last two make the file where there is none.

    Raises:
        ToolError: the file cannot be written; then nothing has changed.
    """
    place = resolve(path)
    if not place.parts:
        raise ToolError("The path names no file: give one like 'notes/today.txt'.")
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolError(
            "The content contains half a character (a lone surrogate), which no text file can contain."
        ) from None
    written = len(data)
    with open_folder(place.folder, make=True) as folder, _locked(folder, place):
        before = _status(folder, place)
        if before is not None and (refusal := not_a_file(before, place)):
            raise ToolError(refusal)
        if before is not None and mode == "create":
            raise _exists(place)
        if before is not None and mode == "append":
            with open_entry(folder, place) as file:
                data = file.read(MAX_WRITTEN + 1) + data
        if len(data) > MAX_WRITTEN:
            raise ToolError(f"'{place}' would grow beyond {MAX_WRITTEN:,} bytes. Write to another file.")
        _put(folder, place, data, before, replace=mode != "create")
    if before is None:
        return f"Wrote {written:,} bytes to '{place}', a new file."
    if mode == "append":
        return f"Added {written:,} bytes to '{place}', which now has {len(data):,}."
    return f"Wrote {written:,} bytes to '{place}', in place of {before.st_size:,}."


def _exists(place: Place) -> ToolError:
    return ToolError(f"'{place}' exists already. Use mode 'overwrite' or 'append', or another name.")


def _status(folder: int, place: Place) -> os.stat_result | None:
    try:
        return os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _put(folder: int, place: Place, data: bytes, before: os.stat_result | None, *, replace: bool) -> None:
    """Write a temporary file in the same folder, and then give it the file's name in one step.

    So neither a link nor a hard link to the old file leads the bytes elsewhere: only a name in this folder changes.
    """
    name, beside = place.parts[-1], f".mulligan-{secrets.token_hex(8)}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, 0o666, dir_fd=folder), "wb") as file:
            if before is not None:
                os.fchmod(file.fileno(), before.st_mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            # A rename would replace a file that another program has created meanwhile; a link fails.
            os.link(beside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise _exists(place) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=folder)


@contextmanager
def _locked(folder: int, place: Place) -> Iterator[None]:
    """Lock the folder against other writers, in all processes: of two appends at once, one would be lost."""
    import fcntl  # not on Windows, where `open_folder` has refused already, but this module must be importable

    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise ToolError(f"'{place}' cannot be written: another program keeps its folder locked.") from None
            time.sleep(0.01)
    yield  # closing the descriptor unlocks
