"""`list_files`: the entries of a folder of the workspace."""

from __future__ import annotations

from mulligan import tool
from mulligan.tools.workspace import Entry, open_folder, resolve, walk

MAX_ENTRIES = 500
"""Entries shown; about 24,000 characters with names of usual length."""

MAX_SHOWN = 24_000
"""Characters shown, however long the names are."""


@tool(timeout=30, attempts=3)
def list_files(path: str = ".", recursive: bool = False, include_hidden: bool = False) -> str:
    """List what is in a folder of the workspace, sorted by name, with the size of each file.

    Args:
        path: Path of the folder, relative to the workspace; "." is the workspace itself.
        recursive: Whether to list what is in its folders too.
        include_hidden: Whether to list names that begin with a dot too.

    Raises:
        ToolError: there is no such folder.
    """
    place = resolve(path)
    lines: list[str] = []
    length = hidden = 0
    notes: list[str] = []
    with open_folder(place) as folder:
        for entry in walk(folder, place, deep=recursive, hidden=include_hidden):
            if entry.hidden and not include_hidden:
                hidden += 1
                continue
            if len(lines) == MAX_ENTRIES or length > MAX_SHOWN:
                notes.append(f"[more than these {len(lines)} entries: list one of the folders]")
                break
            lines.append(_line(entry))
            length += len(lines[-1]) + 1
    if hidden:
        notes.append(f"[{hidden} hidden, not listed: use include_hidden]")
    return "\n".join([f"[{place}: {len(lines)} {'entry' if len(lines) == 1 else 'entries'}]", *lines, *notes])


def _line(entry: Entry) -> str:
    if entry.kind == "file":
        return f"{entry.place} ({entry.size:,} bytes)"
    if entry.kind == "folder":
        return f"{entry.place}/"
    return f"{entry.place} ({'link, not followed' if entry.kind == 'link' else entry.kind})"
