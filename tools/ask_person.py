"""`ask_person`: the agent asks, a person answers."""

from __future__ import annotations

from mulligan import tool


@tool(asks_person=True)
def ask_person(question: str) -> str:  # type: ignore[empty-body]
    """Ask the person you work for, and wait for the answer. Ask for what you cannot find out yourself.

    Args:
        question: The question: short, and complete without anything that was said before.
    """
