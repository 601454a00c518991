"""Liveness and readiness checks over HTTP, for Kubernetes, Compose or systemd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mulligan.errors import DeclarationError

__all__ = ["health_server"]


@asynccontextmanager
async def health_server(address: str, unready: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    """Serve `GET /livez` and `GET /readyz` at `address` (`host:port`) while the block runs; yields the bound address.

    `/livez` returns 200 while this event loop runs. It checks no other process, because restarting this one would not
    help. `/readyz` returns 200 if `unready` returns an empty text, else 503 with that text, the reason.

    Raises:
        DeclarationError: the address cannot be bound.
    """
    # Imported here because only workers with health checks need it.
    from aiohttp import web

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = await unready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            raise DeclarationError(
                f'MULLIGAN_HEALTH_ADDRESS is "{address}", but the worker cannot listen there: {error}.'
            ) from None
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()
