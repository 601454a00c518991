"""What people do in the console with runs, and what it says of them, each compared with what Temporal says."""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from mulligan.client.read_run import read_steps
from mulligan.client.start_run import read_input
from mulligan.prices import Prices
from mulligan.values import Usage
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.console_browser import TOKENS, cancel, signed_in, start, until_waiting
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab

QUEUE = "console-actions"


@pytest.fixture(scope="module")
async def door(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    loaded, prices = load(["tests.support.console_agents"]), tmp_path_factory.mktemp("prices") / "prices.json"
    prices.write_text('{"models": {"scripted:late-mistake": {"input": 0.0, "output": 1000.0}}}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_PRICES", str(prices))
        async with (
            running_worker(lab.client, loaded, lab.telemetry, QUEUE),
            http_server(lab.client, tokens=TOKENS, task_queue=QUEUE) as served,
        ):
            yield served


@pytest.fixture(scope="module")
async def late_mistake(door: Door) -> str:
    """A run of many steps that has ended."""
    run_id = await start(door, "late-mistake")
    await door.ended(run_id, door.by("ada"))
    return run_id


async def is_open(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).status == WorkflowExecutionStatus.RUNNING


async def test_a_run_is_started_with_limits_resumed_sent_a_message_and_stopped(
    chromium: Browser, door: Door, lab: Lab
) -> None:
    """Each by its form; each changes the run in Temporal as the form says."""
    run_id = f"by-hand-{uuid.uuid4().hex[:6]}"
    run = lab.client.get_workflow_handle(run_id)
    async with signed_in(chromium, door) as page:
        await page.goto("/")
        await page.get_by_role("link", name="Start a run").first.click()
        await page.get_by_label("Agent").select_option("support-desk")
        await page.get_by_label("Prompt").fill("Help Ada.")
        await page.get_by_text("Limits and more").click()
        fields = {"Steps": "3", "Tokens": "90000", "Cost": "1.5", "Priority": "2", "Id": run_id}
        for label, value in fields.items():
            await page.get_by_label(label).fill(value)
        await page.get_by_role("button", name="Start", exact=True).click()
        await page.wait_for_url(f"**/console/runs/{run_id}")
        await expect(page.locator("#summary > .heading .status")).to_contain_text("max steps")
        result = await run.result()
        assert (result["status"], result["steps"]) == ("max_steps", 3)
        given = await read_input(lab.client, run.id)
        assert given is not None
        assert (given.agent, given.prompt, given.max_steps) == ("support-desk", "Help Ada.", 3)
        assert (given.max_total_tokens, given.max_cost, given.priority) == (90_000, 1.5, 2)

        await page.get_by_label("Steps at most").fill("20")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.get_by_text("waits for approval")).to_be_visible()
        resumed = lab.client.get_workflow_handle(page.url.rpartition("/")[2])
        given = await read_input(lab.client, resumed.id)
        assert given is not None
        assert given.carried.origin is not None
        assert (given.carried.origin.workflow_id, given.max_steps) == (run_id, 20)
        await expect(page.locator("#summary").get_by_role("link", name=run_id, exact=True)).to_be_visible()

        await page.get_by_label("Send a message to the agent").fill("Ada has moved to Leeds.")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("The message was sent")).to_be_visible()
        [call] = await resumed.query("pending")
        await resumed.execute_update("decide", {"call_id": call["call_id"], "decision": "approve"})
        await expect(page.locator("#transcript").get_by_text("Ada has moved to Leeds.")).to_be_visible()
        messages = (await resumed.query("messages", args=[0, 100]))["messages"]
        assert [each["role"] for each in messages if each.get("text") == "Ada has moved to Leeds."] == ["user"]

        await page.get_by_role("link", name="Stop …").click()
        await page.get_by_role("link", name="Back").click()
        assert await is_open(resumed)
        await page.get_by_role("link", name="Stop …").click()
        await page.get_by_label("Reason").fill("Ada has called.")
        await page.get_by_role("button", name="Stop the run").click()
        result = await resumed.result()
        assert (result["status"], result["reason"]) == ("stopped", "Ada has called.")


