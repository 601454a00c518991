"""`search_files`: the lines of the workspace's text files that hold a text.

Plain text, no regular expressions: one that a model wrote can take for ever, and a thread cannot be killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from mulligan import ToolError, tool
from mulligan.tools.workspace import Entry, entry_of, is_binary, open_entry, open_folder, resolve, text_of, walk

MAX_FILES = 5_000
MAX_BYTES = 64_000_000
"""Bytes looked at in all: about a second."""

MAX_FILE_BYTES = 4_000_000
"""Bytes looked at in one file."""

MAX_SHOWN = 24_000
"""Characters of hits given at once: below what a tool's result is cut to, so that the notes at the end are kept."""

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
    """Find the lines that hold a text, in the text files of the workspace. Plain text, not a regular expression.

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
    wanted = text.casefold() if ignore_case else text
    hits: list[str] = []
    notes: list[str] = []
    files = size = length = binary = cut = unreadable = hidden = 0
    with _entries(path, include_hidden) as entries:
        for entry in entries:
            if entry.hidden and not include_hidden and entry.place != resolve(path):
                hidden += 1
                continue
            if entry.kind != "file" or not fnmatchcase(entry.place.parts[-1], names):
                unreadable += entry.kind == "unreadable folder"
                continue
            if files == MAX_FILES or size >= MAX_BYTES:
                notes.append(f"[stopped after {files:,} files of {size:,} bytes: search one folder]")
                break
            try:
                with open_entry(entry.folder, entry.place) as file:
                    data = file.read(MAX_FILE_BYTES)
            except (ToolError, OSError):
                unreadable += 1
                continue
            files, size, cut = files + 1, size + len(data), cut + (entry.size > len(data))
            if is_binary(data):
                binary += 1
                continue
            for hit in _hits(text_of(data), wanted, ignore_case):
                if len(hits) == max_hits or length > MAX_SHOWN:
                    notes.append(f"[stopped after {len(hits)} hits: there are more]")
                    break
                hits.append(f"{entry.place}:{hit}")
                length += len(hits[-1]) + 1
            if notes:
                break
    left_out = {
        "binary files passed over": binary,
        f"files searched only in their first {MAX_FILE_BYTES:,} bytes": cut,
        "files or folders that could not be read": unreadable,
        "hidden files or folders not searched: use include_hidden": hidden,
    }
    notes += [f"[{count} {what}]" for what, count in left_out.items() if count]
    return "\n".join([f"[lines found: {len(hits)}; files searched: {files:,}]", *hits, *notes])


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
    if wanted not in (text.casefold() if ignore_case else text):
        return
    for number, line in enumerate(text.split("\n"), start=1):
        at = (line.casefold() if ignore_case else line).find(wanted)
        if at >= 0:
            begin, end = max(0, at - AROUND), at + len(wanted) + AROUND
            before, after = "…" if begin else "", "…" if end < len(line) else ""
            yield f"{number}: {before}{line[begin:end].strip()}{after}"
