"""How far the searches of system tests go. In CI as far as they have ever found something; SEARCH_TIMES=20 is a night's."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """The number of examples of a search, `count` in CI. With more of them they are not those of CI: give hypothesis another seed."""
    return count * int(os.environ.get("SEARCH_TIMES", "1"))
