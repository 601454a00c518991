"""Images and files through each protocol of `mulligan serve`: the model gets them, and history has references."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.content_files import PDF, png
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn

MODEL = "gpt-test"
IMAGE = base64.b64encode(png(5_000)).decode()
DOCUMENT = base64.b64encode(PDF).decode()
IMAGE_URL, PDF_URL = f"data:image/png;base64,{IMAGE}", f"data:application/pdf;base64,{DOCUMENT}"


@dataclass
class Served:
    """A server, and a worker of the agent `painter`, with a content storage."""

    lab: Lab
    door: Door
    client: Any

    def script(self, *turns: Turn) -> None:
        self.lab.model.script(MODEL, list(turns))

    def sent(self) -> list[dict[str, Any]]:
        """The parts of the newest user's message that the model got."""
        messages = self.lab.model.requests_of(MODEL)[-1].json["input"]
        parts: list[dict[str, Any]] = [item for item in messages if item.get("role") == "user"][-1]["content"]
        return parts


@pytest.fixture(scope="module")
async def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    queue = f"painters-{uuid.uuid4().hex[:6]}"
    folder: Path = tmp_path_factory.mktemp("content")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_CONTENT_DIR", str(folder))
        client = await lab.another_client()
        async with (
            running_worker(client, load(["tests.support.content_agents"]), lab.telemetry, queue),
            http_server(client, task_queue=queue) as door,
            AsyncOpenAI(base_url=f"{door.url}/v1", api_key="any", max_retries=0) as openai,
        ):
            yield Served(lab, door, openai)


def image_of(parts: list[dict[str, Any]]) -> str:
    return next(str(part["image_url"]) for part in parts if part["type"] == "input_image")


async def test_api_takes_parts_in_prompts_messages_and_resumed_runs(served: Served) -> None:
    served.script(call("texts"), DONE, DONE, DONE)
    prompt = [{"type": "text", "text": "Look."}, {"type": "image", "data": IMAGE, "name": "a.png"}]
    run = {"id": f"run-{uuid.uuid4().hex[:8]}", "agent": "painter", "prompt": prompt}
    answers = [await served.door.http.post("/api/runs", json=run) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    read = (await served.door.http.get(f"/api/runs/{run['id']}?wait=30")).json()
    assert read["status"] == "completed"
    [message] = (await served.door.http.get(f"/api/runs/{run['id']}/messages?limit=1")).json()["messages"]
    assert message["text"] == "Look."
    assert message["content"][1].keys() == {"type", "media_type", "ref", "name", "size"}
    assert image_of(served.sent()) == IMAGE_URL
    again = {"prompt": [{"type": "image", "ref": message["content"][1]["ref"], "media_type": "image/png"}]}
    resumed = await served.door.http.post(f"/api/runs/{run['id']}/resume", json=again)
    assert resumed.status_code == 201, resumed.text
    read = (await served.door.http.get(f"/api/runs/{resumed.json()['id']}?wait=30")).json()
    assert read["status"] == "completed"
    assert image_of(served.sent()) == IMAGE_URL


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"type": "image", "data": IMAGE, "media_type": "image/gif"}, "but its bytes are image/png."),
        ({"type": "image", "ref": "sha256:" + "0" * 64, "media_type": "image/png"}, "is not in the content storage"),
        ({"type": "file", "data": "AAAA"}, "is of an unknown type"),
    ],
)
async def test_faulty_parts_are_refused_with_a_sentence(served: Served, part: dict[str, Any], sentence: str) -> None:
    answer = await served.door.http.post("/api/runs", json={"agent": "painter", "prompt": [part]})
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]


async def test_openais_sdk_sends_images_and_files_to_responses_and_chats(served: Served) -> None:
    served.script(DONE, DONE)
    content = [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": IMAGE_URL},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF_URL},
    ]
    response = await served.client.responses.create(model="painter", input=[{"role": "user", "content": content}])
    assert response.output_text == "done"
    assert [part["type"] for part in served.sent()] == ["input_text", "input_image", "input_file"]
    more = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x.test/photo?id=1"}]}]
    await served.client.responses.create(model="painter", input=more, previous_response_id=response.id)
    assert image_of(served.sent()) == "https://x.test/photo?id=1"
    served.script(DONE)
    parts = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": IMAGE_URL}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}},
    ]
    chat = await served.client.chat.completions.create(model="painter", messages=[{"role": "user", "content": parts}])
    assert chat.choices[0].message.content == "done"
    assert [part["type"] for part in served.sent()] == ["input_text", "input_image", "input_file"]


async def test_the_ai_sdk_sends_files_and_the_same_message_again_is_the_same_turn(served: Served) -> None:
    served.script(DONE)
    file = {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": IMAGE_URL}
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "What?"}, file]}
    body = {"id": f"chat-{uuid.uuid4().hex[:8]}", "messages": [message], "trigger": "submit-message"}
    before = len(served.lab.model.requests_of(MODEL))
    for _ in range(2):
        answer = await served.door.http.post("/ai-sdk/painter", json=body)
        assert answer.status_code == 200
        assert '"done"' in answer.text
    assert len(served.lab.model.requests_of(MODEL)) == before + 1
    assert image_of(served.sent()) == IMAGE_URL


