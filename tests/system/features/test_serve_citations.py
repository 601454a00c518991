"""The sources that an answer names, in the protocols that have a place for them: OpenAI's and the AI SDK's."""

from __future__ import annotations

import json
import uuid
from typing import Any

from openai import AsyncOpenAI

from mulligan import Agent
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.live.conftest import Lab
from tests.support.ai_sdk_client import Chat
from tests.support.http_server import http_server
from tests.support.openai_turn import Failure, Turn
from tests.support.shop_agents import now
from tests.unit.test_paused_answers import CITED, FOUND, USE, message, text

ANSWER, BEFORE = "Look: Otters swim.", "I ask for the time."
CALL = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
SOURCE = {"url": "https://a", "title": "Otters"}
PLACE = {"start_index": 6, "end_index": 18}


def answer(request: dict[str, Any], nth: int) -> Turn:
    """A call, and then a text of two blocks, the second with a source of which it is cited twice."""
    body = message(USE, FOUND, text("Look: "), text("Otters swim.", citations=[CITED, CITED]))
    if len(request["messages"]) == 1:
        body = message(text(BEFORE), CALL, stop="tool_use")
    return Turn(failure=Failure(status=200, body=body))


async def test_citations_are_annotations_and_sources(lab: Lab) -> None:
    """Streamed or not; in a chat that streams, at their place among the texts of all steps."""
    name = f"cited-{uuid.uuid4().hex[:6]}"
    lab.model.script(name, answer)
    agent = Agent(name=name, model=f"anthropic:{name}", tools=[now])
    async with (
        running_worker(lab.client, load_agents([agent], []), lab.telemetry, name),
        http_server(lab.client, task_queue=name) as door,
        AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client,
    ):
        page = Chat(door, name)
        response = await client.responses.create(model=name, input="Otters?")
        asked: Any = {"model": name, "messages": [{"role": "user", "content": "Otters?"}]}
        chat = await client.chat.completions.create(**asked)
        chunks = [each async for each in await client.chat.completions.create(**asked, stream=True)]
        parts = [each for each in await page.say("Otters?") if each["type"] == "source-url"]
        thread = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Otters?"}]}
        sent = {**thread, "tools": [], "context": [], "state": {}, "forwardedProps": {}}
        async with door.http.stream("POST", f"/ag-ui/{name}", json=sent, timeout=60) as stream:
            lines = [line.removeprefix("data: ") async for line in stream.aiter_lines() if line.startswith("data: ")]
        stored = await client.responses.retrieve(response.id)
        [_, shown] = await page.messages()
    annotation = {"type": "url_citation", **SOURCE, **PLACE}
    for each in (response, stored):
        parts_of_answer = [item.content[0] for item in each.output if item.type == "message"]
        texts = [part for part in parts_of_answer if part.type == "output_text"]
        assert [part.text for part in texts] == [BEFORE, ANSWER]
        assert [[one.model_dump() for one in part.annotations] for part in texts] == [[], [annotation] * 2]
    said = chat.choices[0].message
    assert said.content == ANSWER
    assert [one.model_dump() for one in said.annotations or []] == [
        {"type": "url_citation", "url_citation": {**SOURCE, **PLACE}}
    ] * 2
    streamed = "".join(each.choices[0].delta.content or "" for each in chunks)
    [annotations] = [each.choices[0].delta.model_extra["annotations"] for each in chunks if "annotations" in str(each)]
    cited = [one["url_citation"] for one in annotations]
    assert [streamed[each["start_index"] : each["end_index"]] for each in cited] == ["Otters swim."] * 2
    assert parts == [{"type": "source-url", "sourceId": "source-2-1", **SOURCE}]
    assert [part for part in shown["parts"] if part["type"] == "source-url"] == parts
    events = [json.loads(line) for line in lines]
    [custom] = [each for each in events if each.get("name") == "mulligan.citations"]
    [*_, written] = [each for each in events if each["type"] == "TEXT_MESSAGE_END"]
    assert custom["value"]["messageId"] == written["messageId"]
    assert [(each["url"], each["start"], each["end"]) for each in custom["value"]["citations"]] == [
        ("https://a", 6, 18)
    ] * 2
