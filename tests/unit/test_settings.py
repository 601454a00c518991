"""Settings and the errors for invalid ones."""

from __future__ import annotations

import pytest

from mulligan.client.settings import settings
from mulligan.errors import DeclarationError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MULLIGAN_MAX_CONCURRENT_ACTIVITIES", "0"),
        ("MULLIGAN_MAX_CONCURRENT_MODEL_CALLS", "many"),
        ("MULLIGAN_MAX_CONCURRENT_WORKFLOW_TASKS", "1"),
        ("MULLIGAN_MAX_TASK_QUEUE_MODEL_CALLS_PER_SECOND", "0"),
        ("MULLIGAN_MAX_ACTIVITIES_PER_SECOND", "inf"),
    ],
)
def test_an_invalid_limit_is_refused_with_its_name_and_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DeclarationError, match=rf"{name} is '{value}', but input should be .*\.$"):
        settings()


def test_only_limits_of_model_calls_give_them_their_own_task_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable sets no limit."""
    monkeypatch.setenv("MULLIGAN_MAX_ACTIVITIES_PER_SECOND", "5")
    monkeypatch.setenv("MULLIGAN_MAX_CONCURRENT_MODEL_CALLS", "")
    assert (settings().limits_activities, settings().limits_model_calls) == (True, False)
    monkeypatch.setenv("MULLIGAN_MAX_CONCURRENT_MODEL_CALLS", "5")
    assert settings().limits_model_calls


@pytest.mark.parametrize(
    ("value", "shown"),
    [("on", "'on'"), ("LOCAL", "'LOCAL'"), ("redis://me:secret@host", "the address of a redis server")],
)
def test_a_channel_that_there_is_not_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, value: str, shown: str
) -> None:
    monkeypatch.setenv("MULLIGAN_LIVE", value)
    with pytest.raises(DeclarationError, match=f"^MULLIGAN_LIVE is {shown}, but it must be local or off.$"):
        settings()


def test_the_channel_is_local_unless_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings().live == "local"
    monkeypatch.setenv("MULLIGAN_LIVE", "off")
    assert settings().live == "off"
