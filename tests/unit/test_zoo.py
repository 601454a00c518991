"""The core against every server of the zoo (tests/support/zoo): what one refuses is learned once, and nothing is lost."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from mulligan import Agent, Compaction, Image, Tool, ToolContext, tool
from mulligan.values import Message, ToolMessage
from mulligan.wire.agent_facts import ToolDefinition
from mulligan.worker.loading import load_agents
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn, Usage
from tests.support.provider_fixtures import GO, SEARCH, Bench, assistant_message, result, tool_call
from tests.support.zoo.member import Member
from tests.support.zoo.members import MEMBERS

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
RAN: list[Any] = []


@tool
def photo() -> Image:
    """Take a photo."""
    RAN.append("photo")
    return Image.from_bytes(PNG, name="p.png")


@tool
def nothing() -> str:
    """Do nothing."""
    RAN.append("nothing")
    return " \n"


@tool
def pay(amount: int, note: str = "") -> str:
    """Pay an amount."""
    RAN.append(amount)
    return "paid " * 400


@tool
def broken() -> str:
    """Fail."""
    RAN.append("broken")
    raise ValueError("the printer is on fire")


async def _list(arguments: dict[str, Any], _ctx: ToolContext) -> str:
    RAN.append(arguments)
    return "listed"


listing = Tool.from_schema(
    name="list_items",
    description="List items, as an MCP server has it.",
    schema={
        "type": "object",
        "properties": {"$top": {"type": "integer"}, "filter[id]": {"type": "string"}, "größe": {"type": "string"}},
        "required": ["$top"],
    },
    call=_list,
)
OPTIONS: dict[str, Any] = {"instructions": "Be brief.", "model": "openai-chat:none", "max_steps": 12}
clerk = Agent(name="clerk", tools=[photo, nothing, pay, broken, listing], **OPTIONS)
summing = Agent(name="summing", tools=[pay], features=[Compaction(at=3_000, model="scripted:summary")], **OPTIONS)


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([clerk, summing], [])) as at:
        yield at


PICTURE = Image.from_bytes(PNG, name="p.png")
AWKWARD = ToolDefinition(name="awkward", description="Awkward.", parameters=listing.arguments.schema)
BEFORE: list[dict[str, Any]] = [
    {"role": "user", "text": "Hello."},
    {"role": "user", "text": " "},
    {"role": "assistant", "text": "", "tool_calls": []},
    {"role": "user", "text": "Do nothing."},
    {"role": "assistant", "text": "\n\n", "tool_calls": [{"id": "old0", "name": "nothing", "arguments": "{}"}]},
    {"role": "tool", "call_id": "old0", "name": "nothing", "text": ""},
]
"""A conversation that another model has begun, and that was cut short after a result."""


def in_turn(*turns: Turn) -> Callable[[dict[str, Any], int], Turn]:
    """The turns one after another: a server may want more answers of the assistant than there were."""
    left = iter(turns)
    return lambda _body, _nth: next(left)


def refusals(lab: MemoryLab, run_id: str) -> list[str]:
    """What the server has refused. It learns each rule of a model once."""
    told = [request.refusal.message for request in lab.model.requests_of(run_id) if request.refusal]
    kinds = ["".join(each for each in text if not each.isdigit()) for text in told]
    assert len(set(kinds)) == len(kinds), told
    return told


async def run(lab: MemoryLab, member: Member, turns: Sequence[Turn], agent: str, **given: Any) -> Any:
    lab.member = member
    try:
        return await lab.run(in_turn(*turns), agent=agent, **given)
    finally:
        lab.member = None


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
async def test_mistakes_pictures_messages_and_empty_answers_at_each_server(lab: MemoryLab, member: Member) -> None:
    """Each call runs once, each mistake is told to the model, and each request is one that the server takes."""
    RAN.clear()
    turns = [
        Turn(calls=[("pay", '{"amount": "much"}'), ("no_such_tool", "{}"), ("broken", "{}"), ("pay", "five, please")]),
        Turn(calls=[("pay", '{"amount": 5}'), ("photo", "{}"), ("nothing", "{}"), ("pay", '{"amount": 6}')]),
        Turn("\n\n", calls=[("list_items", '{"$top": 3}')]),
        Turn(""),
        Turn("done"),
    ]
    ran = await run(lab, member, turns, "clerk", messages=BEFORE)
    assert ran.error is None
    assert (ran.result["status"], ran.result["output"]) == ("completed", "done")
    assert sorted(map(str, RAN)) == sorted(map(str, [5, "broken", "photo", "nothing", 6, {"$top": 3}]))
    kinds = [call["result"]["error"] and call["result"]["error"]["kind"] for call in ran.calls]
    assert kinds[:4] == ["invalid_arguments", "unknown_tool", "tool_exception", "invalid_json"]
    assert kinds[4:] == [None] * 5
    assert ran.result["usage"]["input_tokens"] > 0
    assert bool(refusals(lab, ran.id)) == bool(ran.steps[-1].get("adapted"))


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
async def test_a_compaction_changes_no_form_of_a_request(lab: MemoryLab, member: Member) -> None:
    RAN.clear()
    counted = Usage(input_tokens=4_000)
    turns = [
        *(Turn("Again.", calls=[("pay", json.dumps({"amount": n}))], usage=counted) for n in range(4)),
        Turn("done"),
    ]
    ran = await run(lab, member, turns, "summing")
    assert ran.error is None
    assert (ran.result["status"], RAN) == ("completed", [0, 1, 2, 3])
    refusals(lab, ran.id)


@pytest.mark.parametrize("name", ["mistral", "vllm", "llama_cpp", "openrouter", "ollama", "litellm_claude", "groq"])
async def test_what_a_server_refuses_is_recorded_and_another_worker_sends_it_so_at_once(
    lab: MemoryLab, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = next(each for each in MEMBERS if each.name == name)
    turns = [Turn(calls=[("photo", "{}")]), Turn("Well.", calls=[("photo", "{}")]), Turn("done")]
    ran = await run(lab, member, turns, "clerk", messages=BEFORE)
    assert ran.error is None
    assert refusals(lab, ran.id)
    adapted = ran.steps[-1]["adapted"]
    assert adapted == sorted(set(adapted))
    async with Bench.open(monkeypatch) as bench:
        bench.server.members["m"] = member
        picture = ToolMessage(role="tool", call_id="old1", name="search", text="", content=[PICTURE])
        messages: list[Message] = [
            GO,
            GO,
            assistant_message("", tool_call("old0"), tool_call("old1")),
            result("old0"),
            picture,
            GO,
        ]
        reply = await bench.ask_ok("openai-chat", messages, tools=[SEARCH, AWKWARD], adapted=adapted)
        assert (reply.text, reply.adapted, bench.server.refusals) == ("ok", adapted, [])


def test_the_zoo_says_where_each_rule_was_seen() -> None:
    assert all(member.sources for member in MEMBERS)
    assert len({member.name for member in MEMBERS}) == len(MEMBERS)
    for first, second in itertools.combinations(MEMBERS, 2):
        assert first.sources != second.sources
