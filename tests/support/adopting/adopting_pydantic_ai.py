"""What of an agent of pydantic-ai carries over, and what is refused: tests that run where the framework is installed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryImage, DeferredToolRequests, ModelRetry, PromptedOutput, RunContext
from pydantic_ai.capabilities import NativeTool, Thinking
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import MemoryTool, WebSearchTool
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import ExternalToolset

from mulligan import DeclarationError, ProviderTool, RunInput, ToolContext, adopt
from mulligan.errors import ToolExecutionError
from mulligan.policy import text_for_model

pytestmark = pytest.mark.filterwarnings("error::UserWarning:mulligan")
MODEL = "openai:gpt-5-mini"


class Fruit(BaseModel):
    """A fruit."""

    name: str


def eat(name: str) -> str:
    """Eat.

    Args:
        name: What.
    """
    return name


def test_options_carry_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    theirs = Agent(
        MODEL,
        name="cook",
        description="Cooks.",
        instructions="Be brief.",
        system_prompt="You cook.",
        output_type=Fruit,
        tools=[Tool(eat, timeout=7, requires_approval=True)],
        capabilities=[NativeTool(WebSearchTool())],
        model_settings={"temperature": 0, "max_tokens": 9, "parallel_tool_calls": False, "timeout": 20},
    )
    ours = adopt(theirs)
    assert (ours.name, ours.description, ours.instructions) == ("cook", "Cooks.", "You cook.\n\nBe brief.")
    assert ours.models[0] in ("openai:gpt-5-mini", "openai-chat:gpt-5-mini")
    assert (ours.parallel_tool_calls, ours.model_timeout) == (False, 20)
    assert ours.model_settings["temperature"] == 0
    assert 9 in ours.model_settings.values()
    tool = ours.tool("eat")
    assert tool is not None
    assert (tool.description, tool.traits.policy, tool.timeout.total_seconds(), tool.strict) == ("Eat.", True, 7, True)
    assert tool.schema["properties"]["name"]["description"] == "What."
    assert [type(each) for each in ours.tools][-1:] == [ProviderTool]  # type: ignore[union-attr]
    assert ours.declared_output is not None
    assert [each.name for each in ours.declared_output.types] == ["final_result"]
    assert adopt(theirs) is ours


KINDS = ("denied", "invalid_result", "tool_error", "tool_timeout", "invalid_arguments")


def test_only_an_exception_of_a_tool_fails_a_run() -> None:
    tool = adopt(Agent(name="eater", tools=[eat]), model=MODEL).tool("eat")
    assert tool is not None
    policy: Any = tool.handle_errors
    for kind in KINDS:
        assert text_for_model(ToolExecutionError("Why.", kind=kind), policy, "Why.") == "Why."
    with pytest.raises(ToolExecutionError):
        text_for_model(ToolExecutionError("Why.", kind="tool_exception"), policy, "Why.")


def test_plain_functions_do_not_block_the_event_loop() -> None:
    """They wait here until the event loop has run a callback."""
    released = threading.Event()

    def instructs(*_: Any) -> str:
        return f"free: {released.wait(5)}"

    agents = [
        adopt(Agent(name="plain", instructions=instructs), model=MODEL),
        adopt(Agent(name="deps", deps_type=str, instructions=lambda ctx: ctx.deps), instructs, model=MODEL),
    ]
    call = ToolContext(idempotency_key="k", attempt=1, workflow_id="w", agent="plain", call_id="c", step=1)

    async def said(agent: Any) -> Any:
        released.clear()
        asyncio.get_running_loop().call_later(0.1, released.set)
        return await agent.instructions(RunInput(agent="plain", prompt="x"), call)

    assert [asyncio.run(said(each)) for each in agents] == ["free: True"] * 2


def test_the_model_is_that_of_the_agents_model() -> None:
    chat = OpenAIChatModel("gpt-4.1", provider=OpenAIProvider(api_key="test"))
    assert adopt(Agent(chat, name="chat")).models == ("openai-chat:gpt-4.1",)
    assert adopt(Agent(name="later"), model="anthropic:claude").models == ("anthropic:claude",)


def test_mcp_servers_carry_over() -> None:
    stdio = MCPToolset(StdioTransport("uvx", ["files"], env={"A": "b"}), id="my files")
    http = MCPToolset("http://127.0.0.1:1/mcp", id="web", headers={"X": "y"})
    files, web = adopt(Agent(name="reader", toolsets=[stdio, http]), model=MODEL).mcp
    assert (files.name, files.command, files.env) == ("my_files", ["uvx", "files"], {"A": "b"})
    assert (web.name, web.url, web.headers["X"]) == ("web", "http://127.0.0.1:1/mcp", "y")


def test_tools_that_depend_on_the_run_are_a_function() -> None:
    agent: Agent[Any, str] = Agent(name="dynamic")

    @agent.toolset
    def of_run(ctx: RunContext[Any]) -> None:
        return None

    assert callable(adopt(agent, model=MODEL).tools)


def checked(ctx: RunContext[Any], name: str) -> None:
    raise ModelRetry(name)


REFUSED: dict[str, dict[str, Any]] = {
    "It has no name": {"name": None},
    "Its model 'test' has no name in Mulligan": {"model": TestModel()},
    "Its model_settings are a function": {"model_settings": lambda ctx: {}},
    "Its capability Thinking": {"capabilities": [Thinking()]},
    "Its native tool MemoryTool": {"capabilities": [NativeTool(MemoryTool())]},
    "Its native tool WebSearchTool": {"capabilities": [NativeTool(WebSearchTool(search_context_size="low"))]},
    "Its output_type allows images": {"output_type": [Fruit, BinaryImage]},
    "The args_validator of its tool 'eat'": {"tools": [Tool(eat, args_validator=checked)]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_parts_that_cannot_be_carried_over_are_refused_by_name(said: str) -> None:
    options = {"name": "odd", **REFUSED[said]}
    with pytest.raises(DeclarationError) as refused:
        adopt(Agent(**options), model=None if "model" in options else MODEL)
    assert f"cannot be carried over. {said}" in str(refused.value)


def test_tools_that_run_elsewhere_are_refused_where_a_run_lists_them() -> None:
    external = ExternalToolset([])
    assert callable(adopt(Agent(name="external", toolsets=[external]), model=MODEL).tools)


WARNED: dict[str, dict[str, Any]] = {
    "its PromptedOutput": {"output_type": PromptedOutput(Fruit)},
    "it never ends with DeferredToolRequests": {"output_type": [Fruit, DeferredToolRequests]},
    "its model_settings openai_store are left out": {"model_settings": {"openai_store": True}},
}


@pytest.mark.parametrize("said", WARNED)
def test_parts_that_are_left_out_are_warned_about_by_name(said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        adopt(Agent(name="odd", **WARNED[said]), model=MODEL)
