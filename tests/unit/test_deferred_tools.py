"""Tools on demand, as the APIs of Anthropic and OpenAI get them that can defer tools; and as the others do."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.activities.models.protocol import ToolsOnDemand
from mulligan.values import Message, ToolMessage
from mulligan.wire.agent_facts import ToolDefinition
from tests.support.openai_server import Failure, Turn
from tests.support.provider_fixtures import GO, SEARCH, Bench, assistant_message, tool_call

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
FINDER = ToolDefinition(name="find_tools", description="Search for tools.", parameters=QUERY)
HIDDEN = [ToolDefinition(name=f"get_{n}", description="Get it.", parameters=SEARCH.parameters) for n in range(4)]
FOUND = ToolMessage(
    role="tool", call_id="f1", name="find_tools", text=json.dumps([HIDDEN[2].model_dump(), HIDDEN[0].model_dump()])
)
ASKED = assistant_message("", tool_call("f1", "find_tools", '{"query": "it"}'))
FINDS = {"f1": ["get_2", "get_0"]}
STEPS: list[tuple[list[Message], dict[str, list[str]], list[int]]] = [
    ([GO], {}, []),
    ([GO, ASKED, FOUND], FINDS, [2, 0]),
    (
        [GO, ASKED, FOUND, assistant_message("", tool_call("c", "get_2")), FOUND.model_copy(update={"call_id": "c", "name": "get_2"})],
        FINDS,
        [2, 0],
    ),
]  # fmt: skip


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


async def ask(bench: Bench, api: str, step: int, **more: Any) -> dict[str, Any]:
    """The request of a step, which the strict server has accepted."""
    messages, finds, found = STEPS[step]
    bench.server.script("m", lambda body, nth: Turn("ok"))
    tools = [SEARCH, FINDER, *(HIDDEN[n] for n in found)]
    await bench.ask(api, messages, tools=tools, **{"unseen": ToolsOnDemand(HIDDEN, finds), **more})
    return bench.sent


@pytest.mark.parametrize(("api", "items"), [("anthropic", "messages"), ("openai", "input")])
async def test_a_find_changes_nothing_before_it(bench: Bench, api: str, items: str) -> None:
    """The proof for the prompt cache: tools, instructions and all earlier items are the same bytes."""
    bodies = [await ask(bench, api, step) for step in range(len(STEPS))]
    for earlier, later in itertools.pairwise(bodies):
        for name in earlier.keys() | later.keys():
            before, after = json.dumps(earlier.get(name)), json.dumps(later.get(name))
            assert after.startswith(before.removesuffix("]")) if name == items else after == before
    tools = [each for each in bodies[0]["tools"] if each.get("defer_loading")]
    assert [each["name"] for each in tools] == ["get_0", "get_1", "get_2", "get_3"]


async def test_anthropic_gets_references(bench: Bench) -> None:
    body = await ask(bench, "anthropic", 1)
    [block] = body["messages"][-1]["content"]
    assert block["content"] == [{"type": "tool_reference", "tool_name": name} for name in ("get_2", "get_0")]
    assert [each["name"] for each in body["tools"] if "defer_loading" not in each] == ["search", "find_tools"]


async def test_openai_gets_its_own_search(bench: Bench) -> None:
    body = await ask(bench, "openai", 1)
    call, result = body["input"][1:]
    same = {"call_id": "f1", "execution": "client", "status": "completed"}
    assert call == {"type": "tool_search_call", **same, "arguments": {"query": "it"}}
    assert (result["type"], [tool["name"] for tool in result["tools"]]) == ("tool_search_output", ["get_2", "get_0"])
    assert all(tool["defer_loading"] for tool in result["tools"])
    described = {"description": "Search for tools.", "parameters": QUERY}
    assert body["tools"][1] == {"type": "tool_search", "execution": "client", **described}


async def test_the_text_of_a_search_that_found_nothing_follows_the_results(bench: Bench) -> None:
    """OpenAI's result of a search has tools only. The calls beside it are answered first."""
    bench.server.script("m", lambda body, nth: Turn("ok"))
    asked = assistant_message("", tool_call("f1", "find_tools", '{"query": ""}'), tool_call("c", "search"))
    results = [
        ToolMessage(role="tool", call_id=call_id, name=name, text=text)
        for call_id, name, text in (("f1", "find_tools", "No tool matches."), ("c", "search", "[]"))
    ]
    tools = [SEARCH, FINDER]
    nothing: list[Message] = []
    for more in (nothing, [assistant_message("I look."), GO]):
        await bench.ask("openai", [GO, asked, *results, *more], tools=tools, unseen=ToolsOnDemand(HIDDEN, {"f1": []}))
        sent = bench.sent["input"]
        types = [item.get("type") for item in sent[1:6]]
        assert types == ["tool_search_call", "function_call", "tool_search_output", "function_call_output", "message"]
        assert sent[3]["tools"] == []
        text = "The result of `find_tools`: No tool matches."
        assert sent[5] == {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        assert len(sent) == 6 + len(more)


async def test_a_call_of_openais_search_is_a_call_of_find_tools(bench: Bench) -> None:
    item = {"type": "tool_search_call", "id": "tsc_1", "call_id": "f1", "execution": "client", "status": "completed"}
    reply = await bench.body("openai", {"output": [{**item, "arguments": {"query": "it"}}], "status": "completed"})
    assert reply.calls == [tool_call("f1", "find_tools", '{"query": "it"}')]
    assert reply.finish_reason == "tool_calls"


async def test_more_tools_than_openai_accepts_are_only_in_results(bench: Bench) -> None:
    many = [HIDDEN[0].model_copy(update={"name": f"get_{n}"}) for n in range(200)]
    body = await ask(bench, "openai", 1, unseen=ToolsOnDemand(many, FINDS))
    assert [tool.get("name", tool["type"]) for tool in body["tools"]] == ["search", "tool_search"]
    assert len(body["input"][-1]["tools"]) == 2


@pytest.mark.parametrize("api", ["anthropic", "openai"])
async def test_a_tool_that_no_search_in_the_conversation_has_found_is_not_deferred(bench: Bench, api: str) -> None:
    bench.server.script("m", lambda body, nth: Turn("ok"))
    on_demand = ToolsOnDemand(HIDDEN, {})
    await bench.ask(api, [GO], tools=[SEARCH, FINDER, HIDDEN[3]], unseen=on_demand)
    sent = [(tool.get("name"), tool.get("defer_loading", False)) for tool in bench.sent["tools"]]
    assert sent[2:] == [("get_3", False), ("get_0", True), ("get_1", True), ("get_2", True)]


@pytest.mark.parametrize("api", ["anthropic", "openai"])
async def test_a_model_that_refuses_deferred_tools_gets_those_that_were_found(bench: Bench, api: str) -> None:
    def answer(body: dict[str, Any], nth: int) -> Turn:
        if any("defer_loading" in tool for tool in body["tools"]):
            error = {"type": "invalid_request_error", "message": "This model does not support defer_loading."}
            return Turn(failure=Failure(status=400, body={"type": "error", "error": error}))
        return Turn("ok")

    bench.server.script("m", answer)
    messages, finds, found = STEPS[1]
    tools = [SEARCH, FINDER, *(HIDDEN[n] for n in found)]
    for count in (2, 3):  # the second call has learned it
        reply = await bench.ask(api, messages, tools=tools, unseen=ToolsOnDemand(HIDDEN, finds))
        assert (reply.text, len(bench.server.requests)) == ("ok", count)
    assert [tool["name"] for tool in bench.sent["tools"]] == ["search", "find_tools", "get_2", "get_0"]
    assert '"name": "get_2"' in json.dumps(bench.sent).replace("\\", "")


@pytest.mark.parametrize("api", ["openai-chat", "google"])
async def test_other_providers_get_the_tools_that_were_found(bench: Bench, api: str) -> None:
    body = await ask(bench, api, 1)
    assert "defer" not in json.dumps(body)
    assert "get_1" not in json.dumps(body["tools"])
    assert json.dumps(body["tools"]).index("find_tools") < json.dumps(body["tools"]).index("get_2")
