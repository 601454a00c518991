"""llama.cpp leaves out tools where the chat template of its model has none: `mulligan doctor` asks it, and says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from mulligan import Agent, Model
from mulligan.doctor.model_endpoints import NO_TOOLS, check_models
from mulligan.worker.loading import load_agents


def answers(body: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return handle


@asynccontextmanager
async def server(props: dict[str, Any] | None) -> AsyncIterator[str]:
    """A server with one model, and with properties unless they are None."""
    app = web.Application()
    app.router.add_get("/v1/models", answers({"data": [{"id": "phi"}]}))
    if props is not None:
        app.router.add_get("/props", answers(props))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("props", "state"),
    [
        ({"chat_template_caps": {"supports_tools": False}}, "warning"),
        ({"chat_template_caps": {"supports_tools": True}}, "ok"),
        ({"chat_template": "{{ messages }}"}, "ok"),
        (None, "ok"),
    ],
    ids=["no tools", "tools", "an older server", "another server"],
)
async def test_the_doctor_says_that_a_template_has_no_tools(props: dict[str, Any] | None, state: str) -> None:
    async with server(props) as url:
        agent = Agent(name="local", model=Model("openai-chat@local:phi", base_url=url))
        [finding] = await check_models(load_agents([agent], []))
    assert finding.state == state
    assert (finding.text == NO_TOOLS) == (state == "warning")
