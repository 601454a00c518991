"""An agent whose runs are run again, for `benchmarks/run_again.py`; its models are scripted."""

from __future__ import annotations

from pathlib import Path

from mulligan import Agent, Call, Say, Script, ToolContext, tool

PLACES, LONG = 3, 1_000


@tool
def book(place: int, ctx: ToolContext) -> str:
    """Book a place: a line in a file, which says whether the tool has run."""
    with Path(ctx.metadata["bookings"]).open("a") as file:
        file.write(f"{ctx.workflow_id} {place}\n")
    return f"Place {place} is booked."


def _booking(name: str, places: list[int], text: str) -> Script:
    return Script(name, [*(Say(calls=[Call("book", {"place": place})]) for place in places), Say(text)])


booker = Agent(name="booker", model="scripted:books", tools=[book], instructions="You book places.", max_steps=LONG)
SCRIPTS = [
    _booking("books", [*range(PLACES)], "All are booked."),
    _booking("words", [*range(PLACES)], "Everything is booked."),
    _booking("order", [*reversed(range(PLACES))], "All are booked."),
    _booking("more", [*range(PLACES + 1)], "All are booked."),
    _booking("long", [*range(LONG - 1)], "All are booked."),
]
books, words, order, more, long = SCRIPTS
