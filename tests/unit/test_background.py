"""Declarations of agents with background responses, what is pinned for them, and the example of docs/background.md."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan import Agent, Background, Say
from mulligan.errors import DeclarationError
from mulligan.testing import ScriptedModel, run_agent
from mulligan.workflows.background.background import BackgroundFacts, is_background
from mulligan.workflows.background.open_response import OpenResponse

PAGE = (Path(__file__).parent.parent.parent / "docs/background.md").read_text()


async def test_the_example_of_the_page_is_declared_and_other_models_answer_at_once() -> None:
    """A test's scripted model is no model of `openai:`, so the agent is tested as any other."""
    page: dict[str, Agent] = {}
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/background.md", "exec", dont_inherit=True), page)
    analyst = page["analyst"]
    assert analyst.feature(Background) == Background(timeout=timedelta(hours=2))
    run = await run_agent(analyst, "How was the year?", model=ScriptedModel(Say("Good.")))
    assert run.output == "Good."


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"model": "openai-chat:gpt-5"}, "Background is for models of 'openai:'"),
        ({"model": ["anthropic:claude", "google:gemini"]}, "'anthropic:claude', 'google:gemini'"),
        (
            {"model": "openai:gpt-5", "features": [Background(timeout=0)]},
            "Background: timeout must be more than 0 seconds",
        ),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(fault)):
        Agent(**{"name": "a", "features": [Background()], **options})  # type: ignore[arg-type]


def test_only_models_of_openai_are_called_in_the_background_at_their_endpoints_too() -> None:
    assert not is_background("openai:m", None)
    models = ("openai:m", "openai@eu:m", "openai-chat:m", "google:m")
    facts = BackgroundFacts.model_validate(Background().facts(models))
    called = {model: is_background(model, facts) for model in models}
    assert called == {"openai:m": True, "openai@eu:m": True, "openai-chat:m": False, "google:m": False}


def test_an_end_that_a_webhook_tells_before_the_id_is_known_is_remembered() -> None:
    """Of the newest responses only, as anybody with the secret may send any number."""
    response = OpenResponse(key="", since=0.0, model="openai:m", step=1, patience=1.0)
    assert response.is_awaited("a")
    response.note_ended("a")
    assert not response.has_ended
    response.id = "a"
    assert response.has_ended
    assert not response.is_awaited("b")
    response.id = None
    for number in range(100):
        response.note_ended(str(number))
    response.id = "0"
    assert not response.has_ended
    response.id = "99"
    assert response.has_ended
