"""How many examples the searches of the unit tests try: few, and each time the same ones.

`EXAMPLES=20 uv run pytest tests/unit` tries twenty times as many, and others each time: it is for whoever changes what they search.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("EXAMPLES", "1"))
DEFAULT = 50
"""What a search tries that says no number."""


def examples(number: int) -> int:
    """The number of examples for one that is enough in `make test`."""
    return number * TIMES


def choose_examples() -> None:
    """Before the tests are imported. No limit of time for an example: the machine may be busy with something else."""
    settings.register_profile(
        "unit",
        max_examples=examples(DEFAULT),
        derandomize=TIMES == 1,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("unit")
