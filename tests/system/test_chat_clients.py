"""The clients that front ends use, unmodified: npm's `@ag-ui/client` with its verifier, and the transport of npm's `ai`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.docs_block import docs_block
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab
from tests.support.node_packages import NodeProject, chat_clients
from tests.support.openai_stream import Break
from tests.support.openai_turn import Turn
from tests.support.people_agents import desk, wake

QUEUE = "chat-clients"
ARGUMENTS = '{"order": 7, "amount": {"euros": 2}}'
STORY = "Once upon a time there was an agent that never lost its way."
ASKING = Turn("One moment.", calls=[("refund", ARGUMENTS, "c1"), ("ask_person", '{"question": "Which?"}', "c2")])
TELLING = Turn(STORY * 4, pace=0.02, break_first=[Break(30, drop=True)])
"""Written slowly; the first stream breaks off, so its text becomes void."""


@pytest.fixture(scope="module")
async def clients() -> NodeProject:
    return await chat_clients()


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.support.people_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, task_queue=QUEUE) as served,
    ):
        yield served


@pytest.fixture
def scripted(lab: Lab) -> None:
    lab.model.script(str(desk.model).partition(":")[2], [ASKING, DONE, TELLING])


async def test_ag_uis_client_is_interrupted_returns_resumes_and_reconnects(
    clients: NodeProject, door: Door, scripted: None
) -> None:
    seen: dict[str, Any] = json.loads(await clients.run("ag_ui.mjs", f"{door.url}/ag-ui/desk"))
    calls = [["refund", ARGUMENTS], ["ask_person", '{"question": "Which?"}']]
    assert sorted(seen["reasons"]) == ["input_required", "tool_call"]
    assert seen["asked"][-1] == "RUN_FINISHED"
    assert seen["returned"] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert seen["seen"] == ["Refund order 7.", calls]
    assert seen["resumed"].count("TOOL_CALL_RESULT") == 2
    assert "TOOL_CALL_START" not in seen["resumed"]
    done = ["Refund order 7.", calls, "refunded 2 for order 7", "Both.", "done"]
    assert sorted(map(str, seen["done"])) == sorted(map(str, done))
    assert seen["told"][:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert seen["all"][-2:] == ["Tell me.", STORY * 4]


async def test_the_program_of_the_ag_ui_page_gets_its_answer(clients: NodeProject, door: Door, lab: Lab) -> None:
    """docs/ag-ui.md, with this server and agent in place of those on the page."""
    lab.model.script(str(desk.model).partition(":")[2], [DONE])
    printed = docs_block("docs/ag-ui.md", "HttpAgent").replace(
        "http://127.0.0.1:8300/ag-ui/support", f"{door.url}/ag-ui/desk"
    )
    printed += "\nconsole.log(JSON.stringify(agent.messages.map((message) => message.content)));\n"
    said = json.loads(await clients.run("ag_ui_page.mjs", text=printed))
    assert said == ["Where is order 7?", "done"]


async def test_the_ai_sdks_transport_is_asked_returns_replies_and_resumes(
    clients: NodeProject, door: Door, scripted: None
) -> None:
    seen: dict[str, Any] = json.loads(await clients.run("ai_sdk.mjs", f"{door.url}/ai-sdk/desk"))
    given: dict[str, Any] = {"order": 7, "amount": {"euros": 2}}
    question = {"question": "Which?"}
    asked: list[Any] = ["One moment.", ["refund", "approval-requested", given, None]]
    asked.append(["ask_person", "input-available", question, None])
    assert seen["asked"]["parts"] == seen["returned"]["parts"] == asked
    assert seen["asked"]["id"] == seen["returned"]["id"] == seen["done"]["id"]
    assert seen["done"]["parts"] == [
        "One moment.",
        ["refund", "output-available", given, "refunded 2 for order 7"],
        ["ask_person", "output-available", question, "Both."],
        "done",
    ]
    assert seen["idle"] is None
    assert seen["told"]["parts"] == [STORY * 4]


async def wake_after(event: asyncio.Event | None) -> None:
    """End a nap, after something has happened."""
    if event:
        await event.wait()
    await wake()


def comparable(message: dict[str, Any]) -> Any:
    """A message without what differs from page to page: the ids of approvals, and absent fields."""
    parts = [dict(part) for part in message["parts"]]
    for part in parts:
        part.pop("approval", None)
        part.pop("rawInput", None)
    return message["role"], parts


@pytest.mark.parametrize("package", ["ai", "ai6"])
@pytest.mark.parametrize("when", ["before", "at once", "after", "reload", "return"])
async def test_an_approval_beside_a_slow_tool_completes(
    clients: NodeProject, door: Door, lab: Lab, package: str, when: str
) -> None:
    """Answered before and after that tool ends, and after a reload; a second device has what the page has. `at once`: that
    tool ends by itself about when the approval is there.
    """
    calls = [("refund", ARGUMENTS, "c1"), ("nap", f'{{"seconds": {0.1 if when == "at once" else 240}}}', "c2")]
    lab.model.script(str(desk.model).partition(":")[2], [Turn("One moment.", calls=calls), DONE])
    url = f"{door.url}/ai-sdk/desk{'?sdk=6' if package == 'ai6' else ''}"
    is_held, decided = when in ("before", "reload"), asyncio.Event()
    arguments = (url, package, "before" if when == "at once" else when)
    program = asyncio.create_task(
        clients.run("ai_chat.mjs", *arguments, told=lambda line: decided.set() if line == "decided" else None)
    )
    waking = asyncio.create_task(wake_after(decided if is_held else None)) if when != "at once" else None
    try:
        seen: dict[str, Any] = json.loads(await program)
    finally:
        if waking:
            waking.cancel()
    assert not (seen["napped"] and is_held)
    page, second = seen["page"], seen["second"]
    states = {part["type"]: part["state"] for part in page[1]["parts"] if part["type"].startswith("tool-")}
    assert states == {"tool-refund": "output-available", "tool-nap": "output-available"}
    assert [part["text"] for part in page[1]["parts"] if part["type"] == "text"] == ["One moment.", "done"]
    assert [message["id"] for message in second] == [message["id"] for message in page]
    assert [comparable(message) for message in second] == [comparable(message) for message in page]
