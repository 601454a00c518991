"""examples/chat_page in a browser: it is built as its README says, with versions 7 and 6 of `ai`, and a person talks with
an agent that asks.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import Browser, Page, expect

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.node_packages import npm_build
from tests.support.openai_turn import Failure, Turn
from tests.support.people_agents import NAPPING, desk, wake
from tests.support.shop_agents import RAN

SOURCE = Path("examples/chat_page")
QUEUE = "chat-page"
WAIT = 60_000
"""Milliseconds: other tests run at the same time."""
REFUND = '{"order": 7, "amount": {"euros": 2}}'
ASKING = Turn("One moment.", calls=[("refund", REFUND, "c1"), ("ask_person", '{"question": "Which?"}', "c2")])
NAP = ("nap", '{"seconds": 240}', "c2")
BESIDE_A_NAP = Turn("One moment.", calls=[("refund", REFUND, "c1"), NAP])
"""An approval beside a tool that runs until the test wakes it: as long as a person needs, so for one of 60 s as well."""
SECONDS = [float(each) for each in os.environ.get("APPROVAL_SECONDS", "0.1").split(",")]
"""For how long the tool runs that is beside an approval. `make approvals` tries 1, 10 and 60 s as well."""
VERSIONS: dict[int, dict[str, str]] = {7: {}, 6: {"ai": "6.0.325", "@ai-sdk/react": "3.0.328"}}
SLOW = Turn("Once upon a time there was an agent that never lost its way. " * 3, pace=0.1)


class Devices(NamedTuple):
    """Two browsers of one person, the address of the page without the conversation, and the server."""

    first: Page
    second: Page
    address: str
    door: Door

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


@pytest.fixture(scope="module")
async def agents(lab: Lab) -> AsyncIterator[None]:
    """The worker that all tests share."""
    async with running_worker(lab.client, load(["tests.support.people_agents"]), lab.telemetry, QUEUE):
        yield


@pytest.fixture(scope="module", params=VERSIONS)
async def served(lab: Lab, agents: None, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Door]]:
    """The address of the page with a version of `ai`, and the server that it talks to."""
    version: int = request.param
    async with (
        served_folder(await npm_build(SOURCE, **VERSIONS[version])) as origin,
        http_server(lab.client, task_queue=QUEUE, origins=[origin]) as door,
    ):
        yield f"{origin}/?server={door.url}" + "&sdk=6" * (version == 6), door


@pytest.fixture
async def devices(served: tuple[str, Door], chromium: Browser) -> AsyncIterator[Devices]:
    contexts = [await chromium.new_context() for _ in range(2)]
    for context in contexts:
        context.set_default_timeout(WAIT)
    first, second = [await context.new_page() for context in contexts]
    yield Devices(first, second, *served)
    for context in contexts:
        await context.close()


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


def scripted(lab: Lab, name: str, *turns: Turn) -> None:
    """Script the answers of a model in the order of the requests."""
    left = iter(turns)
    lab.model.script(name, lambda _request, _number: next(left))


def posts(page: Page) -> list[str]:
    """The addresses to which the page sends messages and decisions, from now on."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    return sent


@pytest.mark.parametrize("when", ["before", "after", "before, reloaded", "after, reloaded", "returned"])
async def test_an_approval_beside_a_tool_that_still_runs_completes(devices: Devices, lab: Lab, when: str) -> None:
    """Answered before and after that tool has ended; with a reload in between, or the page closed until all else has ended."""
    page, sent = devices.first, posts(devices.first)
    ran = sum(name == "refund" for runs in RAN.values() for name, _ in runs)
    lab.model.script(str(desk.model).partition(":")[2], [BESIDE_A_NAP, DONE])
    await page.goto(devices.conversation("desk"))
    await say(page, "Refund order 7, and take a nap.")
    approve = page.get_by_role("button", name="Approve")
    await expect(approve).to_be_visible(timeout=WAIT)
    while not NAPPING:
        await asyncio.sleep(0.02)
    if when == "returned":
        address = page.url
        await page.goto("about:blank")
        await wake()
        await page.goto(address)
        await expect(page.get_by_text("slept")).to_be_visible(timeout=WAIT)
    if "reloaded" in when:
        await page.reload()
        await expect(approve).to_be_visible(timeout=WAIT)
    if "after" in when:
        await wake()
        await expect(page.get_by_text("slept")).to_be_visible(timeout=WAIT)
    await approve.click()
    if "before" in when:
        await expect(approve).to_have_count(0, timeout=WAIT)
        await wake()
    await expect(page.locator("li.assistant p")).to_have_text(["One moment.", "done"], timeout=WAIT)
    await expect(page.locator("li.assistant samp")).to_have_text(["refunded 2 for order 7", "slept"], timeout=WAIT)
    await expect(page.get_by_role("alert")).to_have_count(0)
    assert len(sent) == 2
    assert sum(name == "refund" for runs in RAN.values() for name, _ in runs) == ran + 1


