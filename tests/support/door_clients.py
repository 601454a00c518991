"""Clients of the doors that take frames one by one, and refuse what the protocols' own clients refuse."""

from __future__ import annotations

import json
from typing import Any

from ag_ui.core import Event
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from mulligan.serve.ui_message import UIMessage

Json = dict[str, Any]
AG_UI_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
RESPONSE_ENDS = {f"response.{each}" for each in ("completed", "incomplete", "failed")}


class AgUiClient:
    """As `verifyEvents` and `defaultApplyEvents` of npm's `@ag-ui/client`: the messages, by their ids."""

    def __init__(self, *messages: Json) -> None:
        self.messages: dict[str, Json] = {each["id"]: each for each in messages}
        self.ended = True
        self._open: set[tuple[str, str]] = set()
        """The texts, calls and steps that have begun and not ended."""

    def take(self, event: Json) -> None:
        AG_UI_EVENT.validate_python(event)
        kind = event["type"]
        assert self.ended == (kind == "RUN_STARTED")
        match kind:
            case "RUN_STARTED":
                self.ended = False
            case "RUN_FINISHED" | "RUN_ERROR":
                self.ended = True
                assert not self._open
            case "STEP_STARTED" | "STEP_FINISHED":
                self._begin_or_end(kind == "STEP_STARTED", "step", event["stepName"])
            case "MESSAGES_SNAPSHOT":
                assert not {each for each in self._open if each[0] != "step"}
                self.messages = {each["id"]: each for each in event["messages"]}
                assert len(self.messages) == len(event["messages"])
            case "CUSTOM":
                assert event["name"].startswith("mulligan.")
            case _:
                self._take_part(kind, event)

    def _take_part(self, kind: str, event: Json) -> None:
        match kind:
            case "TEXT_MESSAGE_START":
                self._begin_or_end(True, "text", event["messageId"])
                known = self.messages.setdefault(event["messageId"], {"id": event["messageId"], "role": event["role"]})
                assert "content" not in known, "clients append to a text that they have"
            case "TEXT_MESSAGE_CONTENT":
                assert ("text", event["messageId"]) in self._open
                message = self.messages[event["messageId"]]
                message["content"] = message.get("content", "") + event["delta"]
            case "TEXT_MESSAGE_END":
                self._begin_or_end(False, "text", event["messageId"])
            case "TOOL_CALL_START":
                self._begin_or_end(True, "call", event["toolCallId"])
                new = {"id": event["parentMessageId"], "role": "assistant"}
                calls = self.messages.setdefault(event["parentMessageId"], new).setdefault("toolCalls", [])
                function = {"name": event["toolCallName"], "arguments": ""}
                calls.append({"id": event["toolCallId"], "type": "function", "function": function})
            case "TOOL_CALL_ARGS":
                assert ("call", event["toolCallId"]) in self._open
                self._call(event["toolCallId"])["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_END":
                self._begin_or_end(False, "call", event["toolCallId"])
            case "TOOL_CALL_RESULT":
                self._call(event["toolCallId"])
                assert event["messageId"] not in self.messages
                fields = {"toolCallId": event["toolCallId"], "content": event["content"]}
                self.messages[event["messageId"]] = {"id": event["messageId"], "role": "tool", **fields}
            case _:
                raise AssertionError(kind)

    def _call(self, call_id: str) -> Json:
        [found] = [
            each for message in self.messages.values() for each in message.get("toolCalls", ()) if each["id"] == call_id
        ]
        return dict(found)

    def _begin_or_end(self, begins: bool, kind: str, name: str) -> None:
        assert ((kind, name) in self._open) != begins, (kind, name)
        self._open ^= {(kind, name)}


TEXT, FLAG, OBJECT = str, bool, dict
CHUNKS: dict[str, dict[str, type]] = {
    "start": {"messageId": TEXT},
    "start-step": {},
    "finish-step": {},
    "reset-step": {},
    "text-start": {"id": TEXT},
    "text-delta": {"id": TEXT, "delta": TEXT},
    "text-end": {"id": TEXT},
    "tool-input-start": {"toolCallId": TEXT, "toolName": TEXT},
    "tool-input-delta": {"toolCallId": TEXT, "inputTextDelta": TEXT},
    "tool-input-available": {"toolCallId": TEXT, "toolName": TEXT, "input": object},
    "tool-input-error": {"toolCallId": TEXT, "toolName": TEXT, "input": object, "errorText": TEXT},
    "tool-approval-request": {"approvalId": TEXT, "toolCallId": TEXT},
    "tool-approval-response": {"approvalId": TEXT, "approved": FLAG},
    "tool-output-available": {"toolCallId": TEXT, "output": object},
    "tool-output-error": {"toolCallId": TEXT, "errorText": TEXT},
    "tool-output-denied": {"toolCallId": TEXT},
    "source-url": {"sourceId": TEXT, "url": TEXT},
    "file": {"mediaType": TEXT, "url": TEXT},
    "steering-message": {"id": TEXT, "parts": list},
    "data-mulligan": {"data": OBJECT},
    "data-steering-message": {"data": OBJECT},
    "error": {"errorText": TEXT},
    "abort": {},
    "finish": {},
}
"""What `uiMessageChunkSchema` of npm's `ai` 7.0.173 asks of each chunk that we send."""
OPTIONAL: dict[str, type] = {
    "reason": TEXT,
    "title": TEXT,
    "providerExecuted": FLAG,
    "transient": FLAG,
    "toolMetadata": OBJECT,
}
REASONS = {"stop", "length", "content-filter", "tool-calls", "error", "interrupted", "other"}
NOT_IN_6 = {"reset-step", "steering-message", "tool-approval-response"}
ENDS = {"finish", "abort", "error"}


class AiSdkClient:
    """As `processUIMessageStream` of npm's `ai`: a message, of which the parts of the run's requests come one after another."""

    def __init__(self, sdk: int) -> None:
        self.message = UIMessage("run-1")
        self.ended = True
        self._sdk = sdk
        self._texts: set[str] = set()
        self._known: set[str] = set()
        self._writing: set[str] = set()
        self._step = self._last = False

    def take(self, chunk: Json) -> None:
        if chunk["type"] == "[DONE]":
            assert self._last
            self.ended, self._last = True, False
            return
        self._check(chunk)
        kind = chunk["type"]
        assert not self._last
        assert self.ended == (kind == "start")
        self.ended, self._last = False, kind in ENDS
        match kind:
            case "start-step" | "finish-step":
                assert self._step == (kind == "finish-step")
                assert not self._texts
                self._step = not self._step
            case "reset-step":
                assert self._step
                self._texts.clear()
            case "text-start":
                assert self._step
                self._texts.add(chunk["id"])
            case "text-delta":
                assert chunk["id"] in self._texts
            case "text-end":
                self._texts.remove(chunk["id"])
            case "tool-approval-response":
                assert any(each.get("approval", {}).get("id") == chunk["approvalId"] for each in self.calls.values())
            case _ if "toolCallId" in chunk:
                self._take_call(kind, chunk["toolCallId"])
        if self._last:
            assert not self._step
            assert not self._texts
        self.message.add(chunk)

    @property
    def calls(self) -> dict[str, Json]:
        return {each["toolCallId"]: each for each in self.message.to_json()["parts"] if "toolCallId" in each}

    def _take_call(self, kind: str, call_id: str) -> None:
        if kind in ("tool-input-start", "tool-input-available", "tool-input-error"):
            self._known.add(call_id)
        assert call_id in self._known
        if kind == "tool-input-start":
            self._writing.add(call_id)
        assert kind != "tool-input-delta" or call_id in self._writing

    def _check(self, chunk: Json) -> None:
        fields = CHUNKS[chunk["type"]]
        assert fields.keys() <= chunk.keys(), chunk
        assert all(isinstance(chunk[name], each) for name, each in fields.items()), chunk
        assert all(isinstance(chunk[name], each) for name, each in OPTIONAL.items() if name in chunk), chunk
        assert chunk.get("finishReason", "stop") in REASONS - ({"interrupted"} if self._sdk == 6 else set())
        assert self._sdk > 6 or chunk["type"] not in NOT_IN_6


class ResponseClient:
    """As OpenAI's SDKs put the items of a response together from the events of one stream."""

    def __init__(self) -> None:
        self.items: dict[str, Json] = {}
        """As each was when it was done, by its id."""
        self.response: Json | None = None
        """The last one."""
        self._written: dict[str, str] = {}
        """Texts and arguments, by the ids of the items."""
        self._indexes: dict[int, str] = {}
        self._number = -1

    def take(self, event: Json) -> None:
        RESPONSE_EVENT.validate_python(event)
        assert self.response is None
        assert event["sequence_number"] > self._number
        self._number = event["sequence_number"]
        match event["type"].removeprefix("response."):
            case "created" | "in_progress":
                assert not self._indexes
            case "output_item.added":
                assert event["output_index"] == len(self._indexes)
                assert event["item"]["id"] not in self._indexes.values()
                self._indexes[event["output_index"]] = event["item"]["id"]
                self._written[event["item"]["id"]] = ""
            case "output_item.done":
                item = event["item"]
                assert self._indexes[event["output_index"]] == item["id"] not in self.items
                self.items[item["id"]] = item
            case "completed" | "incomplete" | "failed":
                self.response = event["response"]
            case kind:
                self._take_part(kind, event)

    def _take_part(self, kind: str, event: Json) -> None:
        item = event["item_id"]
        assert self._indexes[event["output_index"]] == item not in self.items
        match kind:
            case "output_text.delta" | "mcp_call_arguments.delta":
                self._written[item] += event["delta"]
            case "output_text.done":
                assert self._written[item] == event["text"]
            case "content_part.done":
                assert self._written[item] == event["part"]["text"]
            case "mcp_call_arguments.done" if _loaded(self._written[item]) == _loaded(event["arguments"]):
                assert self._written[item] == event["arguments"]  # others were repaired, or edited

    def check(self, *, is_paused: bool = False) -> None:
        """At the end of the stream: what has begun is done, and the response has what is not void."""
        assert self.response is not None
        if not is_paused:
            assert set(self.items) == set(self._indexes.values())
        output = {each["id"]: each for each in self.response["output"]}
        assert len(output) == len(self.response["output"])
        for name, item in output.items():
            assert self.items[name] == item


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_chat(frames: list[Json]) -> str:
    """The content of a chat completion that was streamed."""
    *chunks, last = frames
    text, finished = "", []
    for frame in chunks:
        ChatCompletionChunk.model_validate(frame)
        for choice in frame["choices"]:
            text += choice["delta"].get("content") or ""
            finished += [choice["finish_reason"]] if choice["finish_reason"] else []
            assert "tool_calls" not in choice["delta"], "clients would run the call themselves"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len(finished) == ("error" not in last)
    return text
