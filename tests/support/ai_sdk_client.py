"""A client of `/ai-sdk/{agent}`, as the transport of npm's `ai` is: the chunks of a chat's streams."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.support.http_server import Door

Chunks = list[dict[str, Any]]


class Chat:
    """A chat of a client with an agent: its id, and the requests of `DefaultChatTransport`."""

    def __init__(self, door: Door, agent: str) -> None:
        self.id = f"chat-{uuid.uuid4().hex[:8]}"
        self._door, self._url = door, f"/ai-sdk/{agent}"

    async def say(self, text: str, message_id: str = "m1") -> Chunks:
        return await self.post({"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]})

    async def post(self, message: dict[str, Any], **fields: Any) -> Chunks:
        body = {"id": self.id, "messages": [message], "trigger": "submit-message", **fields}
        return await self._chunks("POST", self._url, json=body)

    async def regenerate(self, text: str, message_id: str = "m1", *, replaces: str | None = None) -> Chunks:
        """`replaces`: the id of the answer, which `regenerate()` sends if the page names it."""
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        return await self.post(message, trigger="regenerate-message", **({"messageId": replaces} if replaces else {}))

    async def edit(self, text: str, message_id: str) -> Chunks:
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        return await self.post(message, messageId=message_id)

    async def resume(self, stop_after: str = "", received: Chunks | None = None) -> Chunks:
        """`received`: has each chunk as soon as it is there."""
        chunks: Chunks = [] if received is None else received
        return await self._chunks("GET", f"{self._url}/{self.id}/stream", stop_after, chunks)

    async def messages(self) -> list[dict[str, Any]]:
        """What a page gets that has nothing."""
        answer = await self._door.http.get(f"{self._url}/{self.id}")
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()
        return messages

    async def _chunks(
        self, method: str, url: str, stop_after: str = "", chunks: Chunks | None = None, **options: Any
    ) -> Chunks:
        chunks = [] if chunks is None else chunks
        async with self._door.http.stream(method, url, **options) as response:
            if response.status_code == 204:
                return []
            assert response.status_code == 200, (await response.aread()).decode()
            assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return chunks
                if line.startswith("data: "):
                    chunks.append(json.loads(line.removeprefix("data: ")))
                    if chunks[-1]["type"] == stop_after:
                        return chunks
        raise AssertionError("the stream has no end")


def types(chunks: Chunks) -> list[str]:
    """The types of chunks, without those of our own."""
    return [chunk["type"] for chunk in chunks if chunk["type"] != "data-mulligan"]


def only(chunks: Chunks, kind: str) -> dict[str, Any]:
    [found] = [chunk for chunk in chunks if chunk["type"] == kind]
    return found