@pytest.mark.parametrize("seconds", SECONDS)
async def test_an_approval_beside_a_tool_that_takes_so_many_seconds_completes(
    devices: Devices, chromium: Browser, lab: Lab, seconds: float
) -> None:
    """Four pages at once: answered before that tool has ended and after, with a reload in between and without."""
    nap = ("nap", f'{{"seconds": {seconds}}}', "c2")
    lab.model.script(
        str(desk.model).partition(":")[2], [Turn("One moment.", calls=[("refund", REFUND, "c1"), nap]), DONE]
    )

    async def approve(is_after: bool, is_reloaded: bool) -> tuple[str, bool, int]:
        context = await chromium.new_context()
        context.set_default_timeout(WAIT + 1_000 * seconds)
        page = await context.new_page()
        sent, slept = posts(page), page.get_by_text("slept")
        await page.goto(devices.conversation("desk"))
        await say(page, "Refund order 7, and take a nap.")
        button = page.get_by_role("button", name="Approve")
        await button.wait_for()
        if is_reloaded:
            await page.reload()
            await button.wait_for()
        if is_after:
            await slept.wait_for()
        has_slept = await slept.count() > 0
        await button.click()
        await page.get_by_text("done", exact=True).wait_for()
        texts = await page.locator("li.assistant p, li.assistant samp, [role=alert]").all_inner_texts()
        await context.close()
        return " | ".join(sorted(texts)), has_slept, len(sent)

    ways = [(is_after, is_reloaded) for is_after in (False, True) for is_reloaded in (False, True)]
    seen = await asyncio.gather(*(approve(*each) for each in ways))
    for (is_after, is_reloaded), (texts, has_slept, sent) in zip(ways, seen, strict=True):
        print(f"{seconds:g} s, after: {is_after}, reloaded: {is_reloaded}, had ended: {has_slept}, requests: {sent}")
        assert (texts, sent) == ("One moment. | done | refunded 2 for order 7 | slept", 2)
        assert has_slept is is_after or (has_slept and seconds < 10)


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_an_approval_that_waits_in_a_sub_agent_alone_completes(
    devices: Devices, lab: Lab, is_reloaded: bool
) -> None:
    """The call of the sub-agent has no result then, and the AI SDK sends nothing while a call of the step has none."""
    page, sent = devices.first, posts(devices.first)
    lab.model.script("front", [call("desk", '{"prompt": "Refund order 7."}', "d1"), Turn("It is refunded.")])
    lab.model.script(str(desk.model).partition(":")[2], [call("refund", REFUND, "c1"), DONE])
    await page.goto(devices.conversation("front"))
    await say(page, "Refund order 7.")
    approve = page.get_by_role("button", name="Approve")
    await expect(approve).to_be_visible(timeout=WAIT)
    if is_reloaded:
        await page.reload()
    await expect(page.get_by_role("button", name="Send").last).to_be_enabled(timeout=WAIT)
    await approve.click()
    await expect(page.locator("li.assistant p")).to_have_text(["It is refunded."], timeout=WAIT)
    await expect(page.locator("li.assistant samp").first).to_have_text("done", timeout=WAIT)
    await expect(page.get_by_text("refunded 2 for order 7")).to_be_visible(timeout=WAIT)
    assert len(sent) == 2


@pytest.mark.parametrize("ending", ["cancel", "stop"])
async def test_a_page_sends_nothing_more_when_its_run_was_ended_after_a_decision(
    devices: Devices, lab: Lab, ending: str
) -> None:
    page, sent = devices.first, posts(devices.first)
    lab.model.script(str(desk.model).partition(":")[2], [BESIDE_A_NAP, DONE])
    await page.goto(devices.conversation("desk"))
    await say(page, "Refund order 7, and take a nap.")
    await page.get_by_role("button", name="Approve").click()
    while not NAPPING:
        await asyncio.sleep(0.02)
    [run] = (await devices.door.http.get("/api/runs", params={"status": "running", "agent": "desk"})).json()["runs"]
    await devices.door.http.post(f"/api/runs/{run['id']}/{ending}", json={})
    await wake() if ending == "stop" else NAPPING.clear()
    lab.model.script(str(desk.model).partition(":")[2], [Turn("Here I am.")] * 3)
    await expect(page.get_by_role("button", name="Send").last).to_be_enabled(timeout=WAIT)
    await say(page, "Are you there?")
    await expect(page.locator("li.assistant p").last).to_have_text("Here I am.", timeout=WAIT)
    assert len(sent) <= 3


async def test_a_person_edits_a_message_and_asks_for_another_answer(devices: Devices, lab: Lab) -> None:
    """The second device has the newest branch. Where the server does not answer, the page says so in a sentence."""
    texts = ["First.", "Second.", "Third.", "Fourth."]
    scripted(lab, str(desk.model).partition(":")[2], *map(Turn, texts))
    first, second, address = devices.first, devices.second, devices.conversation("desk")
    await first.goto(address)
    answers = first.locator("li.assistant p")
    await say(first, "One?")
    await expect(answers).to_have_text(["First."], timeout=WAIT)
    await first.get_by_role("button", name="Answer again").click()
    await expect(answers).to_have_text(["Second."], timeout=WAIT)
    await say(first, "Two?")
    await expect(answers).to_have_text(["Second.", "Third."], timeout=WAIT)
    await first.get_by_role("button", name="Edit").first.click()
    await first.get_by_label("Edit").fill("Another one?")
    await first.get_by_role("button", name="Send").first.click()
    await expect(answers).to_have_text(["Fourth."], timeout=WAIT)
    await second.goto(address)
    await expect(second.locator("li p")).to_have_text(["Another one?", "Fourth."], timeout=WAIT)

    await second.route("**/ai-sdk/**", lambda route: route.abort())
    await say(second, "And now?")
    await expect(second.get_by_role("alert")).to_contain_text("does not answer", timeout=WAIT)
    await second.unroute("**/ai-sdk/**")
    await second.reload()
    await expect(second.locator("li p")).to_have_text(["Another one?", "Fourth."], timeout=WAIT)
