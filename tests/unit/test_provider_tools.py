"""`ProviderTool`: a tool that the provider runs is in the requests to it, and in no other's; its calls have a price."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import Agent, ProviderTool, RunInput, tool
from mulligan.activities.list_agents import agent_json
from mulligan.activities.models.resolve_models import resolve_models
from mulligan.activities.run_data.definitions import define
from mulligan.errors import DeclarationError
from mulligan.prices import Prices, cost_of_hosted
from mulligan.wire.agent_facts import ProviderToolDefinition, ToolDefinition
from tests.support.openai_server import Turn
from tests.support.provider_fixtures import APIS, GO, Bench, assistant_message, reasoning_item

TOOLS: dict[str, dict[str, Any]] = {
    "openai": {"type": "web_search", "search_context_size": "low"},
    "anthropic": {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    "google": {"google_search": {}},
}
SENT = {**TOOLS, "google": {"googleSearch": {}}}
HOSTED = [ProviderToolDefinition(provider=provider, tool=each) for provider, each in TOOLS.items()]


@tool
def search(query: str) -> str:
    """Search."""
    return query


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench
        assert bench.server.refusals == []


@pytest.mark.parametrize("has_functions", [True, False])
@pytest.mark.parametrize("api", TOOLS)
async def test_a_provider_gets_its_own_tools_only(bench: Bench, api: str, has_functions: bool) -> None:
    bench.server.script("m", [Turn("ok")])
    functions: dict[str, Any] = {} if has_functions else {"tools": ()}
    await bench.ask(api, hosted=HOSTED, **functions)
    tools = bench.sent["tools"]
    assert tools[-1] == SENT[api]
    assert len(tools) == 1 + has_functions
    if api == "openai":
        assert "web_search_call.action.sources" in bench.sent["include"]
    if api == "google":
        config = {"includeServerSideToolInvocations": True} if has_functions else None
        assert bench.sent.get("toolConfig") == config


async def test_a_chat_server_gets_tools_that_are_declared_for_it(bench: Bench) -> None:
    provider = bench.providers["openai-chat"]
    hosted = [*HOSTED, ProviderToolDefinition(provider="openai-chat", tool={"type": "x:web_search"})]
    request = bench.request("openai-chat", hosted=hosted)
    body = json.loads(provider._http_request(request, with_tools=True).content({}))  # type: ignore[attr-defined]
    assert [each["type"] for each in body["tools"]] == ["function", "x:web_search"]


async def test_another_provider_reads_what_was_searched_and_found(bench: Bench) -> None:
    searched = {
        "type": "web_search_call", "id": "ws_1", "status": "completed",
        "action": {"type": "search", "query": "otters", "sources": [{"type": "url", "url": "https://a"}]},
    }  # fmt: skip
    cited = {"type": "url_citation", "url": "https://b", "title": "Otters", "start_index": 0, "end_index": 2}
    content = [{"type": "output_text", "text": "So.", "annotations": [cited]}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    reply = await bench.body("openai", {"status": "completed", "output": [searched, said]})
    answer = assistant_message(reply.text, data=reply.provider_data)
    for api in ("anthropic", "google", "openai-chat"):
        await bench.ask_ok(api, [GO, answer, GO])
        sent = json.dumps(bench.sent, ensure_ascii=False)
        for part in ("web_search", "otters", "https://a", "[Source: Otters https://b]", "So."):
            assert part in sent
        assert "ws_1" not in sent


async def test_a_model_without_the_reasoning_of_another_reads_what_was_searched(bench: Bench) -> None:
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "otters"}}
    answer = assistant_message("So.", data={"openai": [reasoning_item(), searched]})
    told = {"error": {"message": "The encrypted content could not be verified.", "code": None}}

    def script(body: dict[str, Any], nth: int) -> Turn:
        from tests.support.openai_server import Failure

        is_refused = any(item.get("type") == "reasoning" for item in body["input"])
        return Turn(failure=Failure(status=400, body=told)) if is_refused else Turn("ok")

    bench.server.script("m", script)
    await bench.ask("openai", [GO, answer, GO])
    assert [item.get("type") for item in bench.sent["input"]] == [None, None, None, None]
    assert "otters" in bench.sent["input"][1]["content"]


FAULTS = [
    (("openai:gpt", {"type": "web_search"}), "give the name of a provider"),
    (("", {"type": "web_search"}), "give the name of a provider"),
    (("openai", {}), "as the provider's API takes it"),
    (("openai", "web_search"), "as the provider's API takes it"),
    (("openai", {"type": object()}), "cannot be written as JSON"),
    (("openai", {"type": float("nan")}), "cannot be written as JSON"),
    (("openai", {"type": "x" * 60_000}), "the limit is 50,000"),
    (("openai", {"type": "function", "name": "f"}), "tools of @tool"),
]


@pytest.mark.parametrize(("given", "says"), FAULTS)
def test_a_wrong_provider_tool_is_refused(given: tuple[Any, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        ProviderTool(*given)


def gemini_search(kind: str) -> list[dict[str, Any]]:
    """A search of two queries, or of an address, as the parts of an answer."""
    args = {"queries": ["otters", "seals"]} if kind == "GOOGLE_SEARCH_WEB" else {"urls": ["https://a"]}
    return [
        {"toolCall": {"id": "s1", "toolType": kind, "args": args}},
        {"toolResponse": {"id": "s1", "toolType": kind, "response": {"text": "Found."}}},
    ]


GROUNDED = {"groundingMetadata": {"webSearchQueries": ["otters", "seals"]}}
READ = {"urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://a", "urlRetrievalStatus": "X_SUCCESS"}]}}


@pytest.mark.parametrize(
    ("parts", "beside", "expected"),
    [
        (gemini_search("GOOGLE_SEARCH_WEB"), {}, ["google_search"]),
        ([], GROUNDED, ["google_search"] * 2),
        (gemini_search("GOOGLE_SEARCH_WEB"), GROUNDED, ["google_search"] * 2),
        (gemini_search("URL_CONTEXT"), READ, ["url_context"]),
        (gemini_search("URL_CONTEXT"), GROUNDED, ["url_context", "google_search", "google_search"]),
        (
            gemini_search("FILE_SEARCH"),
            GROUNDED | READ,
            ["file_search", "google_search", "google_search", "url_context"],
        ),
    ],
)
async def test_a_search_of_gemini_counts_once(
    bench: Bench, parts: list[dict[str, Any]], beside: dict[str, Any], expected: list[str]
) -> None:
    """Each query is billed, and named by the candidate, beside the parts of the search."""
    candidate = {"content": {"parts": [*parts, {"text": "So."}]}, "finishReason": "STOP", **beside}
    reply = await bench.body("google", {"candidates": [candidate]})
    assert [each.name for each in reply.hosted_calls] == expected


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"type": "web_search_preview_2025_03_11"}, "web_search"),
        ({"type": "web_search"}, "web_search"),
        ({"type": "web_search_20250305", "name": "web_search"}, "web_search"),
        ({"type": "code_execution_20250825"}, "code_execution"),
        ({"googleSearch": {}}, "google_search"),
        ({"google_search": {}}, "google_search"),
    ],
)
def test_the_name_of_a_provider_tool(given: dict[str, Any], name: str) -> None:
    assert ProviderTool("openai", given).name == name


def test_an_agent_declares_tools_of_both_kinds() -> None:
    hosted = ProviderTool("openai", TOOLS["openai"])
    agent = Agent(name="a", model="openai:gpt-5.5", tools=[search, hosted])
    assert (list(agent.listed_tools), list(agent.provider_tools)) == ([search], [hosted])
    assert define(agent, "", "openai:gpt-5.5").tools_of("openai") == [TOOLS["openai"]]
    assert agent_json(agent)["provider_tools"] == [{"provider": "openai", "tool": TOOLS["openai"]}]
    facts = resolve_models(agent, RunInput(agent="a", prompt="Go."), Prices.load())
    assert cost_of_hosted(facts.prices.get, "openai:gpt-5.5", ["web_search", "web_search", "other"]) == 0.02
    assert cost_of_hosted(facts.prices.get, "anthropic:m", ["web_search"]) == 0.0


@pytest.mark.parametrize("api", APIS)
async def test_a_strict_tool_is_sent_in_the_form_of_strict_mode(bench: Bench, api: str) -> None:
    """The server refuses a strict schema in which a field may be left out."""

    @tool(strict=True)
    def weather(city: str, days: int = 1, unit: str | None = None) -> str:
        """The weather."""
        return f"{city} {days} {unit}"

    @tool(strict=True)
    def count(words: dict[str, int]) -> int:
        """Count words. Strict mode has no form for it."""
        return len(words)

    declared = [
        ToolDefinition(name=each.name, description=each.description, parameters=each.arguments.schema, strict=True)
        for each in (weather, count)
    ]
    await bench.ask_ok(api, [GO], tools=declared)
    assert bench.server.refusals == []
    sent = [each.get("function", each) for each in bench.sent["tools"]]
    assert sorted(sent[0]["parameters"]["required"]) == ["city", "days", "unit"]
    assert (sent[0]["strict"], bool(sent[1].get("strict"))) == (True, False)
    assert sent[1]["parameters"] == declared[1].parameters
