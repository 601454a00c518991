"""The one-line texts for Temporal's UI, and the details of a run, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.run_input import RunInput
from mulligan.values import AssistantMessage, Progress, Usage, UserMessage, WaitingFor
from mulligan.wire.ui_summary import run_summary, task_of, ui_summary
from mulligan.workflows import current_details as details_module
from mulligan.workflows.current_details import current_details


@given(st.text(max_size=2_000), st.none() | st.text(max_size=20_000))
def test_a_summary_is_one_printable_line_of_at_most_200_bytes(agent: str, prompt: str | None) -> None:
    summary = run_summary(agent, prompt)
    assert summary.isprintable()
    assert len(summary.encode("utf-8", "replace")) <= 200


@pytest.mark.parametrize(
    ("prompt", "summary"),
    [
        ("Where is order 7?", "desk: Where is order 7?"),
        ("\r\n \n\tWhere  is\x00 it?\nNow.", "desk: Where is it?"),
        ("", "desk"),
        (None, "desk"),
        ("x" * 300, "desk: " + "x" * 99 + "…"),
    ],
)
def test_the_summary_of_a_run_is_its_agent_and_the_first_line_of_its_prompt(prompt: str | None, summary: str) -> None:
    assert run_summary("desk", prompt) == summary


def test_the_task_of_a_run_without_prompt_is_the_last_message_of_its_user() -> None:
    messages = [
        UserMessage(role="user", text="one"),
        UserMessage(role="user", text="two"),
        AssistantMessage(role="assistant", text="three", tool_calls=[]),
    ]
    assert task_of(RunInput(agent="a", messages=messages)) == "two"
    assert task_of(RunInput(agent="a", messages=messages, prompt="four")) == "four"


def test_a_long_name_is_cut() -> None:
    assert ui_summary("n" * 1_000) == "n" * 169 + "…"


def test_nothing_in_the_details_leaves_its_code_block_or_is_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes markdown could otherwise make the browser of whoever looks send a request to any host."""
    trap = "```\n![x](http://x.test)\n``` `"
    progress = Progress(
        status="waiting", step=1, max_steps=5, usage=Usage(), tool_calls=1, recovered_failures=0, cost=0.25,
        waiting_for=WaitingFor(kind="person", since="2026-01-01T00:00:00+00:00", detail=trap),
    )  # fmt: skip
    monkeypatch.setattr(details_module, "agent_progress", lambda _: progress)
    monkeypatch.setattr(details_module, "task_in_one_line", lambda _: trap)
    agent: Any = SimpleNamespace(name=trap, has_begun=True)
    waiting = [{"call_id": "c1", "text": trap}, {"call_id": "c2", "text": "other", "conversation": "1"}]
    details = current_details({"0": agent}, waiting)
    assert details.count("```") == 2
    assert details.count("`") % 2 == 0
    outside, block, after = details.split("```")
    assert block.count("http") == 2
    for line in (*outside.splitlines(), *after.splitlines()):
        assert "http" not in "".join(line.split("`")[::2])
    assert "0.2500 USD" in details
    assert "other" not in details


def test_the_details_of_a_workflow_with_many_agents_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(status="completed", step=1, max_steps=5, usage=Usage(), tool_calls=0, recovered_failures=0)
    monkeypatch.setattr(details_module, "agent_progress", lambda _: progress)
    monkeypatch.setattr(details_module, "task_in_one_line", lambda _: "t" * 100)
    agents: dict[str, Any] = {str(n): SimpleNamespace(name=f"a{n}", has_begun=True) for n in range(500)}
    details = current_details(agents, [])
    assert details.startswith("**Agent** `a499`")
    assert details.endswith("490 more agents")
    assert len(details) < 5_000
