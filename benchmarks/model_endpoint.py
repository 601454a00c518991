"""A scripted model's endpoint for worker processes, as chat completions on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tests.support.ports import free_ports


@asynccontextmanager
async def model_endpoint(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[dict[str, str]]:
    """Serve what answers the requests; yields the environment of processes that use it."""
    app, port = web.Application(), free_ports(1)[0]
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "test-key"}
    finally:
        await runner.cleanup()
