"""Texts that are cut for display. `mulligan/wire/shorten.py` cuts JSON values."""

from __future__ import annotations


def cut_text(text: str, longest: int, hint: str = "") -> str:
    """A text in at most `longest` characters, with a note of how much is left out. `hint`: where the whole text is."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more characters{hint})"


def beginning(text: str, longest: int) -> str:
    """A text in at most `longest` characters, with an ellipsis in place of the rest: for names and single lines."""
    return text if len(text) <= longest else f"{text[:longest]}…"
