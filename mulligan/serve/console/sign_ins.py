"""What this process knows of sign-ins to the console: the attempts of the last minute, and the sessions that were ended."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque

from starlette.requests import Request

from mulligan.serve.problems import Problem

__all__ = ["SignIns"]

SECONDS = 60.0
MOST_OF_ADDRESS, MOST_ATTEMPTS = 10, 100
"""Attempts that fail within that time: from one address, and in all."""
MOST_ENDED = 10_000
"""Sessions of one name that are remembered as ended. Nobody can sign out a session without the token of that name."""


class SignIns:
    """Attempts count from their beginning, so that many at the same time are not more; those that succeed do not count."""

    def __init__(self) -> None:
        self._attempts: deque[tuple[float, str]] = deque()
        self._ended: defaultdict[str | None, dict[str, int]] = defaultdict(dict)

    @staticmethod
    def of(request: Request) -> SignIns:
        """Those of the application that serves a request."""
        state = request.app.state
        if not hasattr(state, "console_sign_ins"):
            state.console_sign_ins = SignIns()
        known: SignIns = state.console_sign_ins
        return known

    def begin(self, address: str) -> tuple[float, str]:
        """Count an attempt, before its token is read.

        Raises:
            Problem: there were too many.
        """
        now = time.monotonic()
        while self._attempts and self._attempts[0][0] <= now - SECONDS:
            self._attempts.popleft()
        of_address = [at for at, each in self._attempts if each == address]
        is_full = len(of_address) >= MOST_OF_ADDRESS
        if is_full or len(self._attempts) >= MOST_ATTEMPTS:
            first = of_address[0] if is_full else self._attempts[0][0]
            wait = max(1, math.ceil(first + SECONDS - now))
            sentence = f"Too many attempts to sign in have failed. Try again in {wait} seconds."
            raise Problem(429, "too_many_attempts", sentence, {"Retry-After": str(wait)})
        self._attempts.append((now, address))
        return self._attempts[-1]

    def succeed(self, attempt: tuple[float, str]) -> None:
        """Take an attempt back that `begin` has counted."""
        if attempt in self._attempts:
            self._attempts.remove(attempt)

    def end(self, name: str | None, session: str, ends: int) -> None:
        """End a session of a token's name. `ends`: when it would have ended by itself, in seconds since the epoch."""
        ended = self._ended[name]
        ended[session] = ends
        while ended and (len(ended) > MOST_ENDED or next(iter(ended.values())) < time.time()):
            del ended[next(iter(ended))]  # the oldest

    def has_ended(self, name: str | None, session: str) -> bool:
        """Whether a session was ended here."""
        return session in self._ended.get(name, ())
