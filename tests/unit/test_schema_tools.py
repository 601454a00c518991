"""`Tool.from_schema`: a tool of a JSON Schema is declared, checked and run like one of a function."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

import mulligan
from mulligan import (
    Agent,
    Call,
    Decide,
    DeclarationError,
    InvalidRunInputError,
    Pending,
    RunInput,
    Say,
    Tool,
    ToolContext,
    ToolError,
    ask_model,
    tool,
)
from mulligan.activities.agent_files.agent_versions import AgentVersions
from mulligan.activities.list_agents import agent_json
from mulligan.activities.registry import Registry
from mulligan.activities.run_agents import RunAgents
from mulligan.activities.tool_running.resources import Resources
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.features.approvals import ApprovalsOption
from mulligan.testing import ScriptedModel, run_agent
from mulligan.wire.run_context import RunContext
from mulligan.wire.start_input import StartInput

ORDER = {
    "type": "object",
    "properties": {
        "order": {"type": "integer", "minimum": 1},
        "note": {"type": "string", "default": "none"},
        "many": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["order"],
}


async def send(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    """Return what it gets."""
    if arguments["order"] == 13:
        raise ToolError("there is no order 13")
    return {**arguments, "call": ctx.call_id}


def shop(**options: Any) -> Agent:
    declared = Tool.from_schema(name="send", description="Send it.", schema=ORDER, call=send, **options)
    return Agent(name="shop", model="openai:x", tools=[declared])


def model(arguments: str) -> ScriptedModel:
    return ScriptedModel(Say(calls=[Call("send", arguments)]), Say("done"))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "object", "properties": {"a": {"type": "nothing"}}}, "is not a JSON schema: 'nothing'"),
        ({"type": "array"}, "is of type 'array', but the arguments of a call are an object"),
        ([1], "is not an object; give a JSON Schema as a dict"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "'#/$defs/none' leads nowhere"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "is not a JSON schema"),
        ({"type": "object", "default": object()}, "is not JSON"),
        ({"type": "object", "description": "x" * 300_000}, "the limit is 200,000"),
    ],
)
def test_a_fault_of_the_schema_is_refused_at_the_declaration(schema: Any, says: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Tool.from_schema(name="send", description="Send it.", schema=schema, call=send)
    assert f"{__file__}: tool 'send': its schema " in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "a b"}, "name must be 1 to 64"),
        ({"description": None}, "name and description must be texts"),
        ({"call": 5}, "call is 5; give a function"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"isolated": True}, "an isolated tool runs in another process, without a ToolContext"),
        ({"mcp_server": "x"}, "'mcp_server' is not an option of a tool"),
        ({"once": "never"}, "once must be True"),
    ],
)
def test_an_option_that_cannot_work_is_refused_like_that_of_a_function(options: dict[str, Any], says: str) -> None:
    declared: dict[str, Any] = {"name": "send", "description": "Send it.", "schema": ORDER, "call": send}
    with pytest.raises(DeclarationError, match="tool ") as refused:
        Tool.from_schema(**declared | options)
    assert says in str(refused.value)


def test_the_options_have_the_defaults_and_the_values_of_a_functions() -> None:
    @tool(name="send", description="Send it.")
    def other(order: int) -> int:
        return order

    of_function, of_schema = vars(other), vars(shop().listed_tools[0])
    apart = {"function", "arguments", "traits"}
    assert {name: each for name, each in of_schema.items() if name not in apart} == {
        name: each for name, each in of_function.items() if name not in apart
    }
    local = shop(local=True, retry_on=KeyError, approval_timeout=5).listed_tools[0]
    assert (local.timeout.seconds, local.retry_on) == (10, (KeyError,))
    assert local.option(ApprovalsOption).approval_timeout == 5


@pytest.mark.parametrize(
    ("written", "executed", "repairs"),
    [
        ('{"order": 7}', {"order": 7}, []),
        ('{"order": "7", "many": ["1.5"]}', {"order": 7, "many": [1.5]}, ["schema:integer+number"]),
        ('{"order": 7, "note": null}', {"order": 7}, ["schema:null"]),
        ("{'order': 7}", {"order": 7}, ["json:single_quotes"]),
    ],
)
async def test_arguments_are_mended_and_converted_by_the_schema(
    written: str, executed: dict[str, Any], repairs: list[str]
) -> None:
    run = await run_agent(shop(), "Go.", model=model(written))
    [call] = run.calls
    assert call.result is not None
    assert call.result.error is None
    assert (call.arguments, [each.by for each in call.repairs or []]) == (executed, repairs)
    assert f'"order": {executed["order"]}' in call.result.text
    assert run.result is not None
    assert run.result.output == "done"
    [span] = [each for each in run.spans if each.name == "ai.toolCall"]
    assert span.attributes["gen_ai.tool.name"] == "send"


@pytest.mark.parametrize(
    ("written", "kind", "says"),
    [
        ('{"order": 0}', "invalid_arguments", "`order` violates minimum: 1"),
        ('{"note": "x"}', "invalid_arguments", "`order` is required, but missing"),
        ('{"order": 13}', "tool_error", "there is no order 13"),
    ],
)
async def test_what_is_wrong_is_told_to_the_model(written: str, kind: str, says: str) -> None:
    run = await run_agent(shop(), "Go.", model=model(written))
    [result] = [call.result for call in run.calls]
    assert result is not None
    assert result.error is not None
    assert result.error.kind == kind
    assert says in result.text


async def test_a_person_is_asked_before_it_runs() -> None:
    asked: list[Pending] = []

    def deny(call: Pending) -> Decide:
        asked.append(call)
        return Decide(call_id=call.call_id, decision="deny")

    agent = shop(needs_approval=True)
    run = await run_agent(
        agent,
        "Go.",
        model=model('{"order": 7}'),
        person=deny,
    )
    assert [call.arguments for call in asked] == [{"order": 7}]
    assert run.calls[0].result is not None
    assert run.calls[0].result.error is not None
    assert run.calls[0].result.error.kind == "denied"


async def test_a_schema_that_would_take_for_ever_does_not_hold_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked in a process of its own, before the call and as it runs."""
    monkeypatch.setattr("mulligan.activities.mcp.servers.CHECK_SECONDS", 1.0)
    slow = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
    declared = Tool.from_schema(name="send", description="Send it.", schema=slow, call=lambda arguments, _: arguments)
    agent = Agent(name="shop", model="openai:x", tools=[declared])
    written = [f'{{"text": "{"a" * 40}!"}}', '{"text": "aaa"}']
    turns = [*(Say(calls=[Call("send", each)]) for each in written), Say("done")]
    run = await run_agent(agent, "Go.", model=ScriptedModel(*turns))
    texts = [call.result.text for call in run.calls if call.result]
    assert "could not be checked within 1 s" in texts[0]
    assert texts[1] == '{"text": "aaa"}'


