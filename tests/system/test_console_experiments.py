"""The console for those who run things again: a fork from a step, two runs side by side, and experiments."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from mulligan.client.experiments.start_experiment import start_experiment
from mulligan.client.read_run import read_steps
from mulligan.client.start_run import read_input
from mulligan.wire.experiments import ExperimentContent
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.console_browser import TOKENS, axe_core, check_accessible, signed_in
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab, call
from tests.support.openai_turn import Turn, Usage
from tests.system.features.test_serve_console import visitor

QUEUE = "console-experiments"
BOOKED = [call("book", '{"place": 1}', "c1"), Turn(text="Place 1 is yours.")]


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.support.experiment_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, tokens=TOKENS, task_queue=QUEUE) as served,
    ):
        yield served


async def booked(lab: Lab, folder: Path) -> str:
    """A run of Ada's that has booked; returns its id."""
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, QUEUE)
    given: dict[str, Any] = {"metadata": {"bookings": str(folder / "bookings")}, "tenant": "ada"}
    return (await at.run(BOOKED, agent="booker", **given)).id


async def compared(lab: Lab, folder: Path) -> tuple[str, str]:
    """A run, and the experiment in which it answers otherwise."""
    run_id, name = await booked(lab, folder), f"exp-{uuid.uuid4().hex[:6]}"
    lab.model.script(run_id, [BOOKED[0], Turn(text="Place 1 is taken.")])
    content = ExperimentContent(runs=[run_id], fork={"at": 1})
    options = {"name": name, "concurrency": 1, "score": "tests.support.experiment_agents:marks"}
    await (await start_experiment(lab.client, content, options, QUEUE)).result()
    return run_id, name


async def test_versions_have_a_column_each(chromium: Browser, door: Door, lab: Lab, tmp_path: Path) -> None:
    """An agent that Python declares has one version: a row that cannot be says so in its column."""
    run_id, name = await booked(lab, tmp_path), f"exp-{uuid.uuid4().hex[:6]}"
    options = {"name": name, "concurrency": 1, "versions": ["current", "stable"]}
    content = ExperimentContent(runs=[run_id], fork={"at": 1})
    await (await start_experiment(lab.client, content, options, QUEUE)).result()
    async with signed_in(chromium, door, "bob") as page:
        await page.goto(f"{door.url}/console/experiments/{name}")
        await expect(page.get_by_role("columnheader")).to_have_text(["Began with", "current", "stable"])
        cells = page.get_by_role("row").nth(1).get_by_role("cell")
        await expect(cells.nth(0)).to_contain_text("same")
        await expect(cells.nth(0).get_by_role("link", name=f"{name}-1", exact=True)).to_be_visible()
        await expect(cells.nth(1)).to_contain_text("which has no version but")
        await expect(page.get_by_text("mean of same (current): 1 · mean of same (stable): 0")).to_be_visible()
        await check_accessible(page, await axe_core(), f"/console/experiments/{name}")


@pytest.mark.parametrize("with_scripts", [True, False], ids=["scripts", "no scripts"])
async def test_an_experiment_leads_to_both_runs_and_to_what_differs(
    chromium: Browser, door: Door, lab: Lab, tmp_path: Path, with_scripts: bool
) -> None:
    run_id, name = await compared(lab, tmp_path)
    async with signed_in(chromium, door, "bob", java_script_enabled=with_scripts) as page:
        await page.goto("/")
        await page.get_by_role("link", name="Experiments").click()
        await page.get_by_role("link", name=name).click()
        row = page.get_by_role("row").nth(1)
        await expect(row).to_contain_text("other")
        await expect(row).to_contain_text("right 0, calls 1")
        await expect(row.get_by_role("link", name=run_id, exact=True)).to_have_attribute(
            "href", f"/console/runs/{run_id}"
        )
        await row.get_by_role("link", name=f"side by side: {run_id} and {name}-1").click()
        steps = page.get_by_role("region")
        await expect(steps.filter(has_text="Step 1")).not_to_contain_text("differs")
        await expect(steps.filter(has=page.get_by_role("heading", name="Step 2"))).to_contain_text(
            "Text · left · differs"
        )
        await expect(page.get_by_text("Place 1 is taken.").first).to_be_visible()
        await page.get_by_role("link", name=f"{name}-1").click()
        await page.get_by_role("link", name="side by side").click()
        await expect(page.get_by_role("heading", name="Compare two runs")).to_be_visible()


async def test_what_differs_of_arguments_results_and_costs_is_marked(door: Door, lab: Lab, tmp_path: Path) -> None:
    """In a step that both have, and in those that only one of them has; two equal runs have no mark."""
    run_id = await booked(lab, tmp_path)
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, QUEUE)
    given: dict[str, Any] = {"metadata": {"bookings": str(tmp_path / "bookings")}, "tenant": "ada"}
    first = Turn(calls=[("book", '{"place": 2}')], usage=Usage(input_tokens=99))
    other = await at.run([first, *BOOKED], agent="booker", **given)
    async with visitor(door, "ada") as ada:
        text = await ada.page(f"/console/compare?left={run_id}&right={other.id}")
        assert "differs" not in await ada.page(f"/console/compare?left={run_id}&right={run_id}")
    sections = re.findall(r'<section aria-labelledby="pair-\d+">.*?</section>', text, re.DOTALL)
    labels = [re.findall(r'<p class="label">(.*?)</p>', section) for section in sections]
    marked = [{re.sub("<.*?>", "", each) for each in step if "differs" in each and "left" in each} for step in labels]
    calls = {"Call · left · differs", "Result · left · differs", "Tokens and cost · left · differs"}
    text_only = {"Text · left · differs", "Tokens and cost · left · differs"}
    assert marked == [calls, calls | text_only, text_only]


