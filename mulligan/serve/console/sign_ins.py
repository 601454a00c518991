"""Sign-ins to the console, as this process knows them: the failed attempts of the last minute, and the ended sessions."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque

from mulligan.serve.http_protocol import kept
from mulligan.serve.problems import Problem

SECONDS = 60.0
MOST_OF_ADDRESS = 10
"""Attempts from one address that may fail within that time. There is no limit for all addresses: whoever has many could
keep everybody out."""
MOST_REMEMBERED = 10_000
MOST_ENDED = 10_000
"""Sessions of one name that are remembered as ended. Nobody can sign out a session without the token of that name."""


class SignIns:
    """The failed attempts by address, and the sessions that were ended."""

    def __init__(self) -> None:
        self._failed: deque[tuple[float, str]] = deque(maxlen=MOST_REMEMBERED)
        self._ended: defaultdict[str | None, dict[str, int]] = defaultdict(dict)

    def check(self, address: str) -> None:
        """Refuse an attempt from an address.

        Raises:
            Problem: too many from it have failed.
        """
        now = time.monotonic()
        while self._failed and self._failed[0][0] <= now - SECONDS:
            self._failed.popleft()
        of_address = [at for at, each in self._failed if each == address]
        if len(of_address) >= MOST_OF_ADDRESS:
            wait = max(1, math.ceil(of_address[0] + SECONDS - now))
            sentence = f"Too many attempts to sign in have failed. Try again in {wait} seconds."
            raise Problem(429, "too_many_attempts", sentence, {"Retry-After": str(wait)})

    def fail(self, address: str) -> None:
        """Count an attempt that has failed."""
        self._failed.append((time.monotonic(), address))

    def end(self, name: str | None, session: str, ends: int) -> None:
        """End a session of a token's name. `ends`: when it would have ended by itself, in seconds since the epoch."""
        ended = self._ended[name]
        ended[session] = ends
        while ended and (len(ended) > MOST_ENDED or next(iter(ended.values())) < time.time()):
            del ended[next(iter(ended))]  # the oldest

    def has_ended(self, name: str | None, session: str) -> bool:
        """Whether a session was ended here."""
        return session in self._ended.get(name, ())


sign_ins_of = kept(SignIns)
"""Those of the application that serves a request."""
