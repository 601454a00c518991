"""`mulligan serve` with the unmodified `openai` SDK for JavaScript, on Node 22."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.npm_packages import installed, run_node
from tests.support.openai_door_agents import MODEL, SCRIPTS, scripted

SDK = {"openai": "7.57.0"}
MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


async def test_the_javascript_sdk_of_openai_talks_to_agents(lab: Lab) -> None:
    """Streams, resumed streams, approvals, conversations, cancelling, chat, errors."""
    folder = await installed("openai", SDK)
    queue = f"openai-{uuid.uuid4().hex[:6]}"
    lab.model.script(MODEL, scripted(SCRIPTS))
    worker = running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, queue)
    async with worker, http_server(lab.client, task_queue=queue, tokens="ada:token-of-ada") as door:
        printed = await run_node(folder, Path(__file__).with_name("openai_client.mjs"), door.url)
    got = json.loads(printed)
    assert set(got["models"]) == {*("seller", "manager", "labeller", "strict_seller", "ignoring", "refusing")}
    types = got["types"]
    assert types[:8] == ["response.created", "response.in_progress", *MESSAGE]
    assert types[-7:] == [*MESSAGE, "response.completed"]
    rest = types[types.index("response.output_text.done") + 1 :]
    assert got["resumed"] == got["replayed"] == rest
    assert got["text"] == "Let me look.It is order 7."
    message = ["message", "completed"]
    assert got["items"] == [message, ["mcp_call", "completed"], ["mcp_call", "failed"], message]
    assert (got["usage"], got["integers"]) == (30, True)
    assert got["approved"] == ["in_progress", "completed", "Given back."]
    for way, (waiting, done, status) in got["below"].items():
        for items in waiting:  # the call of the sub-agent is among them when it is settled
            assert sorted(items) == [["function_call", ""], ["mcp_approval_request", ""]], way
        assert [status, *done] == ["completed", *[[["mcp_call", "Given back."], ["message", ""]]] * 2], way
    assert got["conversation"] == ["Hello.", "Hello again."]
    assert got["cancelled"] == "cancelled"
    assert got["chat"] == ["Let me look.\n\nIt is order 7.", "stop", 30]
    assert got["refused"] == ["BadRequestError", 400, "top_logprobs"]
    assert "unknown_tool" in got["failed"]