async def test_a_run_is_forked_by_the_keyboard_alone(chromium: Browser, door: Door, lab: Lab, tmp_path: Path) -> None:
    """On a phone: the link of a step, the fields and the button are reached by Tab, and sent by Enter."""
    run_id = await booked(lab, tmp_path)
    async with signed_in(chromium, door, viewport={"width": 360, "height": 700}) as page:
        await page.goto(f"/console/runs/{run_id}")
        await until_focused(page, "Fork from here: step 2")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Fork from step 2")).to_be_visible()
        await until_focused(page, "A message before the step")
        await page.keyboard.type("Be quick.")
        await until_focused(page, "Fork")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text(f"forked from {run_id} at step 2")).to_be_visible()


async def until_focused(page: Page, name: str) -> None:
    """Press Tab until the element of a name has the focus."""
    said = "(at => at.ariaLabel || at.labels?.[0]?.innerText || at.innerText)(document.activeElement)"
    for _ in range(200):
        await page.keyboard.press("Tab")
        if str(await page.evaluate(said)).startswith(name):
            return
    raise AssertionError(f"{name} cannot be reached.")


async def test_a_run_is_forked_from_a_step_by_a_form(chromium: Browser, door: Door, lab: Lab, tmp_path: Path) -> None:
    """With edits; what is refused is said in the form, which keeps what was written. An operator sees all fields."""
    run_id = await booked(lab, tmp_path)
    async with signed_in(chromium, door, "bob", java_script_enabled=False) as page:
        await page.goto(f"/console/runs/{run_id}")
        await page.get_by_role("link", name="Fork from here: step 2").click()
        await page.get_by_label("A message before the step").fill("Be quick.")
        await page.get_by_label("Another result for").select_option("c1")
        await page.get_by_label("The result as JSON").fill("[")
        await page.get_by_role("button", name="Fork").click()
        await expect(page.get_by_role("alert")).to_contain_text("The other result is not JSON")
        await expect(page.get_by_label("A message before the step")).to_have_value("Be quick.")
        await page.get_by_label("The result as JSON").fill('"Place 9 is booked."')
        await page.get_by_role("button", name="Fork").click()
        await expect(page.get_by_text(f"forked from {run_id} at step 2")).to_be_visible()
        fork_id = page.url.rpartition("/")[2]
        await page.goto(f"/console/runs/{run_id}")
        while not await page.get_by_role("link", name=fork_id, exact=True).count():
            await page.reload()
        await page.get_by_role("link", name=f"side by side: {run_id} and {fork_id}").click()
        await expect(page.get_by_role("heading", name="Compare two runs")).to_be_visible()
        await page.goto(f"/console/runs/{run_id}")
        await page.get_by_role("link", name="All forks").click()
        await expect(page.get_by_role("link", name=fork_id)).to_be_visible()
        await expect(page.get_by_role("link", name=run_id, exact=True)).to_have_count(0)
    steps = await read_steps(lab.client, lab.client.get_workflow_handle(fork_id))
    assert steps[0]["tool_calls"][0]["result"]["text"] == "Place 9 is booked."
    given = await read_input(lab.client, fork_id)
    assert given is not None
    assert given.messages[-1].text == "Be quick."
    async with signed_in(chromium, door) as page:
        await page.goto(f"/console/runs/{run_id}/fork?at=1")
        await expect(page.get_by_label("Another first prompt")).to_be_visible()
        assert await page.get_by_label("Another model").count() == 0
        assert "live" not in await page.get_by_label("Tools").inner_text()


async def test_experiments_are_for_operators_and_comparisons_for_those_who_see_both_runs(
    door: Door, lab: Lab, tmp_path: Path
) -> None:
    run_id, name = await compared(lab, tmp_path)
    async with visitor(door, "ada") as ada:
        assert (await ada.http.get("/console/experiments")).status_code == 403
        assert (await ada.http.get(f"/console/experiments/{name}")).status_code == 403
        assert "Experiments" not in await ada.page("/")
        assert (await ada.http.get(f"/console/compare?left={run_id}&right={name}-1")).status_code == 200
        assert (await ada.http.get(f"/console/compare?left={run_id}&right=nothing")).status_code == 404
    async with visitor(door, "bob") as bob:
        assert (await bob.http.get("/console/experiments/none")).status_code == 404


async def test_its_pages_break_no_rule_of_accessibility(
    chromium: Browser, door: Door, lab: Lab, tmp_path: Path
) -> None:
    run_id, name = await compared(lab, tmp_path)
    axe = await axe_core()
    paths = [
        "/console/experiments",
        f"/console/experiments/{name}",
        f"/console/compare?left={run_id}&right={name}-1",
        f"/console/runs/{run_id}/fork?at=2",
    ]
    async with signed_in(chromium, door, "bob") as page:
        for path in paths:
            await check_accessible(page, axe, path)
