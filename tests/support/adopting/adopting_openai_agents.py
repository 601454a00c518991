"""What of an agent of openai-agents carries over, and what is refused: tests that run where the framework is installed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    HostedMCPTool,
    InputGuardrail,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OutputGuardrail,
    RunContextWrapper,
    WebSearchTool,
    function_tool,
    handoff,
)
from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp, create_static_tool_filter
from agents.tool import ShellTool
from openai import AsyncOpenAI
from pydantic import BaseModel

from mulligan import DeclarationError, Guardrails, ProviderTool, RunInput, ToolContext, adopt
from mulligan.activities.answers.failure_policy import policy_for
from mulligan.adopt import openai_agents_privates as privates
from mulligan.adopt.adopt import _check_version
from mulligan.errors import ToolExecutionError
from mulligan.policy import text_for_model
from mulligan.schema.json_schema import NotOfSchema
from mulligan.values import UserMessage

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


class Reason(BaseModel):
    reason: str


@function_tool(timeout=7, timeout_behavior="raise_exception")
async def late() -> str:
    """Come late."""
    return ""


@function_tool(timeout=7, timeout_error_function=lambda ctx, error: "It is late.")
async def explained() -> str:
    """Come late, and explain it."""
    return ""


@function_tool(timeout=7, needs_approval=True)
async def pay(to: str) -> str:
    """Pay."""
    return to


@function_tool(failure_error_function=None)
def strict_failure() -> str:
    """Fail."""
    raise ValueError


class Address(BaseModel):
    street: str
    country: str = "DE"


@function_tool
def send(to: str, address: Address, copies: int = 1, note: str | None = None) -> str:
    """Send."""
    return f"{to} {address.street} {address.country} {copies} {note}"


def plain(**options: Any) -> Any:
    return Agent(name="plain", **options)


def test_options_carry_over() -> None:
    settings = ModelSettings(
        temperature=0, parallel_tool_calls=False, verbosity="low", extra_args={"service_tier": "flex"}
    )
    ours = adopt(
        plain(instructions="Be brief.", model="gpt-4.1", model_settings=settings, tools=[pay, WebSearchTool()])
    )
    assert (ours.name, ours.models, ours.instructions) == ("plain", ("openai:gpt-4.1",), "Be brief.")
    assert ours.parallel_tool_calls is False
    assert ours.model_settings == {"temperature": 0, "text": {"verbosity": "low"}, "service_tier": "flex"}
    tool = ours.tool("pay")
    assert tool is not None
    assert (tool.timeout.total_seconds(), tool.traits.policy, tool.strict) == (7, True, True)
    assert isinstance(ours.tools[1], ProviderTool)  # type: ignore[index]


KINDS = ("denied", "invalid_result", "tool_error", "tool_timeout", "invalid_arguments", "tool_exception")


def test_only_an_exception_that_the_framework_lets_out_fails_a_run() -> None:
    ours = adopt(plain(tools=[strict_failure, pay]))
    strict, telling = ours.tool("strict_failure"), ours.tool("pay")
    assert strict is not None
    assert telling is not None
    errors = [ToolExecutionError(f"It is {kind}.", kind=kind) for kind in KINDS]
    policies = [policy_for(errors[0], agent=ours, tool=each) for each in (strict, telling)]
    assert [told(each, policies[0]) for each in errors] == [*(each.message for each in errors[:-1]), "the run fails"]
    assert [told(each, policies[1]) for each in errors] == [each.message for each in errors]
    slow = adopt(plain(tools=[late])).tool("late")
    assert slow is not None
    ends = [each.kind for each in errors if told(each, slow.handle_errors) == "the run fails"]
    assert ends == ["tool_timeout"]


def told(error: ToolExecutionError, policy: Any) -> Any:
    try:
        return text_for_model(error, policy, error.text)
    except ToolExecutionError:
        return "the run fails"


async def the_loop_ticks_in(*functions: Any) -> None:
    """Call functions that wait until the event loop has run a callback."""
    for function in functions:
        RELEASED.clear()
        asyncio.get_running_loop().call_later(0.1, RELEASED.set)
        await function()


RELEASED = threading.Event()
CALL = ToolContext(idempotency_key="k", attempt=1, workflow_id="w", agent="plain", call_id="c", step=1)


def blocks(*_: Any) -> bool:
    """Whether the event loop has gone on while this function, a plain `def`, waited for it."""
    return RELEASED.wait(5)


def test_plain_functions_do_not_block_the_event_loop() -> None:
    def instructs(*_: Any) -> str:
        return f"free: {blocks()}"

    def context(ctx: ToolContext) -> str:
        return f"free: {blocks()}"

    @function_tool(is_enabled=blocks, needs_approval=blocks)
    def act(ctx: RunContextWrapper[str]) -> str:
        """Act."""
        return ctx.context

    def trips(*_: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered=blocks())

    checks = {"input_guardrails": [InputGuardrail(trips)], "output_guardrails": [OutputGuardrail(trips)]}
    ours = adopt(plain(instructions=instructs, tools=[act], **checks))
    by_context = adopt(plain(instructions=lambda ctx, _: ctx.context), context)
    run_input, tools = RunInput(agent="plain", prompt="x"), ours.tools
    checked = ours.feature(Guardrails)
    assert checked is not None

    async def instructions_of(agent: Any) -> None:
        assert await agent.instructions(run_input, CALL) == "free: True"

    async def enabled() -> None:
        (tool,) = await tools(run_input, CALL)  # type: ignore[operator, misc]
        RELEASED.clear()
        asyncio.get_running_loop().call_later(0.1, RELEASED.set)
        assert await tool.traits.policy({}, CALL) is True

    async def trip(check: Any, value: Any) -> None:
        assert await check(value, CALL) == "its tripwire was triggered."

    asyncio.run(
        the_loop_ticks_in(
            lambda: instructions_of(ours),
            lambda: instructions_of(by_context),
            enabled,
            lambda: trip(checked.input[0], [UserMessage.of("x")]),
            lambda: trip(checked.output[0], "x"),
        )
    )


def test_mcp_servers_carry_over() -> None:
    only = create_static_tool_filter(allowed_tool_names=["read"], blocked_tool_names=["write"])
    stdio = MCPServerStdio({"command": "uvx", "args": ["files"], "env": {"A": "b"}}, name="My files", tool_filter=only)
    http = MCPServerStreamableHttp({"url": "http://127.0.0.1:1/mcp", "headers": {"X": "y"}}, name="web")
    files, web = adopt(plain(mcp_servers=[stdio, http])).mcp
    assert (files.name, files.command, files.env, files.timeout) == ("My_files", ["uvx", "files"], {"A": "b"}, 5)
    assert (files.include, list(files.exclude)) == (["read"], ["write"])
    assert (web.name, web.url, web.headers) == ("web", "http://127.0.0.1:1/mcp", {"X": "y"})


def test_the_same_agent_is_adopted_once_and_circles_are_closed_by_name() -> None:
    first, second = plain(), Agent(name="second", handoff_description="It is second.")
    first.handoffs, second.handoffs = [second], [handoff(first)]
    ours = adopt(first)
    assert adopt(first) is ours
    assert adopt(second) is ours.handoffs[0]
    assert (ours.handoffs[0].handoffs, ours.handoffs[0].description) == (["plain"], "It is second.")


def chosen() -> Any:
    made = handoff(plain())
    made._agent_ref = None
    return made


async def noted(context: Any, given: Any) -> None:
    del context, given


def noticed(context: Any) -> None:
    del context


def test_what_has_a_default_may_be_left_out_and_nothing_else() -> None:
    [ours] = cast("Any", adopt(plain(tools=[send])).tools)
    assert ours.schema["required"] == ["to", "address", "copies", "note"]  # strict, as the model reads it
    arguments = ours.arguments.validate({"to": "Ada", "address": {"street": "Main"}})
    context = ToolContext(
        idempotency_key="k", attempt=1, workflow_id="w", agent="plain", call_id="c", step=1, metadata={}, resources=None
    )
    assert asyncio.run(ours.function(arguments, context)) == "Ada Main DE 1 None"
    for missing in ({"to": "Ada"}, {"address": {"street": "Main"}}, {"to": "Ada", "address": {}}):
        with pytest.raises(NotOfSchema, match="is required, but missing"):
            ours.arguments.validate(missing)


REFUSED: dict[str, dict[str, Any]] = {
    "Its prompt is kept at OpenAI": {"prompt": {"id": "pmpt_1"}},
    "Its tool_use_behavior": {"tool_use_behavior": "stop_on_first_tool"},
    "Its tool_choice 'required'": {"model_settings": ModelSettings(tool_choice="required")},
    "Its setting extra_headers": {"model_settings": ModelSettings(extra_headers={"X": "y"})},
    "Its model 'litellm/claude'": {"model": "litellm/claude"},
    "Its tool 'shell' is a ShellTool": {"tools": [ShellTool(executor=noted)]},
    "Its HostedMCPTool has on_approval_request": {
        "tools": [HostedMCPTool(tool_config={"type": "mcp", "server_label": "x"}, on_approval_request=noted)]
    },
    "Its MCP server 'old' is a MCPServerSse": {
        "mcp_servers": [MCPServerSse({"url": "http://127.0.0.1:1"}, name="old")]
    },
    "Its handoff 'transfer_to_plain' has an input_filter": {
        "handoffs": [handoff(plain(), input_filter=lambda data: data)]
    },
    "Its handoff 'transfer_to_plain' has an input_type": {
        "handoffs": [handoff(plain(), on_handoff=noted, input_type=Reason)]
    },
    "Its handoff 'transfer_to_plain' has an is_enabled": {"handoffs": [handoff(plain(), is_enabled=lambda *_: True)]},
    "Its handoff 'transfer_to_plain' chooses its agent": {"handoffs": [chosen()]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_parts_that_cannot_be_carried_over_are_refused_by_name(said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        adopt(Agent(name="odd", **REFUSED[said]))
    assert str(refused.value).startswith(f"adopt: agent 'odd' cannot be carried over. {said}")


WARNED: dict[str, dict[str, Any]] = {
    "its hooks are not called": {"hooks": AgentHooks()},
    "the client of its model": {"model": OpenAIChatCompletionsModel("gpt-4.1", AsyncOpenAI(api_key="test"))},
    "its setting store is left out": {"model_settings": ModelSettings(store=True)},
    "on_handoff of 'transfer_to_plain'": {"handoffs": [handoff(plain(), on_handoff=noticed)]},
    "the timeout_error_function of 'explained'": {"tools": [explained]},
    "the agent behind the tool 'ask'": {"tools": [plain().as_tool("ask", "Asks.")]},
}


@pytest.mark.parametrize("said", WARNED)
def test_parts_that_are_left_out_are_warned_about_by_name(said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        adopt(Agent(name="odd", **WARNED[said]))


def test_other_versions_and_other_things_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"openai-agents 0\.25\.0: it was tried with 0\.21\.0 to 0\.24\.0"):
        _check_version("openai-agents", "0.25.0", privates.TRIED)
    with pytest.raises(DeclarationError, match=r"0\.20\.9"):
        _check_version("openai-agents", "0.20.9", privates.TRIED)
    _check_version("openai-agents", "0.24.7", privates.TRIED)
    with pytest.raises(DeclarationError, match="type str; give an Agent of openai-agents or of pydantic-ai"):
        adopt("an agent")
