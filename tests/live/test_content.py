"""Images and files in prompts, messages and results: what the model gets, and what is in history."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mulligan import File, Image, ModelRequestError, RunInput, SendMessage
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.content_agents import MEGABYTE
from tests.support.content_files import PDF, png
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Turn

AGENTS = "tests.support.content_agents"


@asynccontextmanager
async def painters(lab: Lab) -> AsyncIterator[Lab]:
    """A lab with a worker of these agents, and a client, with the settings of now."""
    queue = f"painters-{uuid.uuid4().hex[:6]}"
    client = await lab.another_client()
    async with running_worker(client, load([AGENTS]), lab.telemetry, queue):
        yield Lab(client, lab.model, lab.otlp, lab.telemetry, queue)


async def history_bytes(ran: Ran) -> int:
    description = await ran.handle.describe()
    size: int = description.raw_description.workflow_execution_info.history_size_bytes
    return size


def photo(number: int) -> Turn:
    return call("photo", json.dumps({"number": number}))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_five_steps_with_an_image_of_a_megabyte_each_cost_history_three_kilobytes_a_step(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each request has all images so far, whole; a second run of the same images stores nothing new."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    async with painters(lab) as at:
        short = await at.run([photo(0), DONE], agent="painter")
        ran = await at.run([*map(photo, range(6)), DONE], agent="painter", api="openai")
        assert ran.result["steps"] == 7
        per_step = (await history_bytes(ran) - await history_bytes(short)) / 5
        assert per_step < 3_100
        for number, request in enumerate(ran.requests):
            text = request.body.decode()
            assert [encoded(png(MEGABYTE, each)) in text for each in range(6)] == [each < number for each in range(6)]
        message = (await ran.handle.query("messages", args=[2, 1]))["messages"][0]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 6
    assert message["text"] == ""
    [part] = message["content"]
    assert part.keys() == {"type", "media_type", "name", "ref", "size"}


@pytest.mark.parametrize("setting", ["MULLIGAN_PREFIX_CACHE_BYTES", "MULLIGAN_MAX_CACHED_WORKFLOWS"])
async def test_a_worker_without_caches_reads_stored_content_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"a:{encoded(bytes(range(32)))}")
    monkeypatch.setenv(setting, "0")
    image = png(5_000)
    async with painters(lab) as at:
        prompt = ["What is it?", Image.from_bytes(image, name="a.png")]
        ran = await at.run(
            [photo(1), DONE],
            agent="painter",
            prompt=json.loads(RunInput(agent="a", prompt=prompt).model_dump_json())["prompt"],
        )
    assert ran.result["status"] == "completed"
    assert encoded(image) in ran.requests[-1].body.decode()
    assert encoded(png(MEGABYTE, 1)) in ran.requests[-1].body.decode()
    assert all(image[100:200] not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_results_with_parts_reach_the_model_steps_messages_events_and_spans(lab: Lab) -> None:
    async with painters(lab) as at:
        ran = await at.run([call("look"), call("texts"), call("isolated_photo"), DONE], agent="painter", api="openai")
        [message] = (await ran.handle.query("messages", args=[2, 1]))["messages"]
        events = (await ran.handle.query("events", args=[0, 100]))["events"]
    look, texts, isolated = ran.calls
    assert look["result"]["text"] == 'Here:\n\n{"more": 1}'
    assert [part["type"] for part in look["result"]["content"]] == ["text", "image", "file", "audio", "text"]
    assert "data" not in json.dumps(look["result"]["content"])
    assert texts["result"] == {"text": "one\n\ntwo", "error": None}
    assert isolated["result"]["content"][0]["size"] == len(png(5_000))
    assert message["content"][1] == {
        "type": "image",
        "media_type": "image/png",
        "data": encoded(png()),
        "name": "small.png",
    }
    output = ran.requests[1].json["input"][2]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_file", "input_text", "input_text"]
    assert output[3]["text"] == "[audio (audio/wav, 44 bytes): it cannot be shown to this model]"
    settled = [event for event in events if event["type"] == "tool_call_settled"]
    assert settled[0]["result"]["content"] == look["result"]["content"]
    span = ran.spans_of("ai.toolCall")[0]
    digest = look["result"]["content"][1]["ref"]
    assert span.attributes["mulligan.content"][0] == f"image/png {len(png())} {digest}"
    assert encoded(png()) not in str([each.attributes for each in ran.spans])
    chats = [each for each in ran.spans if each.name.startswith("chat ")]
    assert sorted(len(each.attributes.get("mulligan.content", [])) for each in chats) == [0, 0, 1, 3]


WRONG = {
    "type": (
        "tool_exception",
        "raised ContentError: The image has the \"media_type\" 'image/jpeg', but its bytes are image/png.",
    ),
    "large": ("tool_exception", "the limit for a part is 20,000,000."),
    "unknown": ("tool_exception", "raised ContentError: The file a.bin is of an unknown type"),
    "ref": ("invalid_result", '`wrong` ran, but its result cannot be used: "result'),
    "many": ("invalid_result", "it has 101 parts; the limit is 100."),
}


@pytest.mark.parametrize("is_stored", [True, False])
async def test_content_that_cannot_be_used_is_a_failed_call_and_the_run_continues(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    if is_stored:
        monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    turns: list[Any] = [Turn(calls=[("wrong", json.dumps({"what": what}), None) for what in WRONG]), photo(0), DONE]
    async with painters(lab) as at:
        ran = await at.run(turns, agent="painter")
    assert ran.result["status"] == "completed"
    for result, (kind, text) in zip(ran.calls, WRONG.values(), strict=False):
        assert result["result"]["error"]["kind"] == kind
        assert text in result["result"]["text"]
    photographed = ran.calls[-1]["result"]
    if is_stored:
        assert photographed["error"] is None
    else:
        assert photographed["error"]["kind"] == "invalid_result"
        assert "without a content storage the limit is 1,000,000. Set MULLIGAN_CONTENT_DIR" in photographed["text"]


async def test_prompts_and_messages_with_files_are_stored_by_the_client(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    document = File.from_bytes(PDF + b"%" * 5_000, name="a.pdf")
    async with painters(lab) as at:
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        at.model.script(run_id, [photo(1), DONE, DONE])
        run_input = RunInput(agent="painter", prompt=["Read it.", document], model=f"openai:{run_id}")
        handle: Any = await at.client.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=at.task_queue)
        sent = SendMessage(text="And this.", content=[Image.from_bytes(png(4_000), name="b.png")])
        await handle.execute_update("send_message", sent)
        ran = await at.look(handle)
        messages = (await handle.query("messages", args=[0, 10]))["messages"]
        events = (await handle.query("events", args=[0, 100]))["events"]
    assert ran.result["status"] == "completed"
    users = [message for message in messages if message["role"] == "user"]
    assert [message["text"] for message in users] == ["Read it.", "And this."]
    assert [part["ref"][:7] for message in users for part in message["content"] if part["type"] != "text"] == [
        "sha256:"
    ] * 2
    assert encoded(png(4_000)) in ran.requests[-1].body.decode()
    assert encoded(document.content) in ran.requests[-1].body.decode()
    [message] = [event for event in events if event["type"] == "message"]
    assert message["content"][1]["name"] == "b.png"


async def test_stored_content_that_was_changed_fails_the_run_once(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_PREFIX_CACHE_BYTES", "0")

    def script(body: dict[str, Any], nth: int) -> Turn:
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.write_bytes(b"changed")
        return [call("texts"), DONE][nth]

    async with painters(lab) as at:
        prompt = [{"type": "image", "data": encoded(png(5_000))}]
        ran = await at.run(script, agent="painter", prompt=prompt)
    assert isinstance(ran.error, ModelRequestError)
    assert "The image (image/png, " in ran.error.message
    assert len(ran.requests) == 1
