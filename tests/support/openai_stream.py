"""Answers of the scripted server as OpenAI's server-sent events; texts and arguments are cut within words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Event = dict[str, Any] | str | bytes
"""An event: its data as JSON or as a text; bytes are sent as they are."""
EMPTY: dict[str, dict[str, Any]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
PIECE = 7
"""The number of characters of a text in one piece."""
MOST_PIECES = 2_000
"""The approximate number of pieces of an answer."""


@dataclass(frozen=True)
class Break:
    """An interruption of a stream after that many pieces: it waits for an event, then goes on or is dropped."""

    after: int
    wait: asyncio.Event | None = None
    drop: bool = False


async def stream(
    request: web.Request,
    headers: Mapping[str, str],
    events: Sequence[Event],
    pace: float = 0,
    broken: Break | None = None,
    gates: Mapping[int, asyncio.Event] | None = None,
) -> web.StreamResponse:
    """Send the events; a text is sent unchanged. `gates`: the events to wait for, by the number of the piece after them."""
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for number, event in enumerate(events):
        if broken is not None and number == broken.after:
            if broken.wait is not None:
                await broken.wait.wait()
            if broken.drop:
                if request.transport is not None:
                    request.transport.close()
                return response
        if gates and number in gates:
            await gates[number].wait()
        await response.write(event_line(event))
        await asyncio.sleep(pace)
    await response.write_eof()
    return response


def chat_events(reply: dict[str, Any], *, with_usage: bool) -> list[Event]:
    """A chat completion as its chunks."""
    [choice] = reply["choices"]
    message = choice["message"]
    about = {name: reply[name] for name in ("id", "created", "model", "service_tier", "system_fingerprint")}
    about |= {"object": "chat.completion.chunk", **({"usage": None} if with_usage else {})}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**about, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    piece = piece_of(message)
    events: list[Event] = [chunk({"role": "assistant", "content": "", "refusal": None})]
    for name in ("content", "refusal"):
        events += [chunk({name: part}) for part in cut(message[name], piece)]
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        begun = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        events.append(chunk({"tool_calls": [begun]}))
        for part in cut(function["arguments"], piece):
            events.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]}))
    events.append(chunk({}, choice["finish_reason"]))
    if with_usage and "usage" in reply:
        events.append({**about, "choices": [], "usage": reply["usage"]})
    return [*events, "[DONE]"]


def response_events(reply: dict[str, Any]) -> list[dict[str, Any] | str]:
    """A response as its events, each with its sequence number."""
    begun = {**reply, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    events: list[dict[str, Any]] = [
        {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
    ]
    piece = piece_of(reply["output"])
    for index, item in enumerate(reply["output"]):
        at = {"output_index": index}
        empty: dict[str, Any] = EMPTY.get(item["type"], {})
        events.append({"type": "response.output_item.added", **at, "item": {**item, **empty, "status": "in_progress"}})
        events += [{**event, **at, "item_id": item["id"]} for event in _within(item, piece)]
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": f"response.{reply['status']}", "response": reply})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _within(item: dict[str, Any], piece: int) -> Iterator[dict[str, Any]]:
    if item["type"] == "function_call":
        for part in cut(item["arguments"], piece):
            yield {"type": "response.function_call_arguments.delta", "delta": part}
        yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}
    for number, part in enumerate(item["content"] if item["type"] == "message" else []):
        name, text = ("refusal", part["refusal"]) if part["type"] == "refusal" else ("output_text", part["text"])
        yield {"type": "response.content_part.added", "content_index": number, "part": {"type": part["type"]}}
        for part_of in cut(text, piece):
            yield {"type": f"response.{name}.delta", "content_index": number, "delta": part_of}
        yield {"type": f"response.{name}.done", "content_index": number}
        yield {"type": "response.content_part.done", "content_index": number, "part": part}


def piece_of(answer: Any) -> int:
    """The length of pieces: megabytes are cut into as many pieces as a long answer of a real model."""
    return max(PIECE, len(json.dumps(answer)) // MOST_PIECES)


def cut(text: str | None, piece: int) -> list[str]:
    text = text or ""
    return [text[start : start + piece] for start in range(0, len(text), piece)]


def event_line(event: Event) -> bytes:
    """An event as server-sent events write it."""
    if isinstance(event, bytes):
        return event
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()
