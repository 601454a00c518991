"""OpenAI's Files and Batch API, through the client of an endpoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mulligan.activities.models._http_errors import error_of_status, has_permanent_code, message_in
from mulligan.activities.models._read_response import read_json
from mulligan.activities.models._told_errors import raise_told
from mulligan.activities.models.checked_reply import checked_id
from mulligan.activities.models.openai._openai_client import OpenAIClient
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelRequestError

TIMEOUT, TRANSFER_TIMEOUT = 60.0, 300.0
"""Seconds for each read: of an answer, and of a file."""
PAGES = 50
"""How many pages of 100 batches are searched."""
LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of a line with an answer."""


class OpenAIBatches:
    """The batches of an endpoint.

    Methods raise ModelRequestError where it refuses, and Unavailable where it may be asked again.
    """

    def __init__(self, client: OpenAIClient) -> None:
        self._client = client

    async def upload(self, file: Path, name: str) -> str:
        """Upload the requests of a batch, one a line; returns the file's id."""
        async with self._client._client_with_our_errors() as client:
            with file.open("rb") as data:
                uploaded = await client.files.create(
                    file=(f"{name}.jsonl", data, "application/jsonl"), purpose="batch", timeout=TRANSFER_TIMEOUT
                )
        return checked_id(uploaded.id, "a file")

    async def create(self, input_file: str, path: str, metadata: dict[str, str]) -> dict[str, Any]:
        """Create a batch of the requests of a file, for requests of one path."""
        body = {
            "input_file_id": input_file,
            "endpoint": path,
            "completion_window": "24h",
            "metadata": metadata,
        }
        async with self._client._client_with_our_errors() as client:
            options = {**self._client.options, "timeout": TIMEOUT}
            return read_json(await client.post("/batches", cast_to=str, body=body, options=options))

    async def find(self, key: str, value: str, since: float) -> dict[str, Any] | None:
        """The batch whose metadata has a value, of those created after `since` (seconds since the epoch); None if none."""
        after = ""
        for _ in range(PAGES):
            page = await self._client.call("get", f"/batches?limit=100{after}", TIMEOUT)
            listed = [each for each in page.get("data") or [] if isinstance(each, dict)]
            for each in listed:
                if (each.get("metadata") or {}).get(key) == value:
                    return each
            if not listed or not page.get("has_more") or int(listed[-1].get("created_at") or 0) < since:
                return None
            after = f"&after={quote(str(listed[-1].get('id')), safe='')}"
        return None

    async def read(self, batch_id: str) -> dict[str, Any]:
        """The state of a batch."""
        return await self._client.call("get", f"/batches/{quote(batch_id, safe='')}", TIMEOUT)

    async def delete_file(self, file: str) -> None:
        """Delete a file."""
        await self._client.call("delete", f"/files/{quote(file, safe='')}", TIMEOUT)

    async def lines(self, file: str) -> AsyncIterator[bytes]:
        """The lines of a file, as they arrive."""
        async with (
            self._client._client_with_our_errors() as client,
            client.files.with_streaming_response.content(file, timeout=TRANSFER_TIMEOUT) as response,
        ):
            rest = b""
            async for piece in response.iter_bytes():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    if line.strip():
                        yield line
                if len(rest) > LONGEST_LINE:
                    raise Unavailable(f"the file {file} has a line of more than {LONGEST_LINE:,} bytes")
            if rest.strip():
                yield rest

    def response_in(self, line: bytes) -> dict[str, Any]:
        """The body of the response in a line of an output or error file.

        Raises:
            ModelRequestError, Unavailable: the line has an error, as a live request of the same status would.
        """
        try:
            entry = json.loads(line)
        except ValueError:
            raise Unavailable("the line of the batch's answer is not JSON") from None
        response = entry.get("response") if isinstance(entry, dict) else None
        if isinstance(response, dict) and isinstance(response.get("status_code"), int):
            body, status = response.get("body"), response["status_code"]
            if status < 300 and isinstance(body, dict):
                return body
            raise self.error_of(status, message_in(body), body, request_id=response.get("request_id"))
        if isinstance(entry, dict):
            raise_told(entry, self._client.key_variable)
        raise Unavailable("the batch has no answer to the request")

    def error_of(
        self, status: int, message: str, body: object = None, *, request_id: object = None
    ) -> ModelRequestError | Unavailable:
        """The error of a request that was answered with a status."""
        return error_of_status(
            status,
            message,
            request_id=request_id if isinstance(request_id, str) else None,
            is_permanent=has_permanent_code(body),
            key_variable=self._client.key_variable,
        )
