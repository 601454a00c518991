"""Tool results and prompts of the benchmark: 1 KB of words each, different for each step.

Words, because a repeated letter would favour contenders that compress. Only the standard library is imported: rivals run it.
"""

from __future__ import annotations

import random
from functools import lru_cache

BYTES = 1024
A_DAY = 24 * 60 * 60
"""The sleep of the tool that keeps a run open, in seconds."""
HOLD = -1
"""The argument that makes the tool sleep."""

_WORDS = (
    "the a of to and in order customer lamp invoice carrier parcel refund was is not been delivered broken before "
    "after monday tuesday morning evening answer question letter warehouse north south seven eleven forty-two price "
    "account balance because although whether another window table copper silver green amber please thank sorry "
    "return exchange credit note number street house garden river market signature weight colour battery manual"
).split()


@lru_cache(maxsize=10_000)
def passage(number: int) -> str:
    """1,024 characters for a number: always the same, and different from those of other numbers."""
    words = random.Random(number).choices(_WORDS, k=BYTES // 3)
    return f"{number} {' '.join(words)}"[:BYTES]


def five_passages(number: int) -> str:
    """5 KB for a number, all different."""
    return "\n".join(passage(100_000 + 5 * number + nth) for nth in range(5))


def prompt(steps: int, run: str, *, hold: bool = False) -> str:
    """A prompt of 1 KB that controls the scripted endpoint.

    Args:
        steps: how many calls of the tool the model makes.
        run: letters and digits; the endpoint counts by it.
        hold: then one more call, which does not end; else a text.
    """
    return f"[{'hold' if hold else 'steps'}:{steps} run:{run}] {passage(0)}"[:BYTES]
