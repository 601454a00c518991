"""The console's pages in a browser, for people who have signed in; and the runs that they see."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Page, expect

from tests.support.http_server import Door
from tests.support.npm_packages import installed

__all__ = ["TOKENS", "WAIT", "axe_core", "cancel", "check_accessible", "signed_in", "start", "until_waiting"]

TOKENS = "ada:token-of-ada,bob:token-of-bob:*"
"""Bob is an operator."""
AXE = "4.14.1"
OF_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules of axe-core that depend on the colours of a scheme."""
WAIT = 60_000
"""Milliseconds: other tests run at the same time."""
PAST_THE_EDGE = """[...document.querySelectorAll("main *")].filter((each) => each.getBoundingClientRect().right > innerWidth)
    .map((each) => each.outerHTML.slice(0, 150)).slice(0, 5)"""
"""The first elements that do not fit, for who reads the failure."""
expect.set_options(timeout=WAIT)


@asynccontextmanager
async def signed_in(chromium: Browser, door: Door, name: str = "ada", **options: Any) -> AsyncIterator[Page]:
    """A tab of somebody who has signed in, on no page yet. It fails if a script fails, or another host is asked for anything.

    The form of the sign-in is sent without its page: tests/system/test_console.py has that in a browser.
    """
    context = await chromium.new_context(base_url=door.url, **{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(WAIT)
    faults: list[str] = []
    context.on("request", lambda asked: None if asked.url.startswith(door.url) else faults.append(asked.url))
    context.on("weberror", lambda error: faults.append(str(error.error)))
    context.on("console", lambda said: faults.append(said.text) if is_fault(said) else None)
    try:
        signed = await context.request.post("/console/sign-in", form={"token": door.tokens[name]}, max_redirects=0)
        assert signed.status == 303, await signed.text()
        yield await context.new_page()
        assert faults == []
    finally:
        await context.close()


def is_fault(said: Any) -> bool:
    """Whether the browser complains, other than of a refused form, whose status it reports."""
    return said.type == "error" and "422" not in said.text


async def axe_core() -> str:
    """The script of axe-core, from npm."""
    folder = await installed("axe", {"axe-core": AXE}, with_node=False)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


async def check_accessible(page: Page, axe: str, path: str) -> None:
    """No rule of axe-core is broken, at the width of a desktop and of a phone, with all details open; the page is no wider
    than its screen, from 360 to 2,560 pixels. Of what is dark, the rules on colours: nothing else depends on the scheme.
    """
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size({"width": 360, "height": 900})
    await page.goto(path)
    await page.evaluate(axe)
    for width in (360, 1280, 2560):
        await page.set_viewport_size({"width": width, "height": 900})
        for summary in await page.locator("details:not([open]) > summary").all():
            if await summary.is_visible():
                await summary.click()
        is_wider = await page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not is_wider, (path, width, await page.evaluate(PAST_THE_EDGE))
        if width != 2560:
            await check_rules(page, path)
            await page.emulate_media(color_scheme="dark")
            await check_rules(page, path, *OF_COLOURS)
            await page.emulate_media(color_scheme="light")


async def check_rules(page: Page, path: str, *only: str) -> None:
    """No rule of axe-core is broken on the page, which has its script. `only`: of these rules."""
    options = {"runOnly": list(only)} if only else {}
    broken = await page.evaluate("(options) => axe.run(options).then((found) => found.violations)", options)
    rules = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in broken]
    assert rules == [], (path, page.viewport_size, only, rules)


async def start(
    door: Door, agent: str, prompt: str = "Ada writes: my teapot came in a dented box. Please help."
) -> str:
    run_id = f"{agent}-{uuid.uuid4().hex[:6]}"
    body = {"agent": agent, "prompt": prompt, "id": run_id}
    answer = await door.http.post("/api/runs", json=body, headers=door.by("ada"))
    assert answer.status_code == 201, answer.text
    return run_id


async def until_waiting(door: Door, run_id: str, step: int = 0) -> None:
    """Until a call waits for a person, of that step or a later one."""
    while not any(
        call["step"] >= step
        for call in (await door.http.get(f"/api/runs/{run_id}/pending", headers=door.by("ada"))).json()
    ):
        await asyncio.sleep(0.1)


async def cancel(door: Door, *run_ids: str) -> None:
    for run_id in run_ids:
        await door.http.post(f"/api/runs/{run_id}/cancel", headers=door.by("ada"))
