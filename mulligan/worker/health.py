"""Liveness and readiness checks over HTTP, for Kubernetes, Compose or systemd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from mulligan.client.plain_http_server import Request, Response, plain_http_server
from mulligan.errors import DeclarationError


@asynccontextmanager
async def health_server(
    address: str, unready: Callable[[], Awaitable[str]], notes: Callable[[], Sequence[str]] = tuple
) -> AsyncIterator[str]:
    """Serve `GET /livez` and `GET /readyz` at `address` (`host:port`) while the block runs; yields the bound address.

    `/livez` returns 200 while this event loop runs. It checks no other process, because restarting this one would not
    help. `/readyz` returns 200 if `unready` returns an empty text, else 503 with that text, the reason; then a line for each
    of `notes`, what is wrong and keeps nothing from being served.

    Raises:
        DeclarationError: the address cannot be bound.
    """

    async def handle(request: Request) -> Response:
        if request.path not in ("/livez", "/readyz"):
            return Response(404, "There is no such path; GET /livez or /readyz.\n")
        if request.method not in ("GET", "HEAD"):
            return Response(405, "GET this path.\n", headers={"Allow": "GET, HEAD"})
        reason = await unready() if request.path == "/readyz" else ""
        lines = [reason or "ok", *(f"warning: {note}" for note in notes() if request.path == "/readyz")]
        return Response(503 if reason else 200, "".join(f"{line}\n" for line in lines))

    host, _, port = address.rpartition(":")
    async with AsyncExitStack() as stack:
        try:
            bound = await stack.enter_async_context(plain_http_server(handle, host.strip("[]"), int(port)))
        except (OSError, OverflowError) as error:
            raise DeclarationError(
                f'MULLIGAN_HEALTH_ADDRESS is "{address}", but the worker cannot listen there: {error}.'
            ) from None
        yield f"{bound[0]}:{bound[1]}"
