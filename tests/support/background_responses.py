"""OpenAI's background mode for the test server: created, read, cancelled and deleted responses, and its signed webhooks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.openai_shapes import Refusal
from tests.support.openai_stream import event_line, response_events
from tests.support.openai_turn import Turn, made_up, responses_reply

ONE = re.compile(r"/v1/responses/(?P<id>resp_\w+)(?P<cancel>/cancel)?")
ENDED = ("completed", "incomplete", "failed", "cancelled")


@dataclass
class StoredResponse:
    """A background response. `ends`: how it ends: as its turn says if empty, else `cancelled`, `expired` or an error's code."""

    id: str
    turn: Turn
    request: dict[str, Any]
    seed: str
    ends: str = ""
    created: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False
    is_deleted: bool = False
    reads: int = 0
    streams: list[int] = field(default_factory=list)
    """After which event each stream began that was requested after the creation."""

    @property
    def has_ended(self) -> bool:
        """Whether the model has answered. The gates of its turn are before the pieces of its stream."""
        is_released = self.turn.wait is None or self.turn.wait.is_set()
        is_released = is_released and all(gate.is_set() for gate in self.turn.gates.values())
        return is_released and time.monotonic() - self.created >= self.turn.delay

    def as_json(self) -> dict[str, Any]:
        """The response as it is now."""
        reply = {
            **responses_reply(self.turn, self.request, self.seed),
            "id": self.id,
            "background": True,
            "store": True,
        }
        unfinished: dict[str, Any] = {"output": [], "usage": None, "completed_at": None, "incomplete_details": None}
        if self.is_cancelled or (self.has_ended and self.ends == "cancelled"):
            return {**reply, **unfinished, "status": "cancelled"}
        if not self.has_ended:
            return {**reply, **unfinished, "status": "in_progress" if self.reads else "queued"}
        if self.ends:
            error = {"code": self.ends, "message": f"The model could not answer ({self.ends})."}
            return {**reply, **unfinished, "status": "failed", "error": error}
        return reply

    def events(self) -> list[dict[str, Any]]:
        """The events of the stream that exist now, with their sequence numbers. Without gates, the text comes at the end."""
        reply = {
            **responses_reply(self.turn, self.request, self.seed),
            "id": self.id,
            "background": True,
            "store": True,
        }
        created, started, *others, last = (event for event in response_events(reply) if isinstance(event, dict))
        events = [created, {**created, "type": "response.queued"}, started, *others]
        open_at = [number for number, gate in self.turn.gates.items() if not gate.is_set()]
        if open_at:
            events = events[: min(open_at)]
        elif not self.has_ended:
            events = events[: 3 if not self.turn.gates else None]
        elif (ended := self.as_json())["status"] != "cancelled":
            events.append({**last, "type": f"response.{ended['status']}", "response": ended})
        return [{**event, "sequence_number": number} for number, event in enumerate(events)]


class BackgroundResponses:
    """The stored responses of a server, by their ids, in the order of their creation.

    `honours_keys`: whether a second request with the same `Idempotency-Key` gets the first one's response.
    """

    def __init__(self) -> None:
        self.stored: dict[str, StoredResponse] = {}
        self.honours_keys = True
        self.hold: asyncio.Event | None = None
        """What the answer to a request waits for that has created a response."""
        self.hold_reads: asyncio.Event | None = None
        self.hold_ends: asyncio.Event | None = None
        """What the answers to requests wait for that read a response."""
        self.keys: dict[str, str] = {}
        """The ids of responses by the keys of the requests that created them."""
        self.is_too_old: Callable[[StoredResponse], bool] = lambda _: False
        """Which responses are not streamed any more: OpenAI streams none that is older than some minutes."""

    def of(self, model: str) -> list[StoredResponse]:
        """The responses of a model."""
        return [each for each in self.stored.values() if each.request["model"] == model]

    def create(self, turn: Turn, request: dict[str, Any], headers: dict[str, str], seed: str) -> StoredResponse:
        """Create a response, or return the one that a request with this key has created."""
        key = headers.get("idempotency-key", "")
        if not key:
            raise Refusal("This server demands an Idempotency-Key for background responses.", None, "missing_key")
        if self.honours_keys and key in self.keys:
            return self.stored[self.keys[key]]
        made = sum(each.seed == seed for each in self.stored.values())
        response_id = made_up("resp_", seed, len(self.stored))
        ends = turn.background_ends[made] if made < len(turn.background_ends) else ""
        stored = self.stored[response_id] = StoredResponse(response_id, turn, request, seed, ends)
        self.keys[key] = response_id
        return stored

    def streamed(self, method: str, response_id: Any, query: Mapping[str, str]) -> tuple[StoredResponse, int] | None:
        """The response that a request streams, and the event after which its stream begins; None: it streams none.

        Raises:
            Refusal: it cannot be streamed.
        """
        if method != "GET" or query.get("stream") != "true":
            return None
        stored = self.stored[response_id]
        stored.reads -= 1  # `handle` has counted it
        if not stored.request.get("stream"):
            raise Refusal("This response was not created with stream=true.", "stream", "invalid_value")
        if self.is_too_old(stored):
            raise Refusal("This response can no longer be streamed because it is more than 5 minutes old", None, None)
        after = query.get("starting_after", "-1")
        if not re.fullmatch(r"-1|[0-9]{1,9}", after):
            raise Refusal(f"Invalid 'starting_after': {after!r}.", "starting_after", "invalid_type")
        stored.streams.append(int(after))
        return stored, int(after)

    @staticmethod
    async def stream(request: web.Request, stored: StoredResponse, after: int = -1) -> web.StreamResponse:
        """Send the events of a response after one with that number, as they come, until it has ended."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        while True:
            is_last = stored.has_ended or stored.is_cancelled or stored.is_deleted
            for event in stored.events()[after + 1 :]:
                after = event["sequence_number"]
                await response.write(event_line(event))
            if is_last:
                await response.write_eof()
                return response
            await asyncio.sleep(0.02)

    def handle(self, method: str, path: str) -> dict[str, Any] | None:
        """The response to a request for one response; None if the path is another one.

        Raises:
            Refusal: there is no such response, or it has ended and cannot be cancelled.
        """
        match = ONE.fullmatch(path)
        if (
            match is None
            or method != ("POST" if match["cancel"] else method)
            or method not in ("GET", "POST", "DELETE")
        ):
            return None
        stored = self.stored.get(match["id"])
        if stored is None or stored.is_deleted or (stored.has_ended and stored.ends == "expired"):
            raise Refusal(f"Response with id '{match['id']}' not found.", "id", None, 404)
        if match["cancel"]:
            if stored.as_json()["status"] in ENDED[:-1]:
                raise Refusal("Cannot cancel a completed response.", None, None, 400)
            stored.is_cancelled = True
        elif method == "DELETE":
            stored.is_deleted = True
            return {"id": stored.id, "object": "response", "deleted": True}
        else:
            stored.reads += 1
        return stored.as_json()


def signed_webhook(
    secret: str, response_id: str, kind: str = "response.completed", *, at: float | None = None
) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a webhook as OpenAI sends it, signed by Standard Webhooks. `secret`: `whsec_…`."""
    now = int(time.time() if at is None else at)
    event = {"id": made_up("evt_", response_id, kind), "object": "event", "created_at": now, "type": kind}
    body = json.dumps({**event, "data": {"id": response_id}}).encode()
    webhook_id = made_up("wh_", response_id, kind)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.new(key, f"{webhook_id}.{now}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "content-type": "application/json",
        "webhook-id": webhook_id,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }
    return body, headers
