"""What tools give and users ask in the benchmark: 1 KB of words, another 1 KB for each step.

Words, because a run of one letter would flatter whoever compresses. No imports but Python's: rivals run it too.
"""

from __future__ import annotations

import random

BYTES = 1024
A_DAY = 24 * 60 * 60
"""Seconds. How long the tool sleeps that keeps a run open."""
HOLD = -1
"""The argument that makes the tool sleep."""

_WORDS = (
    "the a of to and in order customer lamp invoice carrier parcel refund was is not been delivered broken before "
    "after monday tuesday morning evening answer question letter warehouse north south seven eleven forty-two price "
    "account balance because although whether another window table copper silver green amber please thank sorry "
    "return exchange credit note number street house garden river market signature weight colour battery manual"
).split()


def passage(number: int) -> str:
    """The 1,024 characters of a number: always the same, and unlike those of the others."""
    words = random.Random(number).choices(_WORDS, k=BYTES // 3)
    return f"{number} {' '.join(words)}"[:BYTES]


def prompt(steps: int, run: str, *, hold: bool = False) -> str:
    """A prompt of 1 KB that tells the scripted endpoint what to do.

    Args:
        steps: how many calls of the tool the model makes.
        run: letters and digits; the endpoint counts by it.
        hold: then one more call, which does not end; else a text.
    """
    return f"[{'hold' if hold else 'steps'}:{steps} run:{run}] {passage(0)}"[:BYTES]
