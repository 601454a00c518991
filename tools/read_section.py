"""`read_section`: one section of a Markdown file."""

from __future__ import annotations

from mulligan import InvalidToolInput, ToolError, tool
from mulligan.tools.workspace import is_binary, open_file, resolve, text_of

MAX_READ = 4_000_000
"""Bytes read of a file."""


def element_is_selector(invalid: InvalidToolInput) -> object | None:
    """Models that have driven a browser say `element` where this tool says `selector`."""
    if isinstance(invalid.arguments, dict) and "element" in invalid.arguments:
        rest = {name: value for name, value in invalid.arguments.items() if name != "element"}
        return {**rest, "selector": invalid.arguments["element"]}
    return None


@tool(timeout=30, attempts=3, fix=element_is_selector)
def read_section(path: str, selector: str) -> str:
    """Read one section of a Markdown file: a heading and the text below it.

    Args:
        path: Path of the file, relative to the workspace.
        selector: The heading's text, with or without its leading #.
    """
    place = resolve(path)
    with open_file(place) as file:
        data = file.read(MAX_READ)
    if is_binary(data):
        raise ToolError(f"'{place}' is a binary file, not Markdown.")
    wanted = selector.lstrip("#").strip().casefold()
    section: list[str] = []
    headings: list[str] = []
    depth, fenced = 0, False
    for line in text_of(data).split("\n"):
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        level, text = (0, "") if fenced else _heading(line)
        if level:
            headings.append(text)
            if depth and level <= depth:
                break
            if not depth and text.casefold() == wanted:
                depth = level
        if depth:
            section.append(line)
    if not depth:
        there = ", ".join(repr(heading) for heading in headings[:20]) or "none"
        raise ToolError(f"'{place}' has no section {selector!r}; its headings are: {there}.")
    return "\n".join(section).rstrip()


def _heading(line: str) -> tuple[int, str]:
    """A heading's level and text by CommonMark's rules for ATX headings; (0, "") where the line is none.

    Not a regular expression: each one that removes both spaces and `#` at the end takes quadratic time on a long line.
    """
    level = len(line) - len(line.lstrip("#"))
    if not 1 <= level <= 6 or not line[level : level + 1].isspace():
        return 0, ""
    text = line[level:].strip()
    unclosed = text.rstrip("#")
    return level, unclosed.rstrip() if not unclosed or unclosed[-1].isspace() else text
