"""Signs callers in by a function of the application, in place of tokens (docs/serving-sign-in.md)."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import re
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import HTTPConnection

from mulligan.errors import DeclarationError
from mulligan.serve.caller import Caller
from mulligan.serve.problems import Problem

Authenticate = Callable[[HTTPConnection], Caller | Awaitable[Caller | None] | None]
"""It gets the request without its body, which nobody has checked yet: `headers`, `cookies`, `url.path`, `client.host`."""

SECONDS = 10.0
"""How long it may take. A request that waits longer is refused: it holds a connection, and a thread."""
THREADS = 32
"""Calls of a function that is not async, at the same time; others wait, within their `SECONDS`."""
SECRET_CHARS = 8
"""A part of a header that is as long as this may be a secret."""
_PARTS = re.compile(r"[^\s;,=&\"']+")
_log = logging.getLogger(__name__)


class OwnSignIn:
    """Whatever goes wrong in the function, its request is refused."""

    def __init__(self, authenticate: Authenticate) -> None:
        """Check the function.

        Raises:
            DeclarationError: it cannot be called.
        """
        if not callable(authenticate):
            raise DeclarationError(
                f"authenticate is of the type {type(authenticate).__name__}; give a function of the request that returns a "
                "Caller or None."
            )
        self._authenticate = authenticate
        called = getattr(authenticate, "__call__", None)  # noqa: B004 - an object with an async __call__
        self._is_async = inspect.iscoroutinefunction(authenticate) or inspect.iscoroutinefunction(called)
        self._threads = ThreadPoolExecutor(THREADS, "mulligan-authenticate")

    async def caller(self, connection: HTTPConnection) -> Caller:
        """Who sends a request.

        Raises:
            Problem: 401: the function does not know them; 500: it has failed; 503: it has taken too long.
        """
        connection = HTTPConnection(dict(connection.scope))  # a Request would give it the body
        try:
            async with asyncio.timeout(SECONDS) as limit:
                found = await self._call(connection)
            if found is not None and not isinstance(found, Caller):
                raise TypeError(f"It returned {type(found).__name__}; it must return a Caller or None.")
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            if isinstance(error, TimeoutError) and limit.expired():
                _log.error("authenticate has not returned after %g s; the request is refused.", SECONDS)
                sentence = f"The sign-in of this server has taken more than {SECONDS:g} s. Try again."
                raise Problem(503, "sign_in_timeout", sentence) from None
            _log.error("authenticate has failed; the request is refused.\n%s", _without_secrets(error, connection))
            raise Problem(
                500, "sign_in_failed", "The sign-in of this server has failed; its log has the reason."
            ) from None
        if found is None:
            raise Problem(
                401, "unauthorized", "The sign-in of this server does not know who sends the request. Sign in first.",
                {"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        return found

    async def _call(self, connection: HTTPConnection) -> Any:
        if self._is_async:
            found: Any = self._authenticate(connection)
        else:
            run = contextvars.copy_context().run
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads, run, self._authenticate, connection)
        return await found if inspect.isawaitable(found) else found


def _without_secrets(error: Exception, connection: HTTPConnection) -> str:
    """A traceback without what the request's headers and its query may have of secrets."""
    text = "".join(traceback.format_exception(error))
    given = [*connection.headers.values(), connection.url.query, *connection.query_params.values()]
    parts = {part for value in given for whole in _PARTS.findall(value) for part in (whole, *whole.split("."))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= SECRET_CHARS:
            text = text.replace(part, "…")
    return text
