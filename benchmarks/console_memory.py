"""The memory of a browser that follows a live run: `python -m benchmarks.console_memory [--minutes 10]`.

A dev server, a worker and `mulligan serve` are processes of their own; Debian's Chromium has one page open, that of a run
which writes text and takes steps all the time. Printed as JSON, for the start, each minute and the end: JavaScript's heap
after a collection, the nodes and event listeners of the page, the newest step of the run, and the number of steps in the
page. The memory of the browser's processes would say nothing of the page: for whoever drives a browser, it keeps each
response. Playwright is in the dependency group `system`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import httpx2
from playwright.async_api import Browser, CDPSession, Page

from benchmarks.watchers import serve_process
from mulligan.devserver import temporal_server
from tests.support.chromium import browser, install_chromium
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

RUN = "followed"
SECONDS_FOR_STEP = 120
"""How long the page may show nothing new: then it follows the run no more, and its memory says nothing."""


class FollowedPage:
    """The page of the run in a browser, and what it takes."""

    def __init__(self, page: Page, cdp: CDPSession) -> None:
        self._page, self._cdp = page, cdp

    @classmethod
    async def open(cls, running: Browser, url: str) -> FollowedPage:
        """Open it in a browser that has no other page."""
        page = await running.new_page(viewport={"width": 1280, "height": 900})
        cdp = await page.context.new_cdp_session(page)
        await cdp.send("Performance.enable")
        await page.goto(url)
        return cls(page, cdp)

    async def until_first_step(self) -> None:
        """Wait until the worker has begun the run."""
        await self._page.locator("#step-1").wait_for(timeout=1_000 * SECONDS_FOR_STEP)

    async def newest_step(self) -> int:
        """The number of the newest step in the page."""
        newest = "[...document.querySelectorAll('#transcript .step')].at(-1)?.id.split('-').at(-1) ?? 0"
        return int(await self._page.evaluate(newest))

    async def measure(self, began: float) -> dict[str, Any]:
        """The figures now, after a collection."""
        await self._cdp.send("HeapProfiler.collectGarbage")
        await self._cdp.send("HeapProfiler.collectGarbage")  # the first one only finds what finalizers let go of
        read = await self._cdp.send("Performance.getMetrics")
        metrics = {each["name"]: each["value"] for each in read["metrics"]}
        return {
            "minute": round((time.monotonic() - began) / 60, 1),
            "heap_mb": round(metrics["JSHeapUsedSize"] / 1e6, 2),
            "nodes": int(metrics["Nodes"]),
            "listeners": int(metrics["JSEventListeners"]),
            "step": await self.newest_step(),
            "steps_in_page": await self._page.locator("#transcript .step").count(),
        }

    async def follow(self, seconds: float) -> None:
        """Leave the page alone for so long; it must show new steps meanwhile.

        Raises:
            RuntimeError: it shows no new step for two minutes.
        """
        end, newest, changed = time.monotonic() + seconds, await self.newest_step(), time.monotonic()
        while (now := time.monotonic()) < end:
            await asyncio.sleep(min(5.0, end - now))
            if (found := await self.newest_step()) != newest:
                newest, changed = found, time.monotonic()
            elif now - changed > SECONDS_FOR_STEP:
                raise RuntimeError(f"the page shows no step after {newest} for {SECONDS_FOR_STEP} s")


async def measure(minutes: float) -> list[dict[str, Any]]:
    """The figures of the start, each minute and the end."""
    program = await install_chromium()
    async with temporal_server() as temporal:
        environment = environment_of(temporal)
        async with (
            worker_process("tests.support.console_agents", "agents", temporal, **environment),
            serve_process(environment) as (_, port),
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
            browser(program) as running,
        ):
            body = {"id": RUN, "agent": "narrator", "prompt": "Tell me of the tea shop."}
            (await http.post("/api/runs", json=body)).raise_for_status()
            page = await FollowedPage.open(running, f"http://127.0.0.1:{port}/console/runs/{RUN}")
            await page.until_first_step()
            began = time.monotonic()
            figures = [await page.measure(began)]
            while (left := 60 * minutes - (time.monotonic() - began)) > 1:
                await page.follow(min(60.0, left))
                figures.append(await page.measure(began))
                print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
            await http.post(f"/api/runs/{RUN}/cancel")
            return figures


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.minutes)), indent=2))


if __name__ == "__main__":
    main()