async def test_a_run_is_cancelled_only_after_a_confirmation(chromium: Browser, door: Door, lab: Lab) -> None:
    run_id = await start(door, "hostile")
    await until_waiting(door, run_id)
    run = lab.client.get_workflow_handle(run_id)
    async with signed_in(chromium, door) as page:
        await page.goto(f"/console/runs/{run_id}")
        await page.get_by_role("link", name="Cancel …").click()
        await expect(page.get_by_text("This cannot be undone")).to_be_visible()
        await page.get_by_role("link", name="Back").click()
        await expect(page.locator("#summary > .heading .status")).to_contain_text("waiting")
        assert await is_open(run)
        await page.get_by_role("link", name="Cancel …").click()
        await page.get_by_role("button", name="Cancel the run").click()
        await expect(page.locator("#summary > .heading .status")).to_contain_text("cancelled")
        assert (await run.describe()).status == WorkflowExecutionStatus.CANCELED


async def filtered(page: Page, fields: dict[str, str], expected: set[str]) -> None:
    """Fill in the filters: they are in the URL, and the list that is behind it has the expected runs."""
    await page.goto("/")
    for label, value in fields.items():
        field = page.get_by_label(label)
        await (field.select_option(value) if label in ("Agent", "Status") else field.fill(value))
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**/?*")
    assert set(fields.values()) <= set(re.findall(r"=([^&]+)", page.url))
    await is_listed(page, fields, expected)


async def is_listed(page: Page, fields: dict[str, str], expected: set[str]) -> None:
    listed = page.locator("table.runs tbody th a")
    for label, value in fields.items():
        await expect(page.get_by_label(label)).to_have_value(value)
    await expect(listed).to_have_count(len(expected))
    assert set(await listed.all_inner_texts()) == expected


async def test_each_filter_of_the_runs_is_in_the_url_and_the_list_is_live(
    chromium: Browser, door: Door, lab: Lab
) -> None:
    group = f"listed-{uuid.uuid4().hex[:6]}"
    done, waits, other = f"{group}-done", f"{group}-waits", f"{group}-other"
    inputs: list[tuple[str, dict[str, Any]]] = [
        (done, {"agent": "teller"}),
        (waits, {"agent": "hostile"}),
        (other, {"agent": "teller", "tenant": "leeds"}),
    ]
    for run_id, fields in inputs:
        body = {"id": run_id, "prompt": "Go.", **fields}
        answer = await door.http.post("/api/runs", json=body, headers=door.by("bob" if "tenant" in fields else "ada"))
        assert answer.status_code == 201, answer.text
    await lab.client.get_workflow_handle(done).result()
    await lab.client.get_workflow_handle(other).result()
    began = (await lab.client.get_workflow_handle(waits).describe()).start_time.isoformat()
    days = [(datetime.now(UTC) + timedelta(days=days)).date().isoformat() for days in (-1, 1)]
    async with signed_in(chromium, door, "bob") as page:
        listed = page.locator("table.runs tbody th a")
        among = {"Id begins with": group}
        await filtered(page, among, {other, waits, done})
        await page.reload()
        await is_listed(page, among, {other, waits, done})
        await page.get_by_role("link", name="Runs").first.click()
        await page.wait_for_url("**/")
        await filtered(page, {"Id begins with": waits}, {waits})
        await filtered(page, {"Agent": "hostile", **among}, {waits})
        await filtered(page, {"Agent": "teller", **among}, {other, done})
        await filtered(page, {"Status": "waiting", **among}, {waits})
        await filtered(page, {"Status": "completed", **among}, {other, done})
        await filtered(page, {"Tenant": "leeds", **among}, {other})
        await filtered(page, {"Started from": days[0], "Before": days[1], **among}, {other, waits, done})
        await filtered(page, {"Started from": days[1], **among}, set())
        await filtered(page, {"Before": days[0], **among}, set())
        for name, expected in (("since", {other, waits}), ("until", {done})):
            await page.goto(f"/?id={group}&{name}={began.replace('+', '%2B')}")
            await expect(listed).to_have_count(len(expected))
            assert set(await listed.all_inner_texts()) == expected

        await page.goto(f"/?id={group}")
        await page.evaluate("window.isTheSamePage = true")
        await lab.client.get_workflow_handle(waits).cancel()
        await expect(page.get_by_role("row", name=waits)).to_contain_text("cancelled")
        body = {"id": f"{group}-new", "agent": "hostile", "prompt": "Go."}
        assert (await door.http.post("/api/runs", json=body, headers=door.by("ada"))).status_code == 201
        await expect(page.get_by_role("row", name=f"{group}-new")).to_contain_text("waiting")
        assert await page.evaluate("window.isTheSamePage")
    await cancel(door, f"{group}-new")


