"""The console in a real browser: every page and decision, live text, a server that is killed, hostile text, accessibility.

Its pictures are taken with `make screenshots`. CONSOLE_STEPS: of the long run, 1,000 for its figures, which are printed with `-s`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import Browser, Page, expect

from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.command_server import CommandProcess, start_command
from tests.support.console_agents import MANY, WORDS
from tests.support.console_browser import (
    TOKENS,
    WAIT,
    axe_core,
    cancel,
    check_accessible,
    signed_in,
    start,
    until_waiting,
)
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.ports import free_ports
from tests.support.temporal import environment_of

QUEUE = "console-pages"
ROOT = Path(__file__).parent.parent.parent
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
async def axe() -> str:
    return await axe_core()


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.support.console_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, tokens=TOKENS, task_queue=QUEUE) as served,
    ):
        yield served


async def test_no_page_breaks_a_rule_of_accessibility(chromium: Browser, door: Door, axe: str) -> None:
    """By axe-core, at the width of a desktop and of a phone, light and dark. No page is wider than its screen, from 360 to
    2,560 pixels.
    """
    run_id, hostile = await start(door, "support-desk"), await start(door, "hostile")
    await until_waiting(door, run_id)
    await until_waiting(door, hostile)
    paths = ["/", f"/console/runs/{run_id}", f"/console/runs/{hostile}", "/console/decide", "/console/agents"]
    paths += ["/console/agents/support-desk", "/console/start", f"/console/runs/{run_id}/cancel-it"]
    async with signed_in(chromium, door, bypass_csp=True) as page:
        for path in paths:
            await check_accessible(page, axe, path)
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url("**/sign-in*", wait_until="load")
        await check_accessible(page, axe, page.url)
    await cancel(door, run_id, hostile)


async def test_people_decide_and_the_second_sees_who_was_first(chromium: Browser, door: Door) -> None:
    """Edited arguments are checked, compared, confirmed; a question is answered; the names are in the transcript."""
    run_id = await start(door, "support-desk")
    await until_waiting(door, run_id)
    async with signed_in(chromium, door) as ada, signed_in(chromium, door, "bob") as bob:
        for page in (ada, bob):
            await page.goto(f"/console/decide?run={run_id}")
        await ada.get_by_text("Edit the arguments").click()
        euros = ada.get_by_label("euros")
        await euros.fill("20")
        await expect(ada.get_by_text("Changed. Before: 48.0")).to_be_visible()
        await ada.get_by_role("button", name="Approve").click()
        changes = ada.get_by_role("group", name="Your changes")
        await expect(changes).to_contain_text("48.0")
        await expect(changes).to_contain_text("20")
        await ada.get_by_role("button", name="Approve with these changes").click()
        await expect(ada.get_by_text("refund was approved with your changes")).to_be_visible()
        await bob.get_by_role("textbox", name="Reason").fill("Not this one.")
        await bob.get_by_role("button", name="Deny").click()
        await expect(bob.get_by_text("Somebody was first: this call was approved by ada")).to_be_visible()
        await until_waiting(door, run_id)
        await bob.goto(f"/console/decide?run={run_id}")
        await bob.get_by_label("Your answer").fill("Yes, five euros.")
        await bob.get_by_role("button", name="Answer").click()
        await expect(bob.get_by_text("was answered")).to_be_visible()
        await ada.goto(f"/console/runs/{run_id}")
        await expect(ada.get_by_text("Approved by ada, with edited arguments")).to_be_visible()
        await expect(ada.get_by_text("Answered by bob")).to_be_visible()
        await ada.get_by_role("link", name="Corrected in step 4").click()
        assert await ada.evaluate("document.querySelector(':target').id") == "step-4-call-1"
        await ada.locator("sub-run summary").click()
        await expect(ada.get_by_text("Rule 12 (damage)")).to_be_visible()


async def test_a_run_is_started_followed_denied_and_stopped_with_the_keyboard(chromium: Browser, door: Door) -> None:
    """The page shows each step as it comes. Denied calls tell the model the reason; stopping asks first."""
    async with signed_in(chromium, door) as page:
        await page.goto("/")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.get_by_role("link", name="Start a run").first.focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Agent").select_option("support-desk")
        await page.get_by_label("Prompt").fill("Help Ada.")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("waits for approval")).to_be_visible()
        run_id = page.url.rpartition("/")[2]
        await page.get_by_role("link", name="Decide").last.press("Enter")
        await page.get_by_role("textbox", name="Reason").fill("Ask her for a photo first.")
        await page.get_by_role("button", name="Deny").press("Enter")
        await expect(page.get_by_text("refund was denied")).to_be_visible()
        await page.goto(f"/console/runs/{run_id}")
        await expect(page.get_by_text("“Ask her for a photo first.”")).to_be_visible()
        await page.get_by_role("link", name="Stop …").press("Enter")
        await expect(page.get_by_text("This cannot be undone")).to_be_visible()
        await page.get_by_role("button", name="Stop the run").press("Enter")
        await expect(page.locator("#summary .status")).to_contain_text("stopped")


async def test_a_page_that_was_opened_before_a_worker_began_shows_the_steps_when_one_does(
    chromium: Browser, lab: Lab
) -> None:
    queue = f"later-{uuid.uuid4().hex[:6]}"
    async with http_server(lab.client, tokens=TOKENS, task_queue=queue) as alone:
        run_id = await start(alone, "support-desk")
        async with signed_in(chromium, alone) as page:
            await page.goto(f"/console/runs/{run_id}")
            await expect(page.get_by_text("No worker of the run answers now")).to_be_visible()
            async with running_worker(lab.client, load(["tests.support.console_agents"]), lab.telemetry, queue):
                await expect(page.get_by_text("waits for approval")).to_be_visible()
                await expect(page.get_by_text("No worker of the run answers now")).to_have_count(0)
                await cancel(alone, run_id)


@asynccontextmanager
async def serve_process(server: DevServer, port: int) -> AsyncIterator[CommandProcess]:
    """`mulligan serve`, killed at the end of the block."""
    settings = {**os.environ, **environment_of(server), "MULLIGAN_SERVE_TOKENS": TOKENS}
    process = await start_command("serve", "--port", str(port), "--task-queue", QUEUE, env=settings)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            while True:
                try:
                    await http.get("/console/sign-in")
                    break
                except httpx2.HTTPError:
                    assert process.returncode is None
                    await asyncio.sleep(0.1)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_page_follows_its_run_when_the_server_is_killed(
    chromium: Browser, door: Door, temporal: DevServer
) -> None:
    """kill -9 in the middle of a text: the page says so, continues with the next server, and shows each step once."""
    [port] = free_ports(1)
    at_port = Door(f"http://127.0.0.1:{port}", door.http, door.tokens)
    context = await chromium.new_context(base_url=at_port.url)
    context.set_default_timeout(WAIT)
    page = await context.new_page()
    async with serve_process(temporal, port) as process:
        await page.goto("/")
        await page.get_by_label("Token").fill("token-of-ada")
        await page.get_by_role("button", name="Sign in").click()
        run_id = await start(door, "slow-teller")
        await page.goto(f"/console/runs/{run_id}")
        writing = page.locator("#step-2 .writing .text")
        await expect(writing).to_contain_text(WORDS[:20], timeout=WAIT)
        process.kill()
        await process.wait()
        await expect(page.get_by_text("The connection is lost")).to_be_visible(timeout=WAIT)
    async with serve_process(temporal, port):
        await expect(page.get_by_text("The connection is lost")).to_have_count(0, timeout=WAIT)
        await expect(page.locator("#step-2 .says")).to_contain_text(WORDS.strip()[-30:], timeout=WAIT)
        await expect(page.locator("#summary .status")).to_contain_text("completed", timeout=WAIT)
        ids = await page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
        assert len(ids) == len(set(ids))
        assert await page.locator(".entry.step").count() == 2
    await context.close()


async def test_hostile_text_is_shown_and_does_nothing(chromium: Browser, door: Door) -> None:
    """Neither as HTML in a page, nor in what comes live; a line of a million characters does not widen the page."""
    async with signed_in(chromium, door, viewport={"width": 375, "height": 800}) as page:
        run_id = await start(door, "hostile", "<script>window.hacked = true</script>")
        await page.goto(f"/console/runs/{run_id}")
        await expect(page.get_by_text("waits for approval")).to_be_visible()
        for path in (f"/console/runs/{run_id}", "/console/decide", "/"):
            await page.goto(path)
            for summary in await page.locator("details > summary").all():
                await summary.click()
            assert await page.evaluate("window.hacked") is None
            assert await page.locator("main script, main img, main [onerror]").count() == 0
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.goto(f"/console/runs/{run_id}")
        await expect(page.get_by_text("⟦U+202E RIGHT-TO-LEFT OVERRIDE⟧").first).to_be_visible()
    await cancel(door, run_id)


async def test_each_page_is_readable_and_each_form_works_without_javascript(chromium: Browser, door: Door) -> None:
    async with signed_in(chromium, door, java_script_enabled=False) as page:
        run_id = await start(door, "support-desk")
        await until_waiting(door, run_id)
        await page.goto(f"/console/runs/{run_id}")
        await expect(page.get_by_text("There is no tool `list_orders`")).to_be_visible()
        await page.locator("sub-run summary").click()
        await page.get_by_role("link", name="Open this run").click()
        await expect(page.get_by_text("Rule 12 (damage)")).to_be_visible()
        await page.goto("/console/decide?run=" + run_id)
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("refund was approved")).to_be_visible()
        await page.goto(f"/console/runs/{run_id}/cancel-it")
        await page.get_by_role("button", name="Cancel the run").click()
        await expect(page.get_by_text("The run was cancelled")).to_be_visible()


async def test_a_run_of_many_steps_is_followed_and_read_in_pages(chromium: Browser, door: Door) -> None:
    """The page that follows it keeps a bounded number of steps; memory and the time to a readable page are printed."""
    async with signed_in(chromium, door) as page:
        run_id = await start(door, "counter")
        path = f"/console/runs/{run_id}"
        await page.goto(path)
        memory = [await used_memory(page)]
        status = page.locator("#summary > .heading .status")
        while "completed" not in await status.inner_text():
            await asyncio.sleep(0.3)
            assert await page.locator(".entry.step").count() <= 101
            kept = "document.querySelectorAll('.entry.step').length < 100 || !document.querySelector('#prompt')"
            assert await page.evaluate(kept), "what is before the oldest step of the page stays"
        memory.append(await used_memory(page))
        began = time.monotonic()
        await page.goto(path, wait_until="domcontentloaded")
        await expect(page.locator(f"#step-{MANY}")).to_be_visible()
        seconds = time.monotonic() - began
        newest = (MANY - 1) // 50 * 50 + 1
        await expect(page.locator(".pager").first).to_contain_text(f"Steps {newest}–{MANY} of {MANY}")
        await page.get_by_role("link", name="‹ Earlier").first.click()
        await expect(page.locator(f"#step-{newest - 50}")).to_be_visible()
        assert await page.locator(".entry.step").count() == 50
        await page.goto(f"{path}?page=1")
        await page.get_by_role("link", name="Step 43, with a mistake").click()
        await expect(page.locator("#step-43 .mistake")).to_be_in_viewport()
        sizes = [len(each.read_bytes()) for each in (ROOT / "mulligan/serve/console/assets").iterdir()]
        print(
            f"\n{MANY} steps: a readable page after {seconds:.2f} s; memory {memory[0]:.1f} MB, after following "
            f"{memory[1]:.1f} MB; assets {sum(sizes):,} bytes in {len(sizes)} files"
        )
        assert memory[1] < 60


async def test_each_page_of_a_long_run_has_its_fifty_steps(door: Door) -> None:
    """The first, the last and those between, whether steps have few events or many."""
    run_id = await start(door, "uneven")
    await door.ended(run_id, door.by("ada"))
    for page, first, last in (("", 101, 110), ("?page=1", 1, 50), ("?page=2", 51, 100)):
        shown = (await door.http.get(f"/console/runs/{run_id}{page}", headers=door.by("ada"))).text
        numbers = [int(each) for each in re.findall(r'class="entry step[^"]*" id="step-(\d+)"', shown)]
        assert numbers == list(range(first, last + 1))
        assert f"Steps {first}–{last} of 110" in shown


async def test_an_ended_run_that_was_read_once_is_readable_without_a_worker(lab: Lab) -> None:
    """Its events are kept; `started` is in UTC, with Z."""
    queue = f"gone-{uuid.uuid4().hex[:6]}"
    async with http_server(lab.client, tokens=TOKENS, task_queue=queue) as served:
        by = served.by("ada")
        async with running_worker(lab.client, load(["tests.support.console_agents"]), lab.telemetry, queue):
            run_id = await start(served, "teller")
            info = await served.ended(run_id, by)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", info["started"])
            first = await served.http.get(f"/console/runs/{run_id}", headers=by)
        second = await served.http.get(f"/console/runs/{run_id}", headers=by)
        for shown in (first.text, second.text):
            assert 'id="step-1"' in shown
            assert "No worker of the run" not in shown


async def used_memory(page: Page) -> float:
    """MB of JavaScript's heap, after a collection."""
    await page.evaluate("gc()")
    return float(await page.evaluate("performance.memory.usedJSHeapSize / 1e6"))


