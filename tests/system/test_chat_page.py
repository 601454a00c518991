"""examples/chat_page in a browser: it is built as its README says, and a person talks with an agent that asks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import Page, expect

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, call
from tests.support.chromium import browser
from tests.support.http_server import http_server
from tests.support.node_packages import npm_build
from tests.support.openai_turn import Failure, Turn
from tests.support.people_agents import desk

SOURCE = Path("examples/chat_page")
QUEUE = "chat-page"
WAIT = 60_000
"""Milliseconds: other tests run at the same time."""
REFUND = '{"order": 7, "amount": {"euros": 2}}'
ASKING = Turn("One moment.", calls=[("refund", REFUND, "c1"), ("ask_person", '{"question": "Which?"}', "c2")])
SLOW = Turn("Once upon a time there was an agent that never lost its way. " * 3, pace=0.1)


class Devices(NamedTuple):
    """Two browsers of one person, and the address of the page without the conversation."""

    first: Page
    second: Page
    address: str

    def conversation(self, agent: str) -> str:
        """The address of a conversation that nobody has used."""
        return f"{self.address}&agent={agent}#{uuid.uuid4()}"


@asynccontextmanager
async def served_folder(folder: Path) -> AsyncIterator[str]:
    """The origin of a web server for a folder's files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    serving = asyncio.create_task(asyncio.to_thread(server.serve_forever))
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        await asyncio.to_thread(server.shutdown)
        await serving
        server.server_close()


@pytest.fixture
async def devices(lab: Lab, chromium_program: str) -> AsyncIterator[Devices]:
    loaded = load(["tests.support.people_agents"])
    async with (
        served_folder(await npm_build(SOURCE)) as origin,
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, task_queue=QUEUE, origins=[origin]) as door,
        browser(chromium_program) as running,
    ):
        pages = [await (await running.new_context()).new_page() for _ in range(2)]
        for opened in pages:
            opened.set_default_timeout(WAIT)
        yield Devices(pages[0], pages[1], f"{origin}/?server={door.url}")


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").last.click()


async def test_a_person_approves_answers_leaves_and_returns(devices: Devices, lab: Lab) -> None:
    """Also what a sub-agent asks. After a reload in between there is the same to decide, and no text twice."""
    page = devices.first
    await page.goto(devices.conversation("front"))
    lab.model.script("front", [call("desk", '{"prompt": "Refund order 7."}', "d1"), DONE, SLOW])
    lab.model.script(str(desk.model).partition(":")[2], [ASKING, DONE])
    await say(page, "Refund order 7.")
    await expect(page.get_by_role("button", name="Approve")).to_be_visible(timeout=WAIT)
    await page.reload()
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_label("Which?").fill("Both.")
    await page.get_by_role("button", name="Send").first.click()
    await expect(page.get_by_text("refunded 2 for order 7")).to_be_visible(timeout=WAIT)
    await expect(page.locator("li.assistant p").last).to_have_text("done", timeout=WAIT)

    await say(page, "Tell me.")
    await expect(page.get_by_text("Once upon a time")).to_be_visible(timeout=WAIT)
    await page.reload()
    await expect(page.get_by_text("Refund order 7.", exact=True)).to_be_visible(timeout=WAIT)
    await expect(page.get_by_text("Once upon a time")).to_be_visible(timeout=WAIT)
    await expect(page.locator("li.assistant p").last).to_have_text(str(SLOW.text).strip(), timeout=WAIT)
    await expect(page.locator("li.assistant p")).to_have_count(2)


async def test_a_second_device_decides_and_the_first_one_has_the_answer_when_it_returns(
    devices: Devices, lab: Lab
) -> None:
    lab.model.script(
        str(desk.model).partition(":")[2], [call("refund", REFUND, "c1"), DONE, Turn(failure=Failure(400))]
    )
    first, second, address = devices.first, devices.second, devices.conversation("desk")
    await first.goto(address)
    await say(first, "Refund order 7.")
    await expect(first.get_by_role("button", name="Approve")).to_be_visible(timeout=WAIT)
    await second.goto(address)
    await expect(second.get_by_text("Refund order 7.", exact=True)).to_be_visible(timeout=WAIT)
    await second.get_by_role("button", name="Approve").click()
    await expect(second.locator("li.assistant p").last).to_have_text("done", timeout=WAIT)
    await first.reload()
    await expect(first.locator("li.assistant p")).to_have_text(["done"], timeout=WAIT)
    await expect(first.get_by_role("button", name="Approve")).to_have_count(0)

    await say(first, "And now?")
    await expect(first.get_by_role("alert")).to_have_count(1, timeout=WAIT)
    sentence = await first.get_by_role("alert").inner_text()
    assert "{" not in sentence
    await first.reload()
    await expect(first.get_by_role("alert")).to_have_text([sentence], timeout=WAIT)
