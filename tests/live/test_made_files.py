"""Images that a provider makes, in whole runs: stored, in steps and events, sent back with the same bytes, and at the doors."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from mulligan.content import digest_of
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.content_files import png
from tests.support.http_server import by, http_server
from tests.support.lab import Lab, Ran
from tests.support.openai_turn import Failure, Turn

PICTURE = png(300_000)
ENCODED = base64.b64encode(PICTURE).decode()
CALL = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": ENCODED, "output_format": "png"}
INLINE = {"inlineData": {"mimeType": "image/png", "data": ENCODED}}
FILE = {"type": "image", "media_type": "image/png", "ref": digest_of(PICTURE), "size": len(PICTURE)}


def response(*items: dict[str, Any]) -> Turn:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    body = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": list(items),
        "usage": usage,
    }
    return Turn(failure=Failure(status=200, body=body))


def of_openai(text: str, *items: dict[str, Any]) -> Turn:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return response(*items, *([said] if text else []))


def of_google(text: str, *parts: dict[str, Any]) -> Turn:
    content = {"role": "model", "parts": [*([{"text": text}] if text else []), *parts]}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
    return Turn(
        failure=Failure(
            status=200, body={"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}
        )
    )


MAKERS: dict[str, tuple[Any, dict[str, Any]]] = {"openai": (of_openai, CALL), "google": (of_google, INLINE)}


@pytest.fixture(autouse=True)
def _content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))


@asynccontextmanager
async def painters(lab: Lab) -> AsyncIterator[Lab]:
    """A lab with a worker and a client with the settings of now."""
    queue = f"made-{uuid.uuid4().hex[:6]}"
    client = await lab.another_client()
    async with running_worker(client, load(["tests.support.content_agents"]), lab.telemetry, queue):
        yield Lab(client, lab.model, lab.otlp, lab.telemetry, queue)


async def history_bytes(ran: Ran) -> int:
    description = await ran.handle.describe()
    size: int = description.raw_description.workflow_execution_info.history_size_bytes
    return size


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("caches", ["", "MULLIGAN_PREFIX_CACHE_BYTES"])
async def test_it_is_stored_shown_and_sent_back_with_the_same_bytes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, maker: str, caches: str
) -> None:
    """Also by a worker that has kept nothing of the conversation."""
    if caches:
        monkeypatch.setenv(caches, "0")
    make, item = MAKERS[maker]
    look = {"openai": function_call, "google": google_call}[maker]
    async with painters(lab) as at:
        ran = await at.run([make("", item, look), make("There.")], agent="painter", api=maker, tenant="ada")
        events = (await ran.handle.query("events", args=[0, 100]))["events"]
        [_, answer, *_] = (await ran.handle.query("messages", args=[0, 100]))["messages"]
    assert ran.result["output"] == "There."
    assert [step.get("files") for step in ran.steps] == [[FILE], None]
    assert [event.get("files") for event in events if event["type"] == "answered"] == [[FILE], None]
    assert answer["files"] == [FILE]
    assert await history_bytes(ran) < 20_000
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    sent = ran.requests[1].json
    back = sent["input"] if maker == "openai" else [part for each in sent["contents"] for part in each["parts"]]
    assert item in back


function_call = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "texts",
    "arguments": "{}",
    "status": "completed",
}
google_call = {"functionCall": {"id": "c1", "name": "texts", "args": {}}}


async def test_an_image_alone_is_an_answer_and_each_door_shows_it(lab: Lab) -> None:
    """OpenAI's own package reads it; a tenant's content is read for its own runs."""
    async with painters(lab) as at, http_server(at.client, tokens="ada:s-1") as door:
        ran = await at.run([of_openai("", CALL)], agent="painter", api="openai", tenant="ada")
        assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("completed", "", 1)
        async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key="s-1") as client:
            read = await client.responses.retrieve(ran.id)
        api = (await door.http.get(f"/api/runs/{ran.id}/events", headers=by("s-1"))).json()["events"]
    [image] = read.output
    assert image.type == "image_generation_call"
    assert (image.result, image.status) == (ENCODED, "completed")
    assert [event.get("files") for event in api if event["type"] == "answered"] == [[FILE]]
    assert ENCODED not in json.dumps(api)
