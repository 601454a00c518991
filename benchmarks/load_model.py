"""The load of many open runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Load:
    """What each open run does."""

    steps_a_day: float = 20
    waits_a_day: float = 4
    """How often it waits for a person, a callback or a point in time, and goes on."""
    live_seconds: float = 5
    """How long a model writes in a step."""
    watched: float = 0.25
    """The share of that time in which somebody watches."""
    days_open: float = 7
    peak: float = 4
    """The busiest second, in times of the mean."""

    def __str__(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in asdict(self).items())

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read `steps_a_day=200,peak=10`; what is not there is as usual.

        Raises:
            ValueError: a name is not known, or a value is not a number above 0.
        """
        given = dict(part.split("=", 1) for part in text.split(",") if part)
        if unknown := [name for name in given if name not in asdict(cls())]:
            raise ValueError(f"{unknown[0]!r} is not known; a load has {cls()}.")
        values = {name: float(value) for name, value in given.items()}
        if wrong := [name for name, value in values.items() if not value > 0]:
            raise ValueError(f"{wrong[0]} is {given[wrong[0]]}; it must be above 0.")
        return cls(**values)