@pytest.mark.parametrize(
    "part",
    [
        {"type": "binary", "mimeType": "image/png", "data": IMAGE, "filename": "a.png"},
        {"type": "image", "source": {"type": "data", "value": IMAGE, "mimeType": "image/png"}},
    ],
)
async def test_ag_ui_takes_binary_and_image_parts(served: Served, part: dict[str, Any]) -> None:
    served.script(DONE)
    message = {"id": "m1", "role": "user", "content": [{"type": "text", "text": "What?"}, part]}
    thread = f"thread-{uuid.uuid4().hex[:8]}"
    body = {"threadId": thread, "runId": "r1", "messages": [message], "tools": [], "context": [], "state": {}}
    answer = await served.door.http.post("/ag-ui/painter", json={**body, "forwardedProps": {}})
    assert answer.status_code == 200, answer.text
    assert "RUN_FINISHED" in answer.text
    assert image_of(served.sent()) == IMAGE_URL
    assert json.dumps(IMAGE) not in answer.text


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


FAULTY = {
    "another type": ("image", f"data:image/gif;base64,{IMAGE}", "but its bytes are image/png."),
    "an unknown type": ("file", f"data:;base64,{_encoded(bytes(range(3)))}", "is of an unknown type"),
    "no base64": ("image", "data:image/png;base64,????", "is not base64"),
    "no bytes": ("image", "data:image/png;base64,", "has no bytes"),
    "a file of the server": ("image", "file:///etc/passwd", ""),
    "another scheme": ("image", "ftp://x.test/a.png", ""),
    "a long URL": ("image", "https://x.test/" + "a" * 9_000 + ".png", "at most 8,192 characters"),
}
"""A kind of part, its URL, and what the refusal says."""


def entrances(kind: str, url: str) -> dict[str, Any]:
    """The body of a request with this part for each protocol, by its path."""
    unique, name = uuid.uuid4().hex[:8], {"filename": "a"} if kind == "file" else {}
    media_type = url.removeprefix("data:").partition(";")[0] if url.startswith("data:") else "image/png"
    input_part = {"type": f"input_{kind}", **({"image_url": url} if kind == "image" else {"file_data": url}), **name}
    chat_part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    if kind == "file":
        chat_part = {"type": "file", "file": {"file_data": url, **name}}
    ui_part = {"type": "file", "mediaType": media_type, "url": url, **name}
    source = {"type": "url", "value": url, "mimeType": media_type}
    ag_part = {"type": "document" if kind == "file" else kind, "source": source}
    ag_state: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    return {
        "/api/runs": {"agent": "painter", "prompt": [{"type": kind, "url": url}]},
        "/v1/responses": {"model": "painter", "input": [{"role": "user", "content": [input_part]}]},
        "/v1/chat/completions": {"model": "painter", "messages": [{"role": "user", "content": [chat_part]}]},
        "/ai-sdk/painter": {
            "id": f"chat-{unique}", "messages": [{"id": "m1", "role": "user", "parts": [ui_part]}],
            "trigger": "submit-message",
        },
        "/ag-ui/painter": {
            "threadId": f"t-{unique}", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": [ag_part]}],
            **ag_state,
        },
    }  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY)
async def test_content_that_cannot_be_used_is_refused_at_each_entrance_and_starts_no_run(
    served: Served, fault: str
) -> None:
    kind, url, sentence = FAULTY[fault]
    before = len(served.lab.model.requests_of(MODEL))
    for path, body in entrances(kind, url).items():
        answer = await served.door.http.post(path, json=body)
        assert answer.status_code in (400, 422), (path, answer.status_code, answer.text[:300])
        refused = answer.json()
        error = refused.get("detail") or refused.get("message") or refused["error"]
        text = error["message"] if isinstance(error, dict) else error
        assert sentence in text, (path, text[:300])
        assert len(text) < 600, path
        assert "Traceback" not in text
    assert len(served.lab.model.requests_of(MODEL)) == before


async def test_a_url_of_a_client_is_given_to_the_provider_and_never_fetched(served: Served) -> None:
    """Also one of this machine: neither the server nor the worker connects to it."""
    fetched: list[str] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fetched.append((await reader.readline()).decode())
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/secret.png"
        for path, body in entrances("image", url).items():
            served.script(DONE)
            before = len(served.lab.model.requests_of(MODEL))
            answer = await served.door.http.post(path, json=body)
            assert answer.status_code in (200, 201), (path, answer.text[:300])
            if path == "/api/runs":
                await served.door.http.get(f"/api/runs/{answer.json()['id']}?wait=30")
            assert len(served.lab.model.requests_of(MODEL)) == before + 1, path
            assert image_of(served.sent()) == url, path
    assert fetched == []
