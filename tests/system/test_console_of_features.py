"""What the console shows of hosted calls, forks, guarded decisions and what the model saw: for everybody, on each screen."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from temporalio.client import WorkflowHandle

from mulligan import fork_run
from mulligan.context_view.model_context import read_model_context
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.test_guarded import ACCOUNT, MAIL, PAY
from tests.live.test_hosted_work import CONTINUED, PAUSED, body, is_continued
from tests.promise.test_people import pending
from tests.support.compaction_agents import PROMPT, reading
from tests.support.console_browser import TOKENS, axe_core, check_accessible, signed_in
from tests.support.guarded_agents import SHOWN
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab
from tests.support.shop_agents import RAN

PHONE: Any = {"width": 390, "height": 844}
MODULES = [f"tests.support.{name}" for name in ("shop_agents", "guarded_agents", "context_agents")]


@dataclass
class Shown:
    """The server, and runs that it shows: one with a call by the provider and its fork, one that waits, and one that forgets."""

    door: Door
    lab: Lab
    hosted: str
    fork: str
    guarded: WorkflowHandle[Any, Any]
    forgetful: str
    step: int
    """The step of the last one in whose request results are cleared after older messages were summarized."""

    @property
    def pages(self) -> list[str]:
        """The paths of the pages with what features show."""
        return [
            *(f"/console/runs/{each}" for each in (self.hosted, self.fork, self.guarded.id)),
            f"/console/decide?run={self.guarded.id}",
            f"/console/runs/{self.forgetful}/context?step={self.step}",
            f"/console/runs/{self.fork}/context?step=1",
        ]


@pytest.fixture(scope="module")
async def shown(lab: Lab) -> AsyncIterator[Shown]:
    queue = f"features-{uuid.uuid4().hex[:6]}"
    at = replace(lab, task_queue=queue, workers=None)
    async with (
        running_worker(at.client, load(MODULES), lab.telemetry, queue),
        http_server(lab.client, tokens=TOKENS, task_queue=queue) as door,
    ):
        hosted = await at.run(lambda request, _: body(CONTINUED if is_continued(request) else PAUSED), api="anthropic")
        fork = await fork_run(at.client, hosted.id)
        assert (await fork.result())["status"] == "completed"
        forgetful = await at.run(reading(40), agent="forgetful_reader", prompt=PROMPT)
        for step in range(1, 42):
            context = await read_model_context(at.client, forgetful.id, step)
            if context.cleared and context.compacted:
                break
        guarded = await at.start([MAIL, ACCOUNT, PAY, DONE], agent="clerk")
        await pending(guarded)
        yield Shown(door, at, hosted.id, fork.id, guarded, forgetful.id, step)
        await guarded.terminate()


async def test_pages_of_features_break_no_rule_of_accessibility(chromium: Browser, shown: Shown) -> None:
    """By axe-core, at the width of a desktop and of a phone, light and dark; no page is wider than its screen."""
    axe = await axe_core()
    async with signed_in(chromium, shown.door, "bob", bypass_csp=True) as page:
        for path in shown.pages:
            await check_accessible(page, axe, path)


@pytest.mark.parametrize("with_scripts", [True, False])
async def test_a_fork_and_what_the_model_saw_are_read_on_a_phone_with_the_keyboard(
    chromium: Browser, shown: Shown, with_scripts: bool
) -> None:
    """From the fork to its run, whose call by the provider has its arguments there, and to the request of its step."""
    async with signed_in(chromium, shown.door, "bob", viewport=PHONE, java_script_enabled=with_scripts) as page:
        await page.goto(f"/console/runs/{shown.fork}")
        await expect(page.locator("#summary")).to_contain_text(f"forked from {shown.hosted} at step 1")
        await page.locator("#summary").get_by_role("link", name=shown.hosted).press("Enter")
        await expect(page.get_by_role("heading", name="Call by the provider web_search")).to_be_visible()
        await expect(page.locator("#step-1")).to_contain_text("otters")
        await page.get_by_role("link", name="What the model saw").press("Enter")
        await expect(page.get_by_role("heading", name="What the model saw in step 1")).to_be_visible()
        await expect(page.get_by_role("article", name="Message 1")).to_contain_text("Go.")
        await page.goto(f"/console/runs/{shown.forgetful}/context?step={shown.step}")
        await expect(page.get_by_text("a summary in place of older messages")).to_be_visible()
        await expect(page.get_by_text("Cleared").first).to_be_visible()


@pytest.mark.parametrize("with_scripts", [True, False])
async def test_a_guarded_decision_shows_what_was_read_before_its_buttons(
    chromium: Browser, shown: Shown, with_scripts: bool
) -> None:
    """On a phone: the quotation is one text in a warning, above the buttons, and denying it runs nothing."""
    handle = await shown.lab.start([MAIL, PAY, DONE], agent="clerk", tenant="ada")
    await pending(handle)
    async with signed_in(chromium, shown.door, viewport=PHONE, java_script_enabled=with_scripts) as page:
        await page.goto(f"/console/decide?run={handle.id}")
        card = page.get_by_role("article")
        warning, deny = card.locator(".untrusted"), card.get_by_role("button", name="Deny")
        await expect(warning).to_contain_text("Nothing that is quoted here is an instruction to you")
        assert await warning.locator("q").all_inner_texts() == [SHOWN.replace("\n", " ")]
        boxes = [await each.bounding_box() for each in (warning, card.get_by_role("button", name="Approve"), deny)]
        assert all(box is not None and box["x"] + box["width"] <= PHONE["width"] for box in boxes)
        assert [box["y"] for box in boxes if box] == sorted(box["y"] for box in boxes if box)
        await deny.press("Enter")
        await expect(page.get_by_text("pay was denied")).to_be_visible()
    await handle.result()
    assert [name for name, _ in RAN[handle.id]] == ["read_mail"]
