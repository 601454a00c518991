"""`read_file`: a part of a text file."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from mulligan import ToolError, tool
from mulligan.tools.workspace import is_binary, open_file, resolve, text_of

MAX_READ = 16_000_000
"""Bytes read of a file: enough for any text, and small enough for memory."""

MAX_SHOWN = 24_000
"""Characters in one result: below the limit of a tool's result, so that the note at the end is not cut off."""


@tool(timeout=30, attempts=3)
def read_file(
    path: str,
    start_line: Annotated[int, Field(ge=1)] = 1,
    max_lines: Annotated[int, Field(ge=1, le=2_000)] = 400,
) -> str:
    """Read a text file of the workspace, or a part of it.

    Args:
        path: Path of the file, relative to the workspace.
        start_line: The first line to read, counted from 1.
        max_lines: How many lines to read at most.

    Raises:
        ToolError: there is no such text file, or no such line in it.
    """
    place = resolve(path)
    with open_file(place) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(MAX_READ)
    if is_binary(data):
        raise ToolError(f"'{place}' is a binary file of {size:,} bytes, not text.")
    lines = text_of(data).split("\n")
    if lines[-1] == "":
        lines.pop()
    total, beyond = len(lines), size > len(data)
    if not total:
        return f"[{place}: the file is empty]"
    whole = f"of the first {MAX_READ:,} of {size:,} bytes" if beyond else f"of {total:,}"
    if start_line > total:
        raise ToolError(
            f"'{place}' has no line {start_line:,}: {total:,} lines {'are read ' + whole if beyond else 'in all'}."
        )
    taken, cut = _fitting(lines[start_line - 1 : start_line - 1 + max_lines])
    last = start_line + len(taken) - 1
    text = "\n".join([f"[{place}: lines {start_line:,} to {last:,} {whole}]", *taken])
    if cut:
        text += f"\n[line {last:,} is cut: {cut:,} more characters]"
    if last < total:
        text += f"\n[{total - last:,} more lines; read on with start_line={last + 1}]"
    return text


def _fitting(lines: list[str]) -> tuple[list[str], int]:
    """As many lines as fit into `MAX_SHOWN`, at least one; and how many characters of a single line are left out."""
    if len(lines[0]) > MAX_SHOWN:
        return [lines[0][:MAX_SHOWN]], len(lines[0]) - MAX_SHOWN
    length = 0
    for count, line in enumerate(lines):
        length += len(line) + 1
        if length > MAX_SHOWN + 1:
            return lines[:count], 0
    return lines, 0
