"""Settings as history may have them: JSON, without secrets, of bounded size."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.activities.run_data.shown_settings import MOST_BYTES, shown_settings

SECRET = "sk-proj-4f9a8b7c6d5e4f3a2b1c"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5, "max_tokens": 99, "stop": ["END"], "seed": None},
        {"prompt_cache_key": "support", "thinking": {"type": "enabled", "budget_tokens": 2_000}},
        {"anthropic": {"thinking": {"type": "adaptive"}}, "tool_choice": "auto"},
    ],
)
def test_what_is_no_secret_stays(settings: dict[str, Any]) -> None:
    assert shown_settings(settings) == settings


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": SECRET},
        {"extra_headers": {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}},
        {"mcp_servers": [{"url": "https://mcp.example", "authorization_token": SECRET}]},
        {"credentials": {"values": [SECRET]}},
    ],
)
def test_a_secret_is_replaced_at_any_depth(settings: dict[str, Any]) -> None:
    shown = repr(shown_settings(settings))
    assert SECRET not in shown
    assert "[key]" in shown


def test_what_is_no_json_is_named() -> None:
    class Thing:
        """Of a user's own."""

    assert shown_settings({"thing": Thing(), "limit": float("inf")}) == {"thing": "Thing", "limit": "Infinity"}


def test_settings_that_are_too_large_or_too_deep_are_left_out() -> None:
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    assert shown_settings({"text": "x" * MOST_BYTES}) == {"settings": "[larger than 100,000 bytes]"}
    assert shown_settings(deep) == {"settings": "[not JSON]"}
