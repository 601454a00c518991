"""Liveness and readiness over HTTP, for whoever keeps workers running: Kubernetes, Compose, systemd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mulligan.errors import DeclarationError

__all__ = ["health_server"]


@asynccontextmanager
async def health_server(address: str, unready: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    """Answer `GET /livez` and `GET /readyz` at `address` (`host:port`) while the block runs; gives the bound address.

    `/livez` is 200 as long as this event loop turns: it asks nobody else, as a restart mends no other process. `/readyz`
    is 200 where `unready` gives no reason, else 503 with the reason.

    Raises:
        DeclarationError: the address cannot be bound.
    """
    # Imported here: a worker that nobody probes need not pay for it.
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
                f'MULLIGAN_HEALTH_ADDRESS is "{address}", where nothing can listen: {error}.'
            ) from None
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()
