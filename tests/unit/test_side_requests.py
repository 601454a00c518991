"""The operator's file about requests that chat front ends send beside a conversation: what it may have, what it describes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.datastructures import Headers

from mulligan import Agent, ClearToolResults, McpServer, ProviderTool, tool
from mulligan.activities.list_agents import _DETAILS, agent_json
from mulligan.errors import DeclarationError
from mulligan.features.calls_in_text import CallsInText
from mulligan.features.skills import Skills
from mulligan.serve.create_app import create_app
from mulligan.serve.openai_api.side_requests import MOST_DESCRIBED, side_requests

GOOD = """
[[request]]
prompt = "### Task:"
agent = "titles"

[[request]]
header = "X-Chore: title"
model = "openai@eu:small"

[[request]]
header = "x-quiet"
prompt = "Summarize"
agent = "summaries"
"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "text": text}


@pytest.mark.parametrize(
    ("headers", "instructions", "messages", "fields"),
    [
        ({}, "", [user("Hello.")], {"agent": "shop"}),
        ({}, "", [user("\n ### Task:\nWrite a title.")], {"agent": "titles"}),
        ({}, "### Task: titles", [user("Hello.")], {"agent": "titles"}),
        ({}, "", [user("### Task:"), {"role": "assistant", "text": "Yes."}, user("Hello.")], {"agent": "shop"}),
        ({}, "", [user("Hello."), {"role": "assistant", "text": "### Task:"}], {"agent": "shop"}),
        ({}, "", [user("A ### Task:")], {"agent": "shop"}),
        (
            {}, "", [{"role": "user", "content": [{"type": "text", "text": "### Task:"}, {"type": "image", "url": "x"}]}],
            {"agent": "titles"},
        ),
        ({"x-chore": " title "}, "", [user("x")], {"agent": "shop", "model": "openai@eu:small"}),
        ({"x-chore": "tags"}, "", [user("x")], {"agent": "shop"}),
        ({"X-Quiet": "anything"}, "", [user("Summarize this.")], {"agent": "summaries"}),
        ({"X-Quiet": "anything"}, "", [user("Hello.")], {"agent": "shop"}),
        ({}, "", [user("Summarize this.")], {"agent": "shop"}),
    ],
)  # fmt: skip
def test_a_request_is_described_by_a_header_and_how_a_text_begins(
    tmp_path: Path, headers: dict[str, str], instructions: str, messages: list[Any], fields: dict[str, Any]
) -> None:
    path = tmp_path / "side.toml"
    path.write_text(GOOD)
    described = side_requests(str(path)).read()
    assert described.served_by(Headers(headers), "shop", instructions, messages).input_fields == fields
    assert side_requests("").read().served_by(Headers(headers), "shop", instructions, messages).input_fields == {
        "agent": "shop"
    }, "nothing is guessed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[request]]\nagent = "titles"', "neither prompt nor header"),
        ('[[request]]\nprompt = "x"', "either agent or model"),
        ('[[request]]\nprompt = "x"\nagent = "titles"\nmodel = "openai:small"', "either agent or model"),
        ('[[request]]\nprompt = " "\nagent = "titles"', "'request.0.prompt' is invalid"),
        ('[[request]]\nprompt = "x"\nmodel = "small"', "model is not provider:NAME"),
        ('[[request]]\nprompt = "x"\ntool = "small"', "'request.0.tool' is invalid"),
        ('[requests]\nprompt = "x"', "'requests' is invalid"),
        ('[[request]]\nprompt = "x"\nagent = "a"\n' * (MOST_DESCRIBED + 1), "'request' is invalid"),
    ],
)
def test_a_fault_stops_the_server_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    path = tmp_path / "side.toml"
    path.write_text(text)
    monkeypatch.setenv("MULLIGAN_SIDE_REQUESTS", str(path))
    with pytest.raises(DeclarationError, match=says) as raised:
        create_app()
    assert "\n" not in str(raised.value)
    assert "MULLIGAN_SIDE_REQUESTS" in str(raised.value)


class Label(BaseModel):
    name: str


LIMITS = {
    "name",
    "model",
    "models",
    "source",
    "max_steps",
    "max_repeats",
    "max_total_tokens",
    "max_depth",
    "max_sub_runs",
    "max_cost",
    "handle_errors",
    "parallel_tool_calls",
    "model_timeout",
    "model_patience",
    "model_attempts",
}
"""What a model alone has of its agent: of everything else, what an agent has that is declared with nothing."""


@tool
def look(question: str) -> str:
    """Look."""
    return question


@tool(on_demand=True)
def look_closer(question: str) -> str:
    """Look closer."""
    return question


def skills(path: Path) -> Skills:
    (path / "looking").mkdir()
    (path / "looking" / "SKILL.md").write_text("---\nname: looking\ndescription: How to look.\n---\nOpen your eyes.\n")
    return Skills(path)


def test_a_model_alone_has_nothing_of_what_its_agent_is_declared_with(tmp_path: Path) -> None:
    agent = Agent(
        name="equipped",
        model="scripted:a",
        instructions="Sell.",
        tools=[look, look_closer, ProviderTool("openai", {"type": "web_search"})],
        mcp=[McpServer("shop", url="http://localhost:1/mcp")],
        output=Label,
        features=[skills(tmp_path), ClearToolResults(), CallsInText()],
        client_instructions="refuse",
        model_settings={"temperature": 1},
    )
    alone, bare = agent.model_only(), Agent(name="equipped", model="scripted:a")
    differing = {each.name for each in fields(Agent) if getattr(alone, each.name) != getattr(bare, each.name)}
    assert differing <= {*LIMITS, "is_of_run", "client_instructions"}
    assert alone.client_instructions == "context"  # also a customer's: the operator has described such requests
    assert (agent.has_tools, alone.has_tools, list(alone.listed_tools)) == (True, False, [])


@pytest.mark.parametrize("kind", ["none", "tools", "function", "mcp", "provider", "skills", "feature without tools"])
def test_whether_an_agent_has_tools_is_said_of_every_kind(kind: str, tmp_path: Path) -> None:
    """Also where a worker serves so many agents that their tools are not listed."""
    declared: dict[str, dict[str, Any]] = {
        "none": {},
        "tools": {"tools": [look]},
        "function": {"tools": lambda run_input: [look]},
        "mcp": {"mcp": [McpServer("shop", url="http://localhost:1/mcp")]},
        "provider": {"model": "openai:a", "tools": [ProviderTool("openai", {"type": "web_search"})]},
        "skills": {"features": [skills(tmp_path)]},
        "feature without tools": {"features": [ClearToolResults()]},
    }
    agent = Agent(**{"name": "a", "model": "scripted:a", **declared[kind]})
    assert agent_json(agent)["has_tools"] is (kind not in ("none", "feature without tools"))
    assert "has_tools" not in _DETAILS