async def test_an_agents_day_has_the_numbers_of_its_runs_for_a_screen_reader_too(
    chromium: Browser, door: Door, lab: Lab
) -> None:
    """Runs by status, and recovered failures by tool and kind. A call that failed its run, or was stopped, is none of them."""
    group = uuid.uuid4().hex[:6]
    prompts = {"go": "completed", "again": "completed", "break": "failed", "ask": "stopped"}
    for prompt in prompts:
        body = {"id": f"{prompt}-{group}", "agent": "misreader", "prompt": prompt}
        assert (await door.http.post("/api/runs", json=body, headers=door.by("ada"))).status_code == 201
    await until_waiting(door, f"ask-{group}")
    await lab.client.get_workflow_handle(f"ask-{group}").execute_update("stop", {})
    recovered, failures = 0, Counter[tuple[str, str]]()
    for prompt, status in prompts.items():
        handle = lab.client.get_workflow_handle(f"{prompt}-{group}")
        assert (await door.ended(handle.id, door.by("ada")))["status"] == status
        recovered += (await handle.query("progress"))["recovered_failures"]
        for step in (await read_steps(lab.client, handle))[:2]:
            for call in step["tool_calls"]:
                failures[call["name"], call["result"]["error"]["kind"]] += 1
    assert recovered == failures.total() == 16
    async with signed_in(chromium, door) as page:
        await page.goto("/")
        await page.get_by_role("link", name="Agents").click()
        agents = page.get_by_role("table", name="Agents")
        await agents.get_by_role("link", name="misreader").click()
        day = page.get_by_role("region", name="The last 24 hours")
        read = await day.aria_snapshot()
        numbers = re.findall(r'- term: (.+)\n +- definition:(?:\n +- link)? "(\d+)"', read)
        assert dict(numbers) == {
            "Runs": "4",
            "completed": "2",
            "failed": "1",
            "stopped": "1",
            "Recovered failures": "16",
        }
        chart = page.get_by_role("table", name="The models' mistakes by tool and kind")
        for (tool, kind), count in failures.items():
            await expect(chart.get_by_role("row", name=f"{tool} {kind} {count}", exact=True)).to_be_visible()
        assert await chart.get_by_role("row").count() == 1 + len(failures)
        widths = [
            float(each.strip("%") or 0)
            for each in await chart.locator("rect").evaluate_all(
                "(bars) => bars.map((bar) => bar.getAttribute('width'))"
            )
        ]
        assert widths == [100 * count / max(failures.values()) for _, count in failures.most_common()]


async def test_the_count_of_recovered_failures_leads_to_the_first_on_whichever_page_it_is(
    chromium: Browser, door: Door, late_mistake: str
) -> None:
    """From the list, and from the page of a run."""
    run_id = late_mistake
    link = re.compile("show the first recovered failure")
    async with signed_in(chromium, door) as page:
        for path in (f"/?id={run_id}", f"/console/runs/{run_id}"):
            await page.goto(path)
            await page.get_by_role("link", name=link).first.click()
            await page.wait_for_url(f"**/console/runs/{run_id}?page=2#step-70-call-2")
            await expect(page.locator(":target .mistake")).to_contain_text("cannot be said")
            await expect(page.locator(":target")).to_be_in_viewport()
    assert (await door.http.get(f"/console/runs/{run_id}-not/first-failure", headers=door.by("ada"))).status_code == 404


async def test_the_most_expensive_step_is_named_and_linked(
    chromium: Browser, door: Door, lab: Lab, late_mistake: str
) -> None:
    """By the price of its model and the tokens that it used."""
    run_id = late_mistake
    steps = (await read_steps(lab.client, lab.client.get_workflow_handle(run_id)))[50:]
    price = Prices.load(os.environ["MULLIGAN_PRICES"]).of("scripted:late-mistake")
    assert price is not None
    costs = [price.of(Usage.model_validate(step["usage"])) or 0.0 for step in steps]
    dearest = 51 + costs.index(max(costs))
    assert costs.count(max(costs)) == 1
    async with signed_in(chromium, door) as page:
        await page.goto(f"/console/runs/{run_id}")
        named = page.locator("#summary .numbers > div", has_text="Most expensive step of this page")
        await expect(named).to_contain_text(f"{dearest} · ${max(costs):.4f}")
        await named.get_by_role("link").click()
        assert await page.evaluate("document.querySelector(':target').id") == f"step-{dearest}"
