"""`search_files`: the lines of the workspace's text files that contain a text.

It takes plain text, not regular expressions: one that a model wrote can run forever, and a thread cannot be killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from mulligan import ToolError, tool
from mulligan.tools.workspace import Entry, entry_of, is_binary, open_entry, open_folder, resolve, text_of, walk

MAX_FILES = 5_000
MAX_BYTES = 64_000_000
"""Bytes read in all; they take about a second."""

MAX_FILE_BYTES = 4_000_000
"""Bytes read of one file."""

MAX_SHOWN = 24_000
"""Characters of hits in one result: below the limit of a tool's result, so that the notes at the end are not cut off."""

AROUND = 80
"""Characters of a line that are shown on each side of where the text begins."""


@tool(timeout=60, attempts=3)
def search_files(
    text: Annotated[str, Field(min_length=1, max_length=1_000)],
    path: str = ".",
    names: Annotated[str, Field(max_length=100)] = "*",
    ignore_case: bool = False,
    include_hidden: bool = False,
    max_hits: Annotated[int, Field(ge=1, le=200)] = 50,
) -> str:
    """Find the lines that contain a text, in the text files of the workspace. Plain text, not a regular expression.

    Args:
        text: The text to find, within one line.
        path: The file or the folder to search, relative to the workspace.
        names: Search only files whose name fits this pattern, for instance "*.py".
        ignore_case: Whether upper and lower case count as the same.
        include_hidden: Whether to search files and folders whose names begin with a dot too.
        max_hits: How many lines to give at most.

    Raises:
        ToolError: there is no such file or folder, or the text has more than one line.
    """
    if not text or "\n" in text or "\r" in text:
        raise ToolError("Files are searched line by line: give a text of one line that is not empty.")
    search = _Search(text.casefold() if ignore_case else text, ignore_case, max_hits)
    start = resolve(path)
    with _entries(path, include_hidden) as entries:
        for entry in entries:
            if entry.hidden and not include_hidden and entry.place != start:
                search.hidden += 1
            elif entry.kind == "unreadable folder":
                search.unreadable += 1
            elif entry.kind == "file" and fnmatchcase(entry.place.parts[-1], names):
                search.add_file(entry)
            if search.stopped:
                break
    return search.report()


@dataclass
class _Search:
    """The hits so far, and what was not searched."""

    wanted: str
    """The text to find; case-folded with `ignore_case`."""
    ignore_case: bool
    max_hits: int
    hits: list[str] = field(default_factory=list)
    shown_chars: int = 0
    files: int = 0
    bytes_read: int = 0
    binary: int = 0
    cut: int = 0
    unreadable: int = 0
    hidden: int = 0
    stopped: str = ""
    """Why the search ended early: a note for the model. Empty while it continues."""

    def add_file(self, entry: Entry) -> None:
        """Search one file, or stop where the limits of all files are reached."""
        if self.files == MAX_FILES or self.bytes_read >= MAX_BYTES:
            self.stopped = f"[stopped after {self.files:,} files of {self.bytes_read:,} bytes: search one folder]"
            return
        try:
            with open_entry(entry.folder, entry.place) as file:
                data = file.read(MAX_FILE_BYTES)
        except (ToolError, OSError):
            self.unreadable += 1
            return
        self.files += 1
        self.bytes_read += len(data)
        self.cut += entry.size > len(data)
        if is_binary(data):
            self.binary += 1
            return
        for hit in _hits(text_of(data), self.wanted, self.ignore_case):
            if len(self.hits) == self.max_hits or self.shown_chars > MAX_SHOWN:
                self.stopped = f"[stopped after {len(self.hits)} hits: there are more]"
                return
            self.hits.append(f"{entry.place}:{hit}")
            self.shown_chars += len(self.hits[-1]) + 1

    def report(self) -> str:
        """The result for the model: the hits, then notes on what was left out."""
        left_out = {
            "binary files passed over": self.binary,
            f"files searched only in their first {MAX_FILE_BYTES:,} bytes": self.cut,
            "files or folders that could not be read": self.unreadable,
            "hidden files or folders not searched: use include_hidden": self.hidden,
        }
        notes = [self.stopped] if self.stopped else []
        notes += [f"[{count} {what}]" for what, count in left_out.items() if count]
        return "\n".join([f"[lines found: {len(self.hits)}; files searched: {self.files:,}]", *self.hits, *notes])


@contextmanager
def _entries(path: str, hidden: bool) -> Iterator[Iterator[Entry]]:
    """The entries of a folder, or the one file that the path names."""
    place = resolve(path)
    if place.parts:
        with open_folder(place.folder) as outer:
            entry = entry_of(outer, place)
            if entry is not None and entry.kind == "file":
                yield iter([entry])
                return
    with open_folder(place) as folder:
        yield walk(folder, place, deep=True, hidden=hidden)


def _hits(text: str, wanted: str, ignore_case: bool) -> Iterator[str]:
    """The lines that contain `wanted`, as "number: line"."""
    if wanted not in (text.casefold() if ignore_case else text):
        return
    for number, line in enumerate(text.split("\n"), start=1):
        at = (line.casefold() if ignore_case else line).find(wanted)
        if at >= 0:
            begin, end = max(0, at - AROUND), at + len(wanted) + AROUND
            before, after = "…" if begin else "", "…" if end < len(line) else ""
            yield f"{number}: {before}{line[begin:end].strip()}{after}"
