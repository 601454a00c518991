"""A client of the protocol AG-UI with the types of PyPI's `ag-ui-protocol`, which refuse what is not of the protocol."""

from __future__ import annotations

import json
import uuid
from typing import Any

from ag_ui.core import Event, RunAgentInput
from pydantic import TypeAdapter

from tests.support.http_server import Door

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


class AgUiThread:
    """A thread with an agent of the server."""

    def __init__(self, door: Door, agent: str, **headers: str) -> None:
        self.id = f"thread-{uuid.uuid4().hex[:8]}"
        self._door, self._url, self._headers = door, f"/ag-ui/{agent}", headers

    async def post(self, *messages: dict[str, Any], stop_after: str = "", **fields: Any) -> list[Any]:
        """The events of a run; those up to the first of a type, where the client leaves."""
        given = {"threadId": self.id, "runId": uuid.uuid4().hex, "state": {}, "tools": [], "context": []}
        body = {**given, "messages": list(messages), "forwardedProps": {}, **fields}
        RunAgentInput.model_validate(body)
        events: list[Any] = []
        request = self._door.http.stream("POST", self._url, json=body, headers=self._headers)
        async with request as response:
            assert response.status_code == 200, (await response.aread()).decode()
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    events.append(EVENT.validate_python(json.loads(line.removeprefix("data: "))))
                    if events[-1].type.value == stop_after:
                        return events
        return events


def types(events: list[Any]) -> list[str]:
    """The types of events, without those of our own."""
    return [event.type.value for event in events if event.type.value != "CUSTOM"]


def user(text: str, message_id: str = "") -> dict[str, Any]:
    """A new message of the user."""
    return {"id": message_id or uuid.uuid4().hex, "role": "user", "content": text}
