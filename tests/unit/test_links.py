"""Links to the UIs of Temporal and Jaeger: to configured, known or responding addresses only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mulligan.trace_view.ui_links import jaeger_link, temporal_link

PAGE = "/namespaces/default/workflows/run%2F8/r1/history"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port on which a server listens."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("server", "link"),
    [
        ("eu-west-1.aws.api.temporal.io:7233", f"https://cloud.temporal.io{PAGE}"),
        ("shop.a1b2c.tmprl.cloud:7233", f"https://cloud.temporal.io{PAGE}"),
        ("temporal.example.com:7233", None),
        ("evil-tmprl.cloud:7233", None),
        ("127.0.0.1:1", None),  # nothing listens at 1001
        ("127.0.0.1:65000", None),  # and nothing can at 66000
    ],
)
async def test_the_default_link_to_temporals_ui_depends_on_the_server(server: str, link: str | None) -> None:
    assert await temporal_link(server, "default", "run/8", "r1") == link


async def test_a_local_dev_servers_ui_is_linked_if_it_answers(port: int) -> None:
    assert await temporal_link(f"localhost:{port - 1000}", "default", "run/8", "r1") == f"http://localhost:{port}{PAGE}"
    assert await temporal_link(f"temporal.example.com:{port - 1000}", "default", "run/8", "r1") is None


async def test_links_use_the_urls_of_the_settings_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_TEMPORAL_UI_URL", "https://temporal.example.com/ui/")
    monkeypatch.setenv("MULLIGAN_JAEGER_URL", "https://me:secret@jaeger.example.com/")
    assert await temporal_link("10.0.0.1:7233", "a b", "w", None) == (
        "https://temporal.example.com/ui/namespaces/a%20b/workflows/w"
    )
    assert await jaeger_link("ab" * 16) == f"https://jaeger.example.com/trace/{'ab' * 16}"


async def test_the_default_jaeger_is_linked_if_it_answers(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.trace_view.ui_links.DEFAULT_URL", "http://localhost:1")
    assert await jaeger_link("ab" * 16) is None
    monkeypatch.setattr("mulligan.trace_view.ui_links.DEFAULT_URL", f"http://localhost:{port}")
    assert await jaeger_link("ab" * 16) == f"http://localhost:{port}/trace/{'ab' * 16}"
