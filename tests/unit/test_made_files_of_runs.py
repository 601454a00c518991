"""What a provider makes, in whole runs without a server: an image alone is an answer; and its bytes for the doors of a tenant."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan import Agent, Image, RunInput, tool
from mulligan.cli import _context, _steps
from mulligan.client.content_store import ContentStore, configured_content_store
from mulligan.client.store_content import store_content
from mulligan.content import Text, digest_of
from mulligan.errors import InvalidRunInputError
from mulligan.run_view.step_view import StepView
from mulligan.serve import shown_files
from mulligan.serve.caller import ANYBODY
from mulligan.serve.shown_files import ShownFiles
from mulligan.values import AssistantMessage
from mulligan.wire.event_types import Answered
from mulligan.wire.run_priority import TENANT_MEMO
from mulligan.worker.loading import load_agents
from tests.support.content_files import png
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn

PICTURE = png(300_000)
ENCODED = base64.b64encode(PICTURE).decode()
CALL = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": ENCODED, "output_format": "png"}
STORED = Image(ref=digest_of(PICTURE), media_type="image/png", size=len(PICTURE))
FILE = {"type": "image", "media_type": "image/png", "ref": digest_of(PICTURE), "size": len(PICTURE)}


@tool
def look() -> str:
    """Look."""
    return "It is a lamp."


@pytest.fixture(autouse=True)
def _content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))


@pytest.fixture
async def shop(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([Agent(name="shop", model="openai:any", tools=[look])], [])) as at:
        yield at


def answers(*items: dict[str, Any]) -> Turn:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return Turn(
        failure=Failure(status=200, body={"id": "r", "status": "completed", "output": list(items), "usage": usage})
    )


def text(said: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}


async def test_an_image_beside_a_call_is_in_the_step_and_in_the_next_request_whole(shop: MemoryLab) -> None:
    called = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    ran = await shop.run([answers(CALL, called), answers(text("A lamp."))], api="openai", tenant="ada")
    assert (ran.result["output"], [step.get("files") for step in ran.steps]) == ("A lamp.", [[FILE], None])
    assert CALL in ran.requests[1].json["input"]
    events = (await ran.handle.query("events", args=[0, 100]))["events"]
    assert [each.get("files") for each in events if each["type"] == "answered"] == [[FILE], None]
    [_, answer, *_] = (await ran.handle.query("messages", args=[0, 100]))["messages"]
    assert answer["files"] == [FILE]
    assert ENCODED not in json.dumps(answer)


async def test_an_image_of_geminis_beside_a_call_is_sent_back_whole(shop: MemoryLab) -> None:
    """And its server, which checks all fields and signatures, accepts it."""

    def content(*parts: dict[str, Any]) -> Turn:
        candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
        return Turn(failure=Failure(status=200, body={"candidates": [candidate], "usageMetadata": usage}))

    inline = {"inlineData": {"mimeType": "image/png", "data": ENCODED}}
    called = {"functionCall": {"id": "c1", "name": "look", "args": {}}}
    ran = await shop.run([content(inline, called), content({"text": "A lamp."})], api="google")
    assert (ran.result["output"], [step.get("files") for step in ran.steps]) == ("A lamp.", [[FILE], None])
    assert inline in [part for each in ran.requests[1].json["contents"] for part in each["parts"]]


async def test_an_image_alone_is_an_answer(shop: MemoryLab) -> None:
    ran = await shop.run([answers(CALL)], api="openai")
    assert (ran.result["status"], ran.result["output"], ran.result["steps"]) == ("completed", "", 1)


async def test_an_answer_with_nothing_but_a_file_that_was_not_kept_is_empty(shop: MemoryLab) -> None:
    ran = await shop.run([answers({**CALL, "result": "!"}), answers(text("Sorry."))], api="openai")
    assert (ran.result["output"], ran.result["steps"]) == ("Sorry.", 2)


# For the doors


def answered(*files: Any) -> Answered:
    at = "2026-11-30T12:00:00Z"
    fields = {"at": at, "offset": 2, "step": 1, "text": "", "tool_calls": [], "usage": {}, "files": list(files)}
    return Answered.model_validate(fields)


@pytest.fixture
def of_run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The reader of a run's files. `tenant`: the run's."""

    async def memo_of(described: Any) -> Any:
        return {TENANT_MEMO: described}

    monkeypatch.setattr(shown_files, "memo_of", memo_of)

    def make(tenant: str | None) -> ShownFiles:
        async def describe(*_: Any) -> Any:
            return tenant

        return ShownFiles(cast(Any, SimpleNamespace(describe=describe)), ANYBODY, "run-1")

    return make


async def test_doors_read_the_content_of_the_runs_tenant_alone(of_run: Any) -> None:
    store = configured_content_store()
    assert isinstance(store, ContentStore)
    await store.of("ada").put(PICTURE)
    event = answered(STORED, Text(text="Not kept."))
    shown = await of_run("ada").within(event)
    assert [getattr(part, "data", None) for part in shown.files] == [ENCODED, None]
    assert (await of_run("eve").within(event)).files == event.files
    assert (await of_run(None).within(event)).files == event.files
    assert event.files[0] == STORED


async def test_doors_show_references_where_there_is_no_storage_or_too_much(
    of_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = configured_content_store()
    assert store is not None
    await store.put(PICTURE)
    monkeypatch.setattr(shown_files, "MOST_BYTES", len(PICTURE))
    reader = of_run(None)
    reader._bytes_left = len(PICTURE)
    first, second = await reader.of(answered(STORED, STORED))
    assert (first.data, second.data) == (ENCODED, None)
    monkeypatch.delenv("MULLIGAN_CONTENT_DIR")
    assert await of_run(None).of(answered(STORED)) == [STORED]


# In inputs, and in a terminal


async def test_files_in_the_messages_of_an_input_are_stored_and_checked() -> None:
    message = AssistantMessage(role="assistant", text="Here.", files=[Image.from_bytes(PICTURE)])
    run_input = RunInput(agent="a", messages=[message], prompt="Go on.", tenant="ada")
    stored = await store_content(run_input, check_messages=True)
    [kept] = stored.messages
    assert isinstance(kept, AssistantMessage)
    assert kept.files == [STORED]
    with pytest.raises(InvalidRunInputError, match=r"messages\[0\]\.files\[0\].*cannot be used"):
        await store_content(stored.model_copy(update={"tenant": "eve"}), check_messages=True)


def test_a_terminal_shows_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    step = StepView(1, files=[STORED])
    [line] = _steps.hosted_lines(step)
    assert f"[image (image/png, {len(PICTURE):,} bytes)]" in str(getattr(line, "renderable", line))
    _context._print_message(0, AssistantMessage(role="assistant", text="", files=[STORED]), [])
    assert f"[image (image/png, {len(PICTURE):,} bytes)]" in capsys.readouterr().out
