"""The command that the feature adds."""

from __future__ import annotations


async def quiet(place: str = "the house") -> int:
    """Say whether it is quiet in a place."""
    print(f"It is quiet in {place}.")
    return 0


COMMANDS = (quiet,)
