"""The workspace: the one folder that the file tools can access, and the functions that open files in it.

A path is walked folder by folder, each opened inside the one before it (`dir_fd`) and never through a link
(`O_NOFOLLOW`). So nothing that another program changes meanwhile, a link put in a folder's place, leads out: there is
no moment between a check and a use. Links that stay inside are refused too: to know that they do is such a check.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

from mulligan import ToolError

MAX_PARTS = 32
"""Folders in each other: each costs a file descriptor while a tool runs."""

MAX_PATH = 1_000
"""Characters of a path."""

MAX_NAMES = 20_000
"""Names read of one folder. Which names of a larger one are read depends on the file system."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# O_NONBLOCK: to open a FIFO that was put in a file's place must not wait for a writer.
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CONFINES = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_REASONS = {
    errno.EACCES: "the tools have no permission for it",
    errno.EPERM: "the tools have no permission for it",
    errno.EROFS: "the workspace is read-only",
    errno.ENOSPC: "no space is left",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "it is a symbolic link, and links are not followed",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ENOENT: "it is not there any more",
}

Kind = Literal["file", "folder", "link", "special", "unreadable folder"]


@dataclass(frozen=True)
class Place:
    """A path in the workspace, whether something exists there or not."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return shown("/".join(self.parts)) or "."

    @property
    def folder(self) -> Place:
        """The folder that contains it."""
        return Place(self.parts[:-1])


@dataclass(frozen=True)
class Entry:
    """An entry of a folder. `folder` is that folder's descriptor, open until the walk continues with the next entry."""

    place: Place
    kind: Kind
    size: int
    folder: int

    @property
    def hidden(self) -> bool:
        """Whether its name begins with a dot."""
        return self.place.parts[-1].startswith(".")


def shown(name: str) -> str:
    """A name as text for the model: bytes that are no UTF-8, and control characters, are replaced."""
    return _CONTROL.sub("\ufffd", name.encode("utf-8", "replace").decode())


def resolve(path: str) -> Place:
    """Parse a path that a model wrote.

    Raises:
        ToolError: the path is absolute, climbs with `..`, or is not a path of a POSIX file system.
    """
    rule = "Give a path relative to the workspace, with '/' between folders, for instance 'notes/today.txt'."
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolError(f"The path '{shown(path)[:200]}' is not valid Unicode. {rule}") from None
    faults = {
        "contains control characters": _CONTROL.search(path) is not None,
        "contains a backslash": "\\" in path,
        "is absolute": path.startswith("/") or re.match(r"[A-Za-z]:", path) is not None,
        "climbs with '..'": ".." in parts,
        f"goes through more than {MAX_PARTS} folders": len(parts) > MAX_PARTS,
        f"is longer than {MAX_PATH} characters": len(path) > MAX_PATH,
    }
    if fault := next((text for text, is_so in faults.items() if is_so), None):
        raise ToolError(f"The path '{shown(path)[:200]}' {fault}. {rule}")
    return Place(parts)


@contextmanager
def open_folder(place: Place, *, make: bool = False) -> Iterator[int]:
    """Open a folder and give its descriptor. With `make` it is made where missing, and removed again if the body fails.

    Raises:
        ToolError: it is not there, is not a folder, or is reached through a link.
    """
    with ExitStack() as opened:
        here = _open_root(make=make)
        opened.callback(os.close, here)
        try:
            for index, name in enumerate(place.parts):
                here = _enter(here, name, Place(place.parts[: index + 1]), opened if make else None)
                opened.callback(os.close, here)
            yield here
        except OSError as error:
            raise ToolError(f"'{place}': {_reason(error)}.") from error


