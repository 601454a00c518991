"""`/v1/responses` for clients of Open Responses: by the published schema, the published cases, and a client of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mulligan.serve import turn_stream
from tests.support.door_streams import DOORS, END, response_after
from tests.support.event_logs import LOGS
from tests.support.expected_failures import check_failures
from tests.support.npm_packages import installed, run_node
from tests.support.open_responses import HEADERS, OpenResponsesSchema, run_cases
from tests.support.openai_door_agents import MODEL, REFUND
from tests.support.openai_turn import Turn
from tests.system.features.test_serve_conversations import served
from tests.system.features.test_serve_openai import Served
from tests.system.test_v1_clients import AI_SDK

__all__ = ["served"]

CLIENT = Path(__file__).parents[1] / "support" / "ai_sdk_open_responses.mjs"


@pytest.fixture(scope="module")
async def schema() -> OpenResponsesSchema:
    return await OpenResponsesSchema.read()


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has all of its events at once: nothing comes after a pause."""
    monkeypatch.setattr(turn_stream, "QUIET_SECONDS", 0.01)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("name", LOGS)
async def test_what_a_run_becomes_fits_the_published_schema(schema: OpenResponsesSchema, name: str) -> None:
    *frames, end = await DOORS["open_responses"](LOGS[name]())
    assert end == END
    assert [(each["type"], schema.faults_of_event(each)) for each in frames if each != END] == [
        (each["type"], []) for each in frames if each != END
    ]


async def test_the_schema_refuses_openais_form(schema: OpenResponsesSchema) -> None:
    """So the schema is one: OpenAI's names of items and events are not in it, and two fields are missing."""
    frames = await response_after(LOGS["two_calls_side_by_side"](), None)
    faults = {each["type"]: schema.faults_of_event(each) for each in frames}
    assert faults["response.output_text.delta"] == []
    assert faults["response.mcp_call.completed"]
    missing = schema.faults_of_response(frames[-1]["response"])
    assert [fault for fault in missing if "penalty" in fault] == [
        "$: 'presence_penalty' is a required property",
        "$: 'frequency_penalty' is a required property",
    ]
    assert any("mcp_call" in fault for fault in missing)


async def test_the_published_cases_pass_but_those_with_a_reason(served: Served) -> None:
    served.lab.model.script(MODEL, lambda _request, _nth: Turn("Hello there, friend."))
    faults = await run_cases(served.door.url, served.door.tokens["ada"], "seller")
    failed = [name for name, found in faults.items() if found]
    check_failures("open_responses", "cases", failed, [name for name in faults if name not in failed])
    assert "SKIP" not in faults["reasoning-summary"]


async def test_an_approval_is_given_in_its_words(served: Served, schema: OpenResponsesSchema) -> None:
    """With the header, a client gets its form of a response, of an answer to its reply, and of a conversation's items."""
    headers, http = {**served.door.by("ada"), **HEADERS}, served.door.http

    async def create(**body: Any) -> Any:
        answer = await http.post("/v1/responses", json={"model": "seller", **body}, headers=headers)
        assert (answer.status_code, schema.faults_of_response(answer.json())) == (200, [])
        return answer.json()

    prompt = served.script(REFUND, Turn("Given back."), Turn("Bye."))
    waiting = await create(input=prompt)
    [request] = waiting["output"]
    assert (waiting["status"], request["type"]) == ("in_progress", "mulligan:approval_request")
    reply = {"type": "mulligan:approval_response", "approval_request_id": request["id"], "approve": True}
    done = await create(input=[reply], previous_response_id=waiting["id"])
    assert [each["type"] for each in done["output"]] == ["mulligan:tool_call", "message"]
    assert (done["temperature"], done["top_p"], done["presence_penalty"]) == (1.0, 1.0, 0.0)
    read = await http.get(f"/v1/responses/{waiting['id']}", headers=headers)
    assert (schema.faults_of_response(read.json()), len(read.json()["output"])) == ([], 2)
    items = (await http.get(f"/v1/conversations/{waiting['id']}/items", headers=headers)).json()["data"]
    assert [each["type"] for each in items] == ["message", "mulligan:tool_call", "message"]
    said = [{"role": "user", "content": prompt}, *done["output"], {"role": "user", "content": "Thanks."}]
    assert (await create(input=said))["output"][-1]["content"][0]["text"] == "Bye."


@pytest.mark.parametrize("mode", ["plain", "stream"])
async def test_the_ai_sdks_provider_reads_a_run(served: Served, mode: str) -> None:
    """It knows items of who implements it by their prefix, id and status, and sends them back whole."""
    look = Turn("Let me look.", calls=[("search_orders", '{"customer": "Ada"}', "a")])
    prompt = served.script(look, Turn("It is 7."), Turn("Bye."))
    folder = await installed("ai-sdk-open-responses", {"ai": AI_SDK["ai"], "@ai-sdk/open-responses": "2.0.36"})
    printed = await run_node(folder, CLIENT, served.door.url, served.door.tokens["ada"], mode, prompt)
    [first, second] = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert (first["text"], second["text"]) == ("Let me look.It is 7.", "Bye.")
    [[tool, result]] = first["results"]
    assert (tool, json.loads(result)[0]["id"]) == ("search_orders", 7)
    assert second["results"] == []
    sent = served.lab.model.requests_of(MODEL, run=prompt)[-1].conversation
    assert [each["role"] for each in sent if each["role"] != "system"] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