def lister(returned: Any) -> Agent:
    def list_tools(run_input: RunInput) -> Any:
        return returned(run_input) if callable(returned) else returned

    return Agent(name="shop", model="openai:x", tools=list_tools)


async def test_a_function_returns_the_tools_of_a_run() -> None:
    """It sees the input without the conversation; its tools have the run's tenant and user, and no span has them."""
    seen: list[RunInput] = []
    who: list[tuple[str | None, str | None]] = []

    async def whoami(arguments: dict[str, Any], ctx: ToolContext) -> str:
        who.append((ctx.tenant, ctx.user))
        return "you"

    def tools(run_input: RunInput) -> list[Tool]:
        seen.append(run_input)
        return [Tool.from_schema(name="whoami", description="", schema={}, call=whoami)]

    turns = [*(Say(calls=[Call(name)]) for name in ("whoami", "whoamI", "who")), Say("done")]
    run = await run_agent(
        lister(tools), "Secret.", model=ScriptedModel(*turns), tenant="acme", user="ada", metadata={"a": "b"}
    )
    assert run.result is not None
    assert run.result.output == "done"
    assert [(each.prompt, each.messages, each.tenant, each.user, each.metadata) for each in seen] == [
        (None, [], "acme", "ada", {"a": "b"})
    ]
    assert who == [("acme", "ada")] * 2
    assert not [value for span in run.spans for value in span.attributes.values() if value in ("acme", "ada")]
    unknown = run.calls[2].result
    assert unknown is not None
    assert unknown.text.startswith("There is no tool `who`. Did you mean `whoami`?")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "it returned a value of type NoneType; return a list of tools."),
        ([send], "tools[0] (send) is not a tool; declare it with @tool."),
        (lambda _: [*shop().listed_tools, *shop().listed_tools], "two tools are named 'send'"),
        (lambda _: 1 / 0, "it raised ZeroDivisionError: division by zero"),
        (lambda _: sys.exit(3), "it raised RuntimeError: SystemExit: 3"),
        (lambda _: time.sleep(2), "it took more than 0.2 s."),
        (
            lambda _: [Agent(name="shop2", model="openai:x").as_tool(description="x")],
            "it returned the agent 'shop2' as a tool",
        ),
        (
            lambda _: list(
                shop(fix=ask_model(mulligan.Model("openai@far:x", base_url="https://none.test"))).listed_tools
            ),
            "it returned a tool with a model at 'far', which no loaded module has.",
        ),
    ],
)
async def test_what_is_wrong_with_the_tools_of_a_run_fails_it_as_it_opens(
    returned: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.activities.run_agents.TOOLS_LIMIT", 0.2)
    run = await run_agent(lister(returned), "Go.", model=ScriptedModel(Say("never"), is_strict=False))
    assert isinstance(run.error, InvalidRunInputError)
    assert run.error.message.startswith('"agent" is "shop", whose tools the function `list_tools` returns: ')
    assert says in run.error.message


def test_the_tools_of_a_function_are_named_by_it_in_lists_of_agents() -> None:
    listed = agent_json(lister([]))
    assert (listed["tools"], listed["tools_function"]) == ([], "list_tools")
    assert "tools_function" not in agent_json(shop())


async def test_the_agents_of_few_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.activities.run_agents.MOST_KEPT", 3)
    agent = lister(lambda _: list(shop().listed_tools))
    registry = Registry([agent])
    agents = RunAgents(registry, ToolRuntime(), (), AgentVersions(registry), Resources({}, {}, {}))
    for number in range(9):
        context = RunContext(agent="shop", trace=f"trace {number}", input=StartInput(agent="shop"))
        found = await agents.find(context)
        assert found is not None
        assert found is await agents.find(context)
    assert [trace for trace, _ in agents._kept] == ["trace 6", "trace 7", "trace 8"]
