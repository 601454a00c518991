"""Names of arguments that a server refuses are renamed in what it is sent, and restored in the calls of its answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.activities.models._plain_properties import PlainProperties, _plain_names
from mulligan.activities.models.protocol import Reply, Request
from mulligan.values import ToolCall, Usage
from mulligan.wire.agent_facts import Definition, ToolDefinition
from tests.support.openai_turn import Turn
from tests.support.provider_fixtures import GO, Bench, assistant_message, result, tool_call
from tests.support.zoo.members import MEMBERS
from tests.support.zoo.rules import PROPERTY

INNER = {"type": "object", "properties": {"@id": {"type": "string"}}, "required": ["@id"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "$top": {"type": "integer"},
        "filter[id]": {"type": "string", "description": "Which."},
        "größe": {"type": "string"},
        "x" * 70: {"type": "string"},
        "top": {"type": "integer"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
    },
    "required": ["$top", "items"],
    "$defs": {"Item": INNER},
}
LIST = ToolDefinition(name="list_items", description="List items.", parameters=SCHEMA)
WRITTEN = {"$top": 3, "top": 1, "filter[id]": "a", "größe": "L", "x" * 70: "y", "items": [{"@id": "$top"}]}


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


def sent_names(tool: dict[str, Any]) -> dict[str, str]:
    """The names in a request, by the tool's own, which stand in the descriptions."""
    schema = tool.get("input_schema") or tool.get("parameters") or tool["function"]["parameters"]
    assert set(schema["required"]) <= schema["properties"].keys()
    assert all(map(PROPERTY.fullmatch, [*schema["properties"], *schema["$defs"]["Item"]["properties"]]))
    described = {name: each.get("description", "") for name, each in schema["properties"].items()}
    return {text.split("`")[1] if text.startswith("`") else name: name for name, text in described.items()}


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai"])
async def test_awkward_names_are_renamed_and_restored(bench: Bench, api: str) -> None:
    """Anthropic refuses them always, compatible servers before its models when they say so."""
    if api == "openai-chat":
        bench.server.members["m"] = next(each for each in MEMBERS if each.name == "litellm_claude")
    adapted = ["plain_properties"] if api == "openai" else []
    bench.server.script("m", [Turn("Hm.")])
    await bench.ask(api, tools=[LIST], adapted=adapted)
    names = sent_names(bench.sent["tools"][0])
    assert names.keys() == SCHEMA["properties"].keys()
    sent = {names[name]: value for name, value in WRITTEN.items()} | {"items": [{"id": "$top"}]}
    reply = await bench.answer(api, Turn(calls=[("list_items", json.dumps(sent))]), tools=[LIST], adapted=adapted)
    assert json.loads(reply.calls[0].arguments) == WRITTEN
    call = tool_call("c1", "list_items", json.dumps(WRITTEN))
    await bench.ask_ok(api, [GO, assistant_message("", call), result("c1")], tools=[LIST], adapted=adapted)
    conversation = json.dumps(bench.server.requests[-1].conversation)
    assert names["filter[id]"] in conversation
    assert "filter[id]" not in conversation
    assert [each.message for each in bench.server.refusals if "Property keys" not in each.message] == []
    assert len(bench.server.refusals) == (1 if api == "openai-chat" else 0)


def test_a_tool_with_plain_names_is_sent_as_it_is() -> None:
    plain = LIST.model_copy(update={"parameters": {"type": "object", "properties": {"a.b-c_1": {}}}})
    request = Request("m", Definition(instructions="", tools=[plain]), [], [])
    assert PlainProperties.of(request).request(request) is request


def test_arguments_that_are_no_json_stay_as_the_model_wrote_them() -> None:
    request = Request("m", Definition(instructions="", tools=[LIST]), [], [])
    calls = [
        ToolCall(id="a", name="list_items", arguments='{"filter_id": '),
        ToolCall(id="b", name="x", arguments="{}"),
    ]
    reply = Reply("", calls, "tool_calls", Usage())
    assert PlainProperties.of(request).reply(reply).calls == calls


@given(st.sets(st.text(max_size=80)))
def test_plain_names_are_plain_and_different(names: set[str]) -> None:
    plain = _plain_names(names)
    assert all(map(PROPERTY.fullmatch, plain.values()))
    assert len(set(plain.values())) == len(plain)
    assert not {*plain.values()} & names