PATHS = {
    "runs": "/",
    "run": "/console/runs/{run}",
    "decide": "/console/decide",
    "agent": "/console/agents/support-desk",
}
LOOKS = {"": ("light", 1280, 860), "-dark": ("dark", 1280, 860), "-phone": ("light", 390, 844)}
SCREENS = (("runs", ""), ("run", ""), ("run", "-dark"), ("decide", ""), ("decide", "-phone"), ("agent", "-dark"))


async def test_screenshots(chromium: Browser, door: Door, pytestconfig: pytest.Config) -> None:
    """The pictures of docs/console.md exist; `make screenshots` takes them again."""
    if not pytestconfig.getoption("--write-docs"):
        named = set(re.findall(r"images/([\w-]+\.png)", (ROOT / "docs/console.md").read_text()))
        assert named <= {each.name for each in IMAGES.glob("*.png")}
        assert named
        return
    IMAGES.mkdir(exist_ok=True)
    await start(door, "teller", "Write a few lines about tea for the window.")
    letter = "Ada writes: the lid of my teapot is cracked, and I have photos of it. Can I have my money back?"
    runs = [await start(door, "support-desk", letter), await start(door, "support-desk")]
    for run in runs:
        await until_waiting(door, run)
    decision = {"call_id": "call_5_1", "decision": "approve"}
    await door.http.post(f"/api/runs/{runs[0]}/decisions", json=decision, headers=door.by("ada"))
    await until_waiting(door, runs[0])
    for name, suffix in SCREENS:
        scheme, width, height = LOOKS[suffix]
        async with signed_in(chromium, door, color_scheme=scheme, viewport={"width": width, "height": height}) as page:
            await page.goto(PATHS[name].format(run=runs[1]))
            await page.wait_for_timeout(1_000)
            await page.screenshot(path=IMAGES / f"console-{name}{suffix}.png")
    await cancel(door, *runs)
    run = await start(door, "tea-shop", "Order 7 came broken. Please pay it back.")
    await until_waiting(door, run)
    async with signed_in(chromium, door, viewport={"width": 1280, "height": 1180}) as page:
        await page.goto(f"/console/runs/{run}")
        await page.get_by_text("Repaired by fix").click()
        await page.evaluate("scrollTo(0, 0)")
        await page.wait_for_timeout(1_000)
        await page.screenshot(path=IMAGES / "console-readme.png")
    await cancel(door, run)
