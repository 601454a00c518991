"""What somebody who looks, or has to decide, sees in the console: tasks, what a call is about, whose mistake it was, costs."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.cashier_agents import AGENTS, SCRIPTS, moved, mover_script
from tests.support.command_fixtures import Run
from tests.support.console_browser import TOKENS, axe_core, cancel, check_accessible, signed_in, start, until_waiting
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn

QUEUE = "console-sees"
PHONE: Any = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
async def door(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    prices = tmp_path_factory.mktemp("prices") / "prices.json"
    prices.write_text('{"models": {"scripted:cashier": {"input": 0.0, "output": 1000.0}}}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_PRICES", str(prices))
        async with (
            running_worker(lab.client, load_agents(AGENTS, SCRIPTS), lab.telemetry, QUEUE),
            http_server(lab.client, tokens=TOKENS, task_queue=QUEUE) as served,
        ):
            yield served


async def send(door: Door, run_id: str, path: str, **body: Any) -> None:
    answer = await door.http.post(f"/api/runs/{run_id}/{path}", json=body, headers=door.by("ada"))
    assert answer.is_success, answer.text


async def ended(door: Door, run_id: str) -> dict[str, Any]:
    return await door.ended(run_id, door.by("ada"))


async def look(page: Page, selector: str, style: str) -> str:
    read: str = await page.locator(selector).first.evaluate(f"(each) => getComputedStyle(each).{style}")
    return read


# Runs


async def test_a_run_is_listed_with_its_task_and_who_started_it(chromium: Browser, door: Door, lab: Lab) -> None:
    """The first line of the prompt, and the user. The same is in the JSON of the list. An error is below the status."""
    waits = await start(door, "cashier", "\n  Pay Ada back.  \nHer letter says more.")
    failed = await start(door, "broken", "Sign the lease.")
    await until_waiting(door, waits)
    await ended(door, failed)
    async with signed_in(chromium, door) as page:
        await page.goto("/")
        row = page.get_by_role("row", name=waits)
        await expect(row.get_by_role("rowheader").locator(".task")).to_have_text("Pay Ada back.")
        await expect(row.get_by_role("rowheader").locator(".sub")).to_have_text("cashier · by ada")
        await expect(row.get_by_role("cell").last).to_contain_text("approval of “refund”")
        row = page.get_by_role("row", name=failed)
        await expect(row.get_by_role("cell").first).to_contain_text("ToolExecutionError")
        await expect(row.get_by_role("cell").first).to_contain_text("There is no pen.")
        await expect(row.get_by_role("cell").last).to_have_text("–")
    listed = await door.http.get(f"/api/runs?id_prefix={waits}", headers=door.by("ada"))
    [run] = [run for run in listed.json()["runs"] if run["id"] == waits]
    assert (run["prompt"], run["user"]) == ("Pay Ada back.", "ada")
    await cancel(door, waits)


async def test_runs_are_filtered_by_an_agent_of_a_list(chromium: Browser, door: Door) -> None:
    """The agents that the workers serve; one that only an ended run has is kept from the URL."""
    async with signed_in(chromium, door) as page:
        await page.goto("/")
        options, names = page.get_by_label("Agent").locator("option"), {each.name for each in AGENTS}
        # The page does not wait for workers that are slow to say what they serve; other tests' workers may serve more.
        while not names <= {*(shown := await options.all_inner_texts())}:
            await page.reload()
        assert shown == ["any", *sorted(shown[1:])]
        await page.goto("/?agent=retired")
        await expect(page.get_by_label("Agent")).to_have_value("retired")


@pytest.mark.parametrize("with_scripts", [True, False])
async def test_filters_fold_away_on_a_phone_only(chromium: Browser, door: Door, with_scripts: bool) -> None:
    """The first run is on the first screen, the fields are a tap away, and the button says by what the list is filtered."""
    run_id = await start(door, "cashier")
    await until_waiting(door, run_id)
    async with signed_in(chromium, door, viewport=PHONE, java_script_enabled=with_scripts) as page:
        await page.goto("/")
        await expect(page.get_by_role("link", name=run_id, exact=True)).to_be_in_viewport()
        field, folded = page.get_by_label("Status"), page.locator("details.folds > summary")
        await expect(field).to_be_hidden()
        await folded.click()
        await field.select_option("waiting")
        await page.get_by_role("button", name="Filter").click()
        await page.wait_for_url("**/?*")
        await expect(field).to_be_hidden()
        await expect(folded).to_have_text("Filter: waiting")
        await page.set_viewport_size({"width": 1280, "height": 900})
        await expect(folded).to_be_hidden()
        await expect(field).to_be_visible()
        await field.focus()
        await expect(field).to_be_focused()
    await cancel(door, run_id)


async def test_the_page_of_runs_answers_head(door: Door) -> None:
    """As a check of a load balancer asks, with and without a session."""
    answer = await door.http.head("/", headers=door.by("ada"))
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/html")
    answer = await door.http.head("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in?next=/")


# Decide


async def test_a_decision_shows_what_it_is_about(chromium: Browser, door: Door) -> None:
    """The task, the message that led to the call, the model's own text, the tool's description, the arguments by name."""
    run_id = await start(door, "cashier", "Ada writes: the teapot is broken.")
    await until_waiting(door, run_id)
    async with signed_in(chromium, door, viewport=PHONE) as page:
        await page.goto(f"/console/decide?run={run_id}")
        card = page.get_by_role("article")
        await expect(card.get_by_label("Task of the run")).to_have_text("Ada writes: the teapot is broken.")
        await expect(card.get_by_label("What the agent said")).to_have_text("Order 7 came broken, so it is paid back.")
        await expect(card.get_by_text("Message that led to it")).to_have_count(0)
        await expect(card).to_contain_text("Give money back to the customer of an order, at once and for good.")
        arguments = card.get_by_label("What the model asks for")
        assert await arguments.locator("dt").all_inner_texts() == ["order", "amount"]
        assert await arguments.locator("dd").all_inner_texts() == ["7", "40.0"]

        await send(door, run_id, "messages", text="Five euros are enough.")
        [call] = (await door.http.get(f"/api/runs/{run_id}/pending", headers=door.by("ada"))).json()
        await send(door, run_id, "decisions", call_id=call["call_id"], decision="deny")
        await until_waiting(door, run_id, step=2)
        await page.reload()
        await expect(card.get_by_label("Message that led to it")).to_have_text("Five euros are enough.")
        await expect(card.get_by_label("What the agent said")).to_have_text("Then five euros, as you wish.")
        await expect(card.get_by_label("Task of the run")).to_have_text("Ada writes: the teapot is broken.")
    await cancel(door, run_id)


async def test_calls_that_ask_for_the_same_can_be_told_apart(chromium: Browser, door: Door) -> None:
    """Each says that there are others, which ones, and of which task it is."""
    runs = [await start(door, "cashier", prompt) for prompt in ("The first letter.", "The second letter.")]
    for run_id in runs:
        await until_waiting(door, run_id)
    async with signed_in(chromium, door) as page:
        await page.goto("/console/decide")
        cards = [page.get_by_role("article", name=f"refund of {run_id}, step 1") for run_id in runs]
        for card, run_id, other, letter in zip(cards, runs, reversed(runs), ("first", "second"), strict=True):
            await expect(card).to_contain_text("The same tool with the same arguments waits 2 times.")
            await expect(card).to_contain_text(f"step 1 of {run_id}; the others:")
            await expect(card.get_by_label("Task of the run")).to_have_text(f"The {letter} letter.")
            await card.get_by_role("link", name=f"step 1 of {other}").click()
            await expect(page.get_by_role("article", name=f"refund of {other}, step 1")).to_be_in_viewport()
        await cards[0].get_by_role("button", name="Deny").click()
        await expect(page.get_by_text("refund was denied")).to_be_visible()
        await expect(cards[1]).to_be_visible()
        await expect(cards[1].get_by_text("The same tool with the same arguments")).to_have_count(0)
    await cancel(door, *runs)


async def test_the_navigation_counts_what_waits(chromium: Browser, lab: Lab) -> None:
    """On each page, as it changes, for whoever looks; a screen reader hears what the number is."""
    queue = f"counted-{uuid.uuid4().hex[:6]}"
    tokens = "ada:token-of-ada,zoe:token-of-zoe"
    async with (
        running_worker(lab.client, load_agents(AGENTS, SCRIPTS), lab.telemetry, queue),
        http_server(lab.client, tokens=tokens, task_queue=queue) as served,
    ):
        async with signed_in(chromium, served, "zoe") as page:
            await page.goto("/")
            link = page.get_by_role("navigation").get_by_role("link", name=re.compile("Decide"))
            await expect(link).to_have_text("Decide")
            runs = [f"counted-{uuid.uuid4().hex[:6]}" for _ in range(2)]
            for run_id in runs:
                body = {"agent": "cashier", "prompt": "Pay.", "id": run_id}
                await served.http.post("/api/runs", json=body, headers=served.by("zoe"))
            await expect(link).to_have_accessible_name("Decide 2 waiting")
            for path in ("/console/agents", "/console/start", f"/console/runs/{runs[0]}", "/console/decide"):
                await page.goto(path)
                await expect(link.locator(".count")).to_contain_text("2")
            await page.get_by_role("button", name="Deny").first.click()
            await expect(link.locator(".count")).not_to_contain_text("2")
        async with signed_in(chromium, served) as page:
            await page.goto("/")
            await expect(page.get_by_role("navigation").get_by_role("link", name=re.compile("Decide"))).to_be_visible()
            await expect(page.get_by_role("navigation").get_by_role("link", name="Decide 2 waiting")).to_have_count(0)
        for run_id in runs:
            await served.http.post(f"/api/runs/{run_id}/cancel", headers=served.by("zoe"))


# A run


async def test_only_to_go_on_is_the_primary_button(chromium: Browser, door: Door) -> None:
    """Stop and Back look otherwise than Send, Decide and what starts a run."""
    run_id = await start(door, "cashier")
    await until_waiting(door, run_id)
    async with signed_in(chromium, door) as page:
        await page.goto(f"/console/runs/{run_id}")
        primary = await look(page, "button:has-text('Send')", "backgroundColor")
        assert await look(page, "#summary a:has-text('Decide')", "backgroundColor") == primary
        assert await look(page, "a:has-text('Stop …')", "backgroundColor") != primary
        await page.get_by_role("link", name="Stop …").click()
        for each in ("button:has-text('Stop the run')", "a:has-text('Back')"):
            assert await look(page, each, "backgroundColor") != primary
    await cancel(door, run_id)


async def test_what_is_no_mistake_of_the_model_is_not_called_one(chromium: Browser, door: Door) -> None:
    """A tool that raised, and one that no worker took: neither in the transcript, nor in the picture, nor in the count of
    the agents' page; no later call corrects them. The same run has a mistake, which is corrected. Its question is there once.
    """
    run_id = await start(door, "unlucky")
    await until_waiting(door, run_id)
    async with signed_in(chromium, door) as page:
        await page.goto(f"/console/runs/{run_id}")
        calls = page.locator("#step-1 .call")
        for call, kind in zip(await calls.all(), ("tool_exception", "tool_lost"), strict=False):
            await expect(call).to_contain_text(f"Failed: {kind}")
            await expect(call).to_contain_text("No mistake of the model")
            await expect(call.get_by_text("Mistake:")).to_have_count(0)
            await expect(call.get_by_text("Corrected in")).to_have_count(0)
        await expect(calls.nth(2)).to_contain_text("Mistake: invalid_arguments")
        await calls.nth(2).get_by_role("link", name="Corrected in step 2").click()
        assert await page.evaluate("document.querySelector(':target').id") == "step-2-call-2"
        await expect(page.get_by_text("Shall I try the bank again?")).to_have_count(1)

        await page.goto("/console/agents/unlucky")
        rows = page.get_by_role("table", name="The models' mistakes by tool and kind").get_by_role("row")
        assert [await row.inner_text() for row in (await rows.all())[1:]] == ["look_up\tinvalid_arguments\t1\t"]
        rows = page.get_by_role("table", name="Other recovered failures by tool and kind").get_by_role("row")
        others = sorted([await row.inner_text() for row in (await rows.all())[1:]])
        assert others == ["call_bank\ttool_lost\t1\t", "fetch_rate\ttool_exception\t1\t"]
        misunderstood = "its description or schema is what the models misunderstand"
        await expect(page.get_by_text(misunderstood)).to_have_count(1)
    await cancel(door, run_id)


async def test_a_call_whose_tool_is_gone_warns_and_is_not_corrected_by_another_call(
    chromium: Browser, lab: Lab, mulligan: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """In `pending`, in `approve`, on the page and in the log: an approved refund whose tool has another name is not paid."""
    queue, warning = f"moved-{uuid.uuid4().hex[:6]}", "The tool `refund` is gone: the agent `mover` does not have it"
    async with http_server(lab.client, tokens=TOKENS, task_queue=queue) as served:
        async with running_worker(lab.client, load_agents(AGENTS, SCRIPTS), lab.telemetry, queue):
            run_id = await start(served, "mover")
            await until_waiting(served, run_id)
            [call] = (await served.http.get(f"/api/runs/{run_id}/pending", headers=served.by("ada"))).json()
            assert "warning" not in call or call["warning"] is None
            assert warning not in (await mulligan("pending", run_id)).out
        async with (
            running_worker(lab.client, load_agents([moved], [mover_script]), lab.telemetry, queue),
            signed_in(chromium, served) as page,
        ):
            await page.goto(f"/console/decide?run={run_id}")
            await expect(page.get_by_role("article")).to_contain_text(
                "! The tool “refund” is gone: the agent “mover” does not"
            )
            [call] = (await served.http.get(f"/api/runs/{run_id}/pending", headers=served.by("ada"))).json()
            assert call["warning"].startswith(warning)
            told = await mulligan("pending", run_id, COLUMNS="400")
            assert warning in told.out
            with caplog.at_level(logging.WARNING):
                approved = await mulligan("approve", run_id, call["call_id"])
                assert (approved.code, warning in approved.err) == (0, True), approved.err
                assert (await ended(served, run_id))["status"] == "completed"
            logged = f"The tool 'refund' is gone: the valid call {call['call_id']} of mover, approved by "
            assert len([each for each in caplog.messages if each.startswith(logged)]) == 1
            await page.goto(f"/console/runs/{run_id}")
            gone = page.locator("#step-1-call-1")
            await expect(gone).to_contain_text("Failed: unknown_tool")
            await expect(page.get_by_text("Corrected in")).to_have_count(0)
            await expect(page.get_by_text("Mistake:")).to_have_count(0)
            await page.goto("/console/agents/mover")
            await expect(page.get_by_role("table", name="The models' mistakes by tool and kind")).to_have_count(0)


# Agents


async def test_the_agents_are_listed_with_servers_output_and_sub_agents(chromium: Browser, door: Door) -> None:
    async with signed_in(chromium, door) as page:
        await page.goto("/console/agents")
        table = page.get_by_role("table", name="Agents")
        row = table.get_by_role("row", name="bookkeeper")
        await expect(row).to_contain_text("MCP servers: ledger, mail")
        await expect(row).to_contain_text("sub-agents: cashier")
        await expect(row.get_by_role("cell").nth(2)).to_have_text("Receipt")
        await expect(table.get_by_role("row", name="biller").get_by_role("cell").nth(1)).to_contain_text("those of MCP")
        await expect(table.get_by_role("row", name="chooser").get_by_role("cell").nth(1)).to_contain_text(
            "tools_of_run"
        )
        await expect(table.get_by_role("row", name="cashier scripted").get_by_role("cell").nth(2)).to_have_text("text")
        await table.get_by_role("link", name="bookkeeper").click()
        tools = page.get_by_role("region", name="Tools")
        await expect(tools).to_contain_text("ledger__read_entry")
        await expect(tools).to_contain_text("http://127.0.0.1:9/mcp: all of its tools, without delete")
        await expect(tools.get_by_text("It has no tools.")).to_have_count(0)
        declared = page.get_by_role("region", name="How it is declared")
        await expect(declared.get_by_text("JSON schema of the output Receipt")).to_be_visible()
        await declared.get_by_role("link", name="cashier").click()
        await expect(page.get_by_role("heading", name="cashier")).to_be_visible()


async def test_an_agents_day_has_its_cost_and_an_unknown_price_is_said(
    chromium: Browser, lab: Lab, mulligan: Run
) -> None:
    """The cost of its runs in Temporal, on both pages. A run without a price is not shown as free: in the list, on its page,
    among the agents, in `show`.
    """
    queue, tokens = f"costs-{uuid.uuid4().hex[:6]}", "ada:token-of-ada"
    async with (
        running_worker(lab.client, load_agents(AGENTS, SCRIPTS), lab.telemetry, queue),
        http_server(lab.client, tokens=tokens, task_queue=queue) as served,
    ):
        free = f"unpriced-{uuid.uuid4().hex[:6]}"
        lab.model.script(free, [Turn(text="Hello."), DONE])
        body = {"agent": "chooser", "prompt": "Hello?", "id": free, "model": f"openai-chat:{free}"}
        assert (await served.http.post("/api/runs", json=body, headers=served.by("ada"))).status_code == 201
        assert (await ended(served, free))["result"].get("cost") is None
        async with signed_in(chromium, served) as page:
            await page.goto(f"/?id={free}")
            await expect(page.get_by_role("row", name=free)).to_contain_text("price unknown")
            await page.goto(f"/console/runs/{free}")
            await expect(page.locator("#summary .numbers > div", has_text="Cost")).to_contain_text("price unknown")
            await expect(page.locator("#step-1 .meta").first).to_contain_text("price unknown")
            for path in ("/console/agents", "/console/agents/chooser"):
                await page.goto(path)
                await expect(page.get_by_role("main")).to_contain_text("price unknown")
        shown = await mulligan("show", free)
        assert "price unknown" in shown.out + shown.err


async def test_the_cost_of_a_day_is_that_of_the_runs(chromium: Browser, door: Door) -> None:
    run_id = await start(door, "cashier")
    await until_waiting(door, run_id)
    await cancel(door, run_id)
    await ended(door, run_id)
    listed = (await door.http.get("/api/runs?agent=cashier&limit=100", headers=door.by("ada"))).json()["runs"]
    infos = [(await door.http.get(f"/api/runs/{run['id']}", headers=door.by("ada"))).json() for run in listed]
    costs = [info["result"]["cost"] if info.get("result") else info["progress"]["cost"] for info in infos]
    assert sum(costs) > 0
    cost = f"${sum(costs):.4f}"
    async with signed_in(chromium, door) as page:
        await page.goto("/console/agents")
        row = page.get_by_role("table", name="Agents").get_by_role("row", name="cashier scripted")
        await expect(row).to_contain_text(cost)
        await page.goto("/console/agents/cashier")
        await expect(page.get_by_role("region", name="The last 24 hours")).to_contain_text(cost)


# All of it


async def test_what_is_seen_breaks_no_rule_of_accessibility(chromium: Browser, door: Door) -> None:
    """Equal calls, failures and mistakes, an error in the list, an agent with servers; each a desktop and a phone wide, light
    and dark.
    """
    axe = await axe_core()
    runs = [await start(door, agent) for agent in ("cashier", "cashier", "unlucky", "broken")]
    for run_id in runs[:3]:
        await until_waiting(door, run_id)
    await ended(door, runs[3])
    paths = ["/", "/?status=waiting", "/console/decide", f"/console/runs/{runs[2]}", "/console/agents"]
    async with signed_in(chromium, door, bypass_csp=True) as page:
        for path in [*paths, "/console/agents/bookkeeper", "/console/agents/unlucky"]:
            await check_accessible(page, axe, path)
    await cancel(door, *runs[:3])


async def test_a_refund_is_found_understood_and_denied_with_the_keyboard(chromium: Browser, door: Door) -> None:
    """From the list, over the filters and the count in the navigation, to the reason; each control in its turn."""
    run_id = await start(door, "cashier", "Ada writes: the teapot is broken.")
    await until_waiting(door, run_id)
    async with signed_in(chromium, door) as page:
        await page.goto(f"/?id={run_id}")
        await page.get_by_label("Agent").focus()
        for label in ("Status", "Id begins with"):
            await page.keyboard.press("Tab")
            await expect(page.get_by_label(label)).to_be_focused()
        decide = page.get_by_role("navigation").get_by_role("link", name=re.compile("Decide"))
        await decide.focus()
        await page.keyboard.press("Enter")
        card = page.get_by_role("article", name=f"refund of {run_id}")
        await card.get_by_role("link", name=run_id).focus()
        await page.keyboard.press("Tab")
        await expect(card.get_by_text("Edit the arguments")).to_be_focused()
        await page.keyboard.press("Tab")
        await page.keyboard.type("Ask for a photo.")
        await page.keyboard.press("Tab")
        await expect(card.get_by_label("Next time")).to_be_focused()
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await expect(card.get_by_role("button", name="Deny")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("refund was denied")).to_be_visible()
    await cancel(door, run_id)
