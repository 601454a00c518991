"""OpenAI's Files and Batch API on the loopback, written from the types of the openai package, with strict checks.

A request's prompt says how its entry ends: see `BatchServer._entry`. `gates` hold back a step until a test lets it go on.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.openai_shapes import Refusal
from tests.support.openai_turn import Turn, chat_reply, responses_reply
from tests.support.zoo.openai_chat_rules import check_chat
from tests.support.zoo.openai_responses_rules import check_responses

MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000
ENDPOINTS = ("/v1/responses", "/v1/chat/completions")


@dataclass
class Batch:
    """A batch, and the lines of its input file."""

    json: dict[str, Any]
    entries: list[dict[str, Any]]


@dataclass
class BatchServer:
    """`async with` starts it on a free port and stops it. A batch ends at its first poll, unless `holds`."""

    files: dict[str, bytes] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    batches: dict[str, Batch] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    """How often each prompt was answered: what is paid for."""
    ends: list[str] = field(default_factory=list)
    """The statuses in which the next batches end; `completed` after them."""
    holds: bool = False
    refuses_batches: bool = False
    """Whether batches are refused, as they are with a billing limit."""
    loses_creation: bool = False
    """Whether the next batch is created without a response."""
    stuck_at: str = ""
    """`uploaded`, `created`, `polled` or `delivering`: what is not answered, once."""
    stuck: asyncio.Event = field(default_factory=asyncio.Event)
    faults: list[str] = field(default_factory=list)
    """What OpenAI would have refused."""
    base_url: str = ""
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def __aenter__(self) -> BatchServer:
        app = web.Application(client_max_size=MAX_BYTES)
        app.add_routes(
            [
                web.post("/v1/files", self._upload),
                web.get("/v1/files/{id}/content", self._content),
                web.delete("/v1/files/{id}", self._delete),
                web.post("/v1/batches", self._create),
                web.get("/v1/batches", self._list),
                web.get("/v1/batches/{id}", self._read),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _hang_at(self, point: str) -> None:
        if self.stuck_at == point:
            self.stuck_at = ""
            self.stuck.set()
            await asyncio.sleep(3_600)

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        if form.get("purpose") != "batch" or not isinstance(form.get("file"), web.FileField):
            return self._refuse(400, "a batch file has purpose=batch and a file")
        file_id = f"file-{next(self._numbers)}"
        with form["file"].file as data:  # type: ignore[union-attr]
            self.files[file_id] = data.read()
        await self._hang_at("uploaded")
        return web.json_response(
            {
                "id": file_id,
                "object": "file",
                "bytes": len(self.files[file_id]),
                "created_at": int(time.time()),
                "filename": form["file"].filename,  # type: ignore[union-attr]
                "purpose": "batch",
                "status": "processed",
            }
        )

    async def _content(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["id"])
        await self._hang_at("delivering")
        return web.Response(body=data) if data is not None else self._refuse(404, "No such File object", fault=False)

    async def _delete(self, request: web.Request) -> web.Response:
        file_id = request.match_info["id"]
        if self.files.pop(file_id, None) is None:
            return self._refuse(404, "No such File object", fault=False)
        self.deleted.append(file_id)
        return web.json_response({"id": file_id, "object": "file", "deleted": True})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuses_batches:
            return self._refuse(400, "Billing hard limit has been reached.", fault=False)
        if set(body) - {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}:
            return self._refuse(400, f"unknown parameters in {sorted(body)}")
        if body.get("completion_window") != "24h" or body.get("endpoint") not in ENDPOINTS:
            return self._refuse(400, "completion_window is 24h, and endpoint one of those with batches")
        data = self.files.get(body.get("input_file_id"))
        if data is None:
            return self._refuse(404, "No such File object")
        metadata = body.get("metadata") or {}
        if any(len(name) > 64 or len(value) > 512 for name, value in metadata.items()):
            return self._refuse(400, "metadata is too long")
        entries, fault = self._entries(data, body["endpoint"])
        if fault:
            return self._refuse(400, fault)
        batch_id = f"batch_{next(self._numbers)}"
        self.batches[batch_id] = Batch(
            {
                "id": batch_id,
                "object": "batch",
                "endpoint": body["endpoint"],
                "errors": None,
                "input_file_id": body["input_file_id"],
                "completion_window": "24h",
                "status": "validating",
                "output_file_id": None,
                "error_file_id": None,
                "created_at": int(time.time()),
                "metadata": metadata,
                "request_counts": {"total": len(entries), "completed": 0, "failed": 0},
            },
            entries,
        )
        await self._hang_at("created")
        if self.loses_creation:
            self.loses_creation = False
            assert request.transport is not None
            request.transport.close()
        return web.json_response(self.batches[batch_id].json)

    def _entries(self, data: bytes, endpoint: str) -> tuple[list[dict[str, Any]], str]:
        """The requests of a file, and what is wrong with it."""
        entries = [json.loads(line) for line in data.splitlines()]
        if not entries or len(entries) > MAX_REQUESTS:
            return [], f"a batch has 1 to {MAX_REQUESTS} requests"
        keys = {entry["custom_id"] for entry in entries}
        if len(keys) < len(entries) or any(not 0 < len(key) <= 64 for key in keys):
            return [], "custom_id must be unique, and 1 to 64 characters long"
        if any(set(each) != {"custom_id", "method", "url", "body"} for each in entries):
            return [], "an entry has custom_id, method, url and body"
        if any(each["method"] != "POST" or each["url"] != endpoint for each in entries):
            return [], "entries are POST requests to the batch's endpoint"
        if len({each["body"]["model"] for each in entries}) != 1:
            return [], "a batch is of one model"
        if any(each["body"].get("stream") for each in entries):
            return [], "entries cannot be streamed"
        try:
            for each in entries:
                (check_responses if endpoint == ENDPOINTS[0] else check_chat)(each["body"])
        except Refusal as refusal:
            return [], str(refusal)
        return entries, ""

    async def _list(self, request: web.Request) -> web.Response:
        newest_first = [each.json for each in reversed(self.batches.values())]
        after = request.query.get("after")
        start = next((n + 1 for n, each in enumerate(newest_first) if each["id"] == after), 0)
        limit = int(request.query.get("limit", "20"))
        page = newest_first[start : start + limit]
        more = start + limit < len(newest_first)
        return web.json_response({"object": "list", "data": page, "has_more": more})

    async def _read(self, request: web.Request) -> web.Response:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            return self._refuse(404, "No such batch", fault=False)
        if batch.json["status"] == "validating":
            batch.json["status"] = "in_progress"
        elif batch.json["status"] == "in_progress" and not self.holds:
            self._end(batch)
        await self._hang_at("polled")
        return web.json_response(batch.json)

    def _end(self, batch: Batch) -> None:
        status = batch.json["status"] = self.ends.pop(0) if self.ends else "completed"
        if status == "failed":
            batch.json["errors"] = {
                "object": "list",
                "data": [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "line": None}],
            }
            return
        entries = batch.entries[: len(batch.entries) // 2] if status == "expired" else batch.entries
        ended = [self._entry(entry) for entry in entries]
        files = {"output_file_id": [each for each in ended if not each["error"]]}
        late = [
            {"id": "r", "custom_id": each["custom_id"], "response": None,
             "error": {"code": "batch_expired", "message": "This request could not be executed in time."}}
            for each in batch.entries[len(entries) :]
        ]  # fmt: skip
        files["error_file_id"] = [each for each in ended if each["error"]] + late
        for name, lines in files.items():
            if lines:
                batch.json[name] = f"file-{next(self._numbers)}"
                # in no particular order
                data = "\n".join(
                    json.dumps({**each, "error": None} if each["response"] else each) for each in lines[::-1]
                )
                self.files[batch.json[name]] = data.encode()

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The line that answers an entry. In the prompt, `refuse`: 400; `refuse responses`: 400 at that endpoint;
        `busy`: 429 at the first time; `count`: a call first."""
        body = entry["body"]
        text = json.dumps(body.get("input") or body.get("messages"))
        self.answered[text] += 1
        status, reply = 200, self._reply(entry["url"], body, text, entry["custom_id"])
        if "refuse" in text and not ("refuse responses" in text and entry["url"] != ENDPOINTS[0]):
            status, reply = 400, {"error": {"message": "This prompt is refused.", "code": "invalid_prompt"}}
        elif "busy" in text and self.answered[text] == 1:
            status, reply = 429, {"error": {"message": "Rate limit reached.", "code": "rate_limit_exceeded"}}
        elif "plain" in text and body.get("include"):
            status, reply = 400, {"error": {"message": "Encrypted content is not supported with this model."}}
        return {
            "id": f"batch_req_{entry['custom_id']}",
            "custom_id": entry["custom_id"],
            "response": {"status_code": status, "request_id": f"req_{entry['custom_id']}", "body": reply},
            "error": None if status == 200 else {"code": "failed", "message": "see the response"},
        }

    def _reply(self, url: str, body: dict[str, Any], text: str, seed: str) -> dict[str, Any]:
        is_first = "function_call_output" not in text and '"tool"' not in text
        if body.get("response_format") or "format" in (body.get("text") or {}):
            turn = Turn(text='{"words": 3}')
        elif "count" in text and is_first:
            turn = Turn(calls=[("count_words", '{"text": "a b c"}', None)])
        else:
            turn = Turn(text="Done.")
        return (responses_reply if url == ENDPOINTS[0] else chat_reply)(turn, body, seed)

    def _refuse(self, status: int, message: str, *, fault: bool = True) -> web.Response:
        if fault:
            self.faults.append(message)
        return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)