@contextmanager
def open_file(place: Place) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises:
        ToolError: it is not there, is not a regular file, or is reached through a link.
    """
    if not place.parts:
        raise ToolError("'.' is the workspace folder itself, not a file. List what is in it with list_files.")
    with open_folder(place.folder) as folder, open_entry(folder, place) as file:
        yield file


@contextmanager
def open_entry(folder: int, place: Place) -> Iterator[BinaryIO]:
    """Open a regular file in an opened folder for reading, never waiting for it.

    Raises:
        ToolError: it is not there, or is not a regular file.
    """
    name = place.parts[-1]
    try:
        # Checked before it is opened as well: opening a device can already have an effect.
        if refusal := not_a_file(os.stat(name, dir_fd=folder, follow_symlinks=False), place):
            raise ToolError(refusal)
        file = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
    except FileNotFoundError:
        raise ToolError(_absent(folder, place)) from None
    except OSError as error:
        raise ToolError(f"'{place}' cannot be opened: {_reason(error)}.") from error
    with file:
        if refusal := not_a_file(os.fstat(file.fileno()), place):
            raise ToolError(refusal)
        yield file


def not_a_file(status: os.stat_result, place: Place) -> str | None:
    """Why it cannot be read or written; None for a regular file."""
    kind = kind_of(status)
    if kind == "file":
        return None
    if kind == "folder":
        return f"'{place}' is a folder, not a file. List what is in it with list_files."
    if kind == "link":
        return f"'{place}' is a symbolic link, and links are not followed. Name the file itself."
    return f"'{place}' is not a regular file but a device, pipe or socket. Only regular files can be used."


def kind_of(status: os.stat_result) -> Kind:
    """The kind of the file that a status describes."""
    if stat.S_ISLNK(status.st_mode):
        return "link"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "file" if stat.S_ISREG(status.st_mode) else "special"


def entry_of(folder: int, place: Place) -> Entry | None:
    """The entry at a place whose folder is open; None where there is none, or no permission to see it."""
    try:
        status = os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return Entry(place, kind_of(status), status.st_size, folder)


def walk(folder: int, place: Place, *, deep: bool, hidden: bool) -> Iterator[Entry]:
    """Yield the entries of a folder, sorted by name, each folder before its own entries. Links are never followed.

    Hidden entries are included; hidden folders are entered only with `hidden`, and folders at all only with `deep`.
    """
    for name in _names(folder):
        inner_place = Place((*place.parts, name))
        entry = entry_of(folder, inner_place)
        if entry is None:
            continue  # deleted since the folder was read
        enters = entry.kind == "folder" and deep and (hidden or not entry.hidden) and len(inner_place.parts) < MAX_PARTS
        if not enters:
            yield entry
            continue
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            yield Entry(inner_place, "unreadable folder", 0, folder)
            continue
        try:
            yield entry
            yield from walk(inner, inner_place, deep=deep, hidden=hidden)
        finally:
            os.close(inner)


def is_binary(data: bytes) -> bool:
    """Whether the data is not text: it has a NUL byte near the beginning, and no byte order mark of UTF-16."""
    return b"\0" in data[:8_192] and not data.startswith((b"\xff\xfe", b"\xfe\xff"))


def text_of(data: bytes) -> str:
    """The data as text, without a byte order mark; bytes that are no UTF-8 become U+FFFD."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    return data.decode(encoding, "replace").replace("\r\n", "\n")


def _open_root(*, make: bool) -> int:
    if not _CONFINES:
        raise ToolError("The file tools cannot be used: this system has no way to confine them to a folder.")
    # The operator chose the root, so links in its path are followed.
    root = Path(os.environ.get("MULLIGAN_WORKSPACE") or "workspace")
    try:
        if make:
            root.mkdir(parents=True, exist_ok=True)
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise ToolError("The workspace is empty: nothing has been written to it yet.") from None
    except OSError as error:
        raise ToolError("The workspace cannot be opened: MULLIGAN_WORKSPACE names no usable folder.") from error


def _enter(folder: int, name: str, place: Place, undo: ExitStack | None) -> int:
    """Open one folder inside another; with `undo` make it if it is missing, to be removed again if the stack fails."""
    try:
        if undo is not None:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
                undo.push(lambda kind, *_: _remove(folder, name) if kind else None)
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        raise ToolError(_absent(folder, place)) from None
    except OSError as error:
        with suppress(OSError):
            kind = kind_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
            if kind == "link":
                raise ToolError(f"'{place}' is a symbolic link, and links are not followed.") from error
            if kind != "folder":
                raise ToolError(f"'{place}' is not a folder.") from error
        raise ToolError(f"'{place}' cannot be opened: {_reason(error)}.") from error


def _remove(folder: int, name: str) -> None:
    with suppress(OSError):  # another call may have put something into it
        os.rmdir(name, dir_fd=folder)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, MAX_NAMES))


def _absent(folder: int, place: Place) -> str:
    """The text that something does not exist, with the nearest names or the names in its folder."""
    names = _names(folder)
    near = difflib.get_close_matches(place.parts[-1], names[:2_000], n=3)
    said = f"There is no '{place}' in the workspace."
    if near:
        return f"{said} Nearest: {', '.join(str(Place((*place.folder.parts, name))) for name in near)}."
    if not names:
        return f"{said} The folder '{place.folder}' is empty."
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"{said} The folder '{place.folder}' contains: {', '.join(map(shown, names[:10]))}{more}."


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, error.strerror or "the system refused")
