"""Prints a table whose first column is an id, which nobody can shorten or break."""

from __future__ import annotations

from collections.abc import Sequence

from rich.padding import Padding
from rich.text import Text

from mulligan.cli._terminal import out, print_line

GAP = "  "
"""Between two columns, and before what belongs to the line above."""
_COMMAND = ": mulligan "
"""What stands in a note before the command that it ends with."""


def print_rows(
    headings: Sequence[str], rows: Sequence[Sequence[Text]], notes: Sequence[tuple[str, str] | None] = ()
) -> None:
    """Print a line for each row. In a terminal that is too narrow for that, the id stands above the rest.

    A terminal would break what is too long for it within a word: there the text is broken between words, and a command
    stands on a line of its own, so that it can be copied.

    Args:
        headings: the names of the columns, the id's first.
        rows: the cells, as many as there are headings. Those with `justify="right"` are aligned to the right.
        notes: for each row a subject and a sentence: below the table, or without the subject below the row. A note is
            never in a cell, which would break the command that it ends with.
    """
    head = [Text(name, style="bold", justify=cell.justify) for name, cell in zip(headings, rows[0], strict=True)]
    widths = [max(row[column].cell_len for row in (head, *rows)) for column in range(len(head))]
    is_narrow = out.is_terminal and sum(widths) + len(GAP) * (len(widths) - 1) > out.width
    if not is_narrow:
        for row in (head, *rows):
            out.print(_line(row, widths), soft_wrap=True)
    for row, note in zip(rows, notes or [None] * len(rows), strict=True):
        if is_narrow:
            out.print(row[0], soft_wrap=True)
            out.print(_indented(_line(row[1:], widths[1:])))
        if note is not None:
            _print_note(note[1] if is_narrow else f"… {note[0]}: {note[1]}", is_indented=is_narrow)


def _print_note(note: str, *, is_indented: bool) -> None:
    if not out.is_terminal:
        print_line(note)
        return
    text, before, command = note.rpartition(_COMMAND)
    words = Text(text + ":" if before else note)
    out.print(_indented(words) if is_indented else words)
    if before:
        print_line(GAP + before.removeprefix(": ") + command)


def _indented(line: Text) -> Padding:
    return Padding(line, (0, 0, 0, len(GAP)), expand=False)


def _line(row: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, width in zip(row, widths, strict=True):
        space = " " * (width - cell.cell_len)
        line += Text.assemble(space, cell, GAP) if cell.justify == "right" else Text.assemble(cell, space, GAP)
    line.rstrip()
    return line
