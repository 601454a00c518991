"""The requests of the OpenAI providers: model settings, tools and headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.errors import ModelRequestError
from tests.support.openai_server import Turn
from tests.support.provider_fixtures import APIS, Bench


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


@pytest.mark.parametrize("api", APIS)
async def test_settings_about_tools_are_left_out_without_tools(bench: Bench, api: str) -> None:
    """Servers refuse such settings without tools."""
    settings = {"tool_choice": "required", "parallel_tool_calls": True, "temperature": 1}
    await bench.answer(api, Turn("ok"), tools=(), instructions="", settings=settings, parallel_tool_calls=False)
    assert set(bench.sent) <= {"model", "messages", "input", "store", "include", "temperature"}
    assert bench.server.refusals == []


SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("openai", {"reasoning": {"effort": "low"}, "max_output_tokens": 99}, {}),
    ("openai", {"tool_choice": {"type": "function", "name": "search"}}, {}),
    (
        "openai",
        {"tool_choice": {"type": "function", "function": {"name": "search"}}},
        {"tool_choice": {"type": "function", "name": "search"}},
    ),
    (
        "openai",
        {"include": ["web_search_call.results"]},
        {"include": ["web_search_call.results", "reasoning.encrypted_content"]},
    ),
    ("openai-chat", {"max_completion_tokens": 99, "seed": 7, "stop": ["x"]}, {}),
    ("openai-chat", {"tool_choice": "required"}, {}),
    (
        "openai-chat",
        {"tool_choice": {"type": "function", "name": "search"}},
        {"tool_choice": {"type": "function", "function": {"name": "search"}}},
    ),
    ("openai-chat", {"top_k": 20, "extra_body": {"min_p": 0.1}}, {"extra_body": None, "min_p": 0.1}),
]


@pytest.mark.parametrize(
    ("api", "settings", "different"), SETTINGS, ids=[f"{api} {given}" for api, given, _ in SETTINGS]
)
async def test_settings_are_sent_unchanged_even_if_unknown(
    bench: Bench, api: str, settings: dict[str, Any], different: dict[str, Any]
) -> None:
    """The server, not a TypeError, refuses unknown ones."""
    bench.server.script("m", [Turn("ok")])
    try:
        await bench.ask(api, settings=settings)
    except ModelRequestError as refused:
        assert "Unknown parameter" in refused.message or "Invalid value" in refused.message  # noqa: PT017
    for name, value in {**settings, **different}.items():
        assert bench.sent.get(name) == value


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("parallel", [True, False])
async def test_parallel_tool_calls_is_sent_only_to_switch_it_off(bench: Bench, api: str, parallel: bool) -> None:
    """True is the default of every server."""
    await bench.answer(api, Turn("ok"), parallel_tool_calls=parallel)
    assert bench.sent.get("parallel_tool_calls") is (None if parallel else False)
    assert bench.server.refusals == []


async def test_requests_send_the_project_and_the_timeout_but_never_the_admin_key(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package reads its environment variables; its retries are off."""
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj_1")
    await bench.answer("openai", Turn("ok"), timeout=7.0)
    headers = bench.server.requests[-1].headers
    assert headers["authorization"] == "Bearer test-key"
    assert headers["openai-project"] == "proj_1"
    assert headers["x-stainless-read-timeout"] == "7.0"


async def test_a_setting_that_is_not_json_is_refused_before_any_request(bench: Bench) -> None:
    with pytest.raises(ModelRequestError, match="cannot be written as JSON"):
        await bench.ask("openai", settings={"temperature": float("nan")})
    assert bench.server.requests == []
