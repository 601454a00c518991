"""The scripted model of the benchmark: a process that speaks OpenAI's Responses API and Chat Completions.

    python -m benchmarks.endpoint PORT

The prompt states the number of tool calls (`passage.prompt`); the next one follows from the number of results in the
request. Requests are searched, not parsed: parsing conversations of megabytes would slow the endpoint down and distort
all figures. `GET /stats` returns its counters.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from benchmarks.passage import HOLD
from tests.support.openai_stream import response_events

TOOL = "look"
_ORDERS = re.compile(rb"\[(steps|hold):(\d+) run:(\w+)\]")
_STREAMS = re.compile(rb'"stream"\s*:\s*true')
_LARGEST_BODY = 1 << 30


@dataclass(frozen=True)
class Asked:
    """The relevant facts of a request body."""

    run: str
    results: int  # tool results in the conversation
    calls: int  # calls that the model makes in all
    hold: bool
    streams: bool

    @property
    def number(self) -> int | None:
        """The argument of the next tool call; None: the answer is a text, and the run ends."""
        if self.results < self.calls:
            return self.results
        return HOLD if self.hold else None


def read(body: bytes) -> Asked | None:
    """Search a request; None if it contains no prompt of the benchmark."""
    orders = _ORDERS.search(body)
    if orders is None:
        return None
    # Each is once in a result, and nowhere else: the first in Chat Completions, the second in the Responses API.
    results = body.count(b'"tool_call_id"') or body.count(b'"function_call_output"')
    return Asked(orders[3].decode(), results, int(orders[2]), orders[1] == b"hold", _STREAMS.search(body) is not None)


def _name(asked: Asked) -> str:
    """An id of the same length as OpenAI's, so that histories are as large as with OpenAI."""
    return f"{asked.run}{asked.results:0{24 - len(asked.run)}d}"


def responses_reply(asked: Asked) -> dict[str, Any]:
    """The response object of the Responses API."""
    name = _name(asked)
    output: dict[str, Any] = {
        "type": "message",
        "id": f"msg_{name}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }
    if asked.number is not None:
        output = {
            "type": "function_call",
            "id": f"fc_{name}",
            "call_id": f"call_{name}",
            "name": TOOL,
            "arguments": json.dumps({"number": asked.number}),
            "status": "completed",
        }
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "bench",
        "output": [output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 110,
        },
    }


def responses_events(asked: Asked) -> bytes:
    """The same as server-sent events, for streaming clients."""
    events = response_events(responses_reply(asked))
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def _chat(asked: Asked, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{asked.run}{asked.results}",
        "object": kind,
        "created": 1_700_000_000,
        "model": "bench",
        "choices": [{"index": 0, **choice}],
    }


def _chat_message(asked: Asked) -> dict[str, Any]:
    if asked.number is None:
        return {"role": "assistant", "content": "Done."}
    call = {
        "id": f"call_{_name(asked)}",
        "type": "function",
        "function": {"name": TOOL, "arguments": json.dumps({"number": asked.number})},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


_CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def chat_reply(asked: Asked) -> dict[str, Any]:
    """The response object of Chat Completions."""
    choice = {"message": _chat_message(asked), "finish_reason": "stop" if asked.number is None else "tool_calls"}
    return {**_chat(asked, "chat.completion", choice), "usage": _CHAT_USAGE}


def chat_chunks(asked: Asked) -> bytes:
    """The same as server-sent events, for streaming clients."""
    delta = _chat_message(asked)
    for index, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = index
    kind, finish = "chat.completion.chunk", "stop" if asked.number is None else "tool_calls"
    chunks = [
        _chat(asked, kind, {"delta": delta, "finish_reason": None}),
        _chat(asked, kind, {"delta": {}, "finish_reason": finish}),
        {**_chat(asked, kind, {}), "choices": [], "usage": _CHAT_USAGE},
    ]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


_CHAT = (chat_reply, chat_chunks)


class Endpoint:
    """The request handlers and their counters."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.most: Counter[str] = Counter()
        """By run: the largest number of results in a request, which is the number of steps of the run so far."""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a model request."""
        body = await request.read()
        self.requests += 1
        self.bytes += len(body)
        asked = read(body)
        if asked is None:
            fault = {"error": {"message": "This is not a prompt of the benchmark.", "type": "invalid_request_error"}}
            return web.json_response(fault, status=400)
        self.most[asked.run] = max(self.most[asked.run], asked.results)
        whole, pieces = (responses_reply, responses_events) if request.path.endswith("/responses") else _CHAT
        if asked.streams:
            return web.Response(body=pieces(asked), content_type="text/event-stream")
        return web.json_response(whole(asked))

    async def stats(self, _: web.Request) -> web.Response:
        """Return the counters."""
        told = {"requests": self.requests, "bytes": self.bytes, "cpu_seconds": time.process_time(), "steps": self.most}
        return web.json_response(told)


def application() -> web.Application:
    """The endpoint as an aiohttp application."""
    endpoint = Endpoint()
    app = web.Application(client_max_size=_LARGEST_BODY)
    app.router.add_get("/stats", endpoint.stats)
    app.router.add_post("/v1/responses", endpoint.answer)
    app.router.add_post("/v1/chat/completions", endpoint.answer)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
