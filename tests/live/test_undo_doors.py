"""Undo by the command, over HTTP and in the console: what they answer, what they refuse, and the example of the page."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mulligan import resume_run
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.live.test_undo import BOOK, FRAGILE, MAIL
from tests.support.app_command import app_command  # noqa: F401 - a fixture
from tests.support.http_server import Door, by, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.undo_agents import lines
from tests.support.undo_fixtures import of, undo_desk, undo_ledger  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
async def at(lab: Lab) -> AsyncIterator[Lab]:
    async with undo_desk(lab) as desk:
        yield desk


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client, tokens="ops:s-1:*,ada:s-2,eve:s-3,ada:s-4:placer,ada:s-5:desk:lead") as served:
        yield served


def ids(listed: dict[str, Any]) -> dict[str, list[str]]:
    states = ("undone", "failed", "not_reached", "no_undo")
    return {state: [each["call_id"] for each in listed[state]] for state in states if listed[state]}


async def test_the_command_lists_what_became_of_each_call(at: Lab, ledger: Path, command: Any) -> None:
    ran = await at.run([BOOK, MAIL, FRAGILE, DONE], **of(ledger))
    broken = ledger.with_suffix(".broken")
    broken.touch()
    code, out, _ = await command("undo", ran.id)
    assert (code, out.splitlines()) == (
        1,
        [
            f"failed: step 3 fragile f1 of {ran.id}: The shop is closed.",
            f"not reached: step 1 book b1 of {ran.id}",
            f"has no undo: step 2 mail m1 of {ran.id}",
        ],
    )
    broken.unlink()
    code, out, _ = await command("undo", ran.id, "--from-step", "3", "--json")
    assert (code, ids(json.loads(out))) == (0, {"undone": ["f1"]})
    code, out, _ = await command("undo", ran.id, "--continue", "--lost", "--json")
    listed = json.loads(out)
    assert (code, listed["status"], listed["error"]) == (0, "completed", None)
    assert ids(listed) == {"undone": ["f1", "b1"], "no_undo": ["m1"]}
    assert listed["undone"][0] == {
        "run": ran.id, "call_id": "f1", "name": "fragile", "agent": "desk", "step": 3, "error": None,
    }  # fmt: skip


async def test_the_command_refuses_with_a_sentence(at: Lab, ledger: Path, command: Any) -> None:
    code, _, err = await command("undo", "nobody")
    assert (code, err.strip()) == (2, "error: There is no run 'nobody' on this server.")
    empty = await at.run([DONE], **of(ledger))
    code, out, err = await command("undo", empty.id)
    assert (code, out) == (0, "")
    assert "the run has executed no calls." in err


async def test_over_http(at: Lab, ledger: Path, door: Door) -> None:
    ran = await at.run([BOOK, MAIL, FRAGILE, DONE], **of(ledger, tenant="ada"))
    path = f"/api/runs/{ran.id}/undo"
    before = (await door.http.get(path, headers=by("s-2"))).json()
    assert (before["status"], before["id"], ids(before)) == (
        "not_started", None, {"not_reached": ["f1", "b1"], "no_undo": ["m1"]},
    )  # fmt: skip
    assert lines(ledger)[-1]["what"] == "fragile", "looking undoes nothing"
    for fields, says in (({"from_step": 0}, "from_step"), ({"continue": "x"}, "continue"), ({"all": True}, "all")):
        refused = await door.http.post(path, json=fields, headers=by("s-2"))
        assert (refused.status_code, says in refused.json()["detail"]) == (422, True)
    assert (await door.http.post(path, headers=by("s-3"))).status_code == 404
    assert (await door.http.post("/api/runs/nobody/undo", headers=by("s-1"))).json()["code"] == "run_not_found"
    done = await door.http.post(path, json={"continue": True}, headers=by("s-2"))
    assert (done.status_code, ids(done.json())) == (200, {"undone": ["f1", "b1"], "no_undo": ["m1"]})
    after = (await door.http.get(path, headers=by("s-2"))).json()
    assert (after["status"], after["id"], ids(after)) == ("completed", done.json()["id"], ids(done.json()))
    document = (await door.http.get("/api/openapi.json")).json()
    assert {*document["paths"]["/api/runs/{id}/undo"]} == {"get", "post"}


async def test_over_http_an_open_and_a_continued_run_are_refused(at: Lab, ledger: Path, door: Door) -> None:
    handle = await at.start([DONE], **of(ledger, tenant="ada"))
    await handle.result()
    path = f"/api/runs/{handle.id}/undo"
    at.model.script("more", [DONE, DONE])
    resume = await door.http.post(
        f"/api/runs/{handle.id}/resume", json={"prompt": "More?", "model": "openai-chat:more"}, headers=by("s-2")
    )
    again = resume.json()["id"]
    await at.client.get_workflow_handle(again).result()
    refused = await door.http.post(path, headers=by("s-2"))
    assert (refused.status_code, refused.json()["code"]) == (409, "already_resumed")
    assert again in refused.json()["detail"]
    assert (await door.http.post(path, json={"although_continued": True}, headers=by("s-2"))).status_code == 200
    opened = await at.start([call("order", '{"room": "x"}')], **of(ledger, tenant="ada"))
    while (await opened.query("progress"))["status"] != "waiting":
        await asyncio.sleep(0.05)
    refused = await door.http.post(f"/api/runs/{opened.id}/undo", headers=by("s-2"))
    assert (refused.status_code, refused.json()["code"]) == (409, "run_open")
    await opened.terminate()


async def test_over_http_whoever_undoes_a_call_needs_the_role_of_its_approval(
    at: Lab, ledger: Path, door: Door
) -> None:
    handle = await at.start([call("lead_book", '{"room": "x"}', "r1"), DONE], **of(ledger, tenant="ada"))
    while not await handle.query("pending"):
        await asyncio.sleep(0.05)
    await handle.execute_update("decide", {"call_id": "r1", "decision": "approve"})
    await handle.result()
    path = f"/api/runs/{handle.id}/undo"
    refused = await door.http.post(path, headers=by("s-2"))
    assert (refused.status_code, refused.json()["code"], "'lead'" in refused.json()["detail"]) == (
        403,
        "role_needed",
        True,
    )
    other = await door.http.post(path, headers=by("s-4"))
    assert other.status_code == 404, "a token for another agent"
    assert [each["what"] for each in lines(ledger)] == ["lead_book"]
    assert ids((await door.http.post(path, headers=by("s-5"))).json()) == {"undone": ["r1"]}


async def test_over_http_nothing_goes_on_from_a_run_that_is_being_undone(at: Lab, ledger: Path, door: Door) -> None:
    ran = await at.run([call("long_book", '{"room": "x"}', "l1"), DONE], **of(ledger, tenant="ada"))
    undoing = await door.http.post(f"/api/runs/{ran.id}/undo?wait=0", headers=by("s-2"))
    assert undoing.status_code == 202
    for path, fields in (("resume", {"prompt": "More."}), ("fork", {"at": 1})):
        refused = await door.http.post(f"/api/runs/{ran.id}/{path}", json=fields, headers=by("s-2"))
        assert (refused.status_code, refused.json()["code"]) == (409, "being_undone")
        assert undoing.json()["id"] in refused.json()["detail"]
    ledger.with_suffix(".go").touch()


async def test_whoever_undoes_a_run_is_told_of_an_open_continuation(
    at: Lab, ledger: Path, door: Door, command: Any
) -> None:
    ran = await at.run([BOOK, DONE], **of(ledger, tenant="ada"))
    model = f"open-{ran.id}"
    at.model.script(model, [DONE, DONE, call("order", '{"room": "x"}'), DONE])
    resumed = await resume_run(at.client, ran.id, "More.", model=f"openai-chat:{model}")
    said = await door.http.post(f"/api/runs/{ran.id}/undo", json={"although_continued": True}, headers=by("s-2"))
    assert (said.status_code, said.json()["open_continuation"]) == (200, resumed.id)
    code, _, err = await command("undo", ran.id, "--continued")
    assert (code, f"the run {resumed.id} is open, and goes on from {ran.id}" in " ".join(err.split())) == (0, True)
    await resumed.terminate()


async def test_at_a_terminal_the_command_lists_the_calls_and_asks(
    at: Lab, ledger: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await at.run([BOOK, MAIL, DONE], **of(ledger))
    monkeypatch.setattr("mulligan.cli.undo.is_at_terminal", lambda: True)
    asked: list[str] = []

    def answer_no(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("mulligan.cli.undo.prompt", answer_no)
    code, out, err = await command("undo", ran.id)
    assert (code, out, asked) == (1, "", ["undo 1 call? [y/N] "])
    assert " ".join(err.split()) == (
        f"has no undo, and stays: step 2 mail m1 of {ran.id} will be undone: step 1 book b1 of {ran.id} nothing was undone."
    )
    again = await resume_run(at.client, ran.id, "More.", model=at_model(at, [DONE] * 4))
    await again.result()
    code, out, err = await command("undo", ran.id)
    assert (code, out, len(asked)) == (2, "", 1), "it is refused before anybody is asked"
    assert again.id in err
    assert "--continued" in err
    code, out, _ = await command("undo", ran.id, "--yes", "--continued")
    assert (code, out.splitlines()[0], len(asked)) == (0, f"undone: step 1 book b1 of {ran.id}", 1)


def at_model(at: Lab, turns: Any) -> str:
    """A model that plays these turns."""
    name = f"more-{uuid.uuid4().hex[:8]}"
    at.model.script(name, turns)
    return f"openai-chat:{name}"


async def test_in_the_console(at: Lab, ledger: Path, lab: Lab) -> None:
    """The page lists what will be undone and what has no undo; the button undoes it; the page then lists what was."""
    ran = await at.run([BOOK, MAIL, DONE], **of(ledger))
    async with http_server(lab.client) as served:
        shown = await served.http.get(f"/console/runs/{ran.id}")
        assert f'href="/console/runs/{ran.id}/undo-it"' in shown.text
        listed = await served.http.get(f"/console/runs/{ran.id}/undo-it")
        assert re.findall(r"<h2>(.*?)</h2>", listed.text) == [
            "Will be undone, in this order (1)",
            "Has no undo, and stays as it is (1)",
        ]
        token = re.findall(r'name="csrf" value="([^"]*)"', listed.text)
        form = {"csrf": token[0]} if token else {}
        origin = {"Origin": served.url}
        sent = await served.http.post(f"/console/runs/{ran.id}/undo", data=form, headers=origin)
        assert sent.status_code in (302, 303)
        after = await served.http.get(f"/console/runs/{ran.id}/undo-it")
        assert re.findall(r"<h2>(.*?)</h2>", after.text) == ["Undone (1)", "Has no undo, and stays as it is (1)"]
        assert "Undo the run</button>" not in after.text
    assert [each["what"] for each in lines(ledger)] == ["book", "mail", "unbook"]


async def test_the_example_of_the_page(lab: Lab, command: Any) -> None:
    """docs/undo.md."""
    page: dict[str, Any] = {}
    text = (Path(__file__).parents[2] / "docs/undo.md").read_text()
    exec(compile(text.partition("```python\n")[2].partition("```")[0], "docs/undo.md", "exec", 0, True), page)
    queue = f"page-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([page["travel"]], [page["journey"]]), lab.telemetry, queue):
        given = {"agent": "travel", "prompt": "Go."}
        run = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        await run.result()
        assert {*page["BOOKED"].values()} == {"blue", "green"}
        code, out, _ = await command("undo", queue)
    assert (code, page["BOOKED"]) == (0, {})
    said = sorted(re.sub(r"call_\w+", "call", line.replace(queue, "my-run")) for line in out.splitlines())
    shown = text.partition("```\nhas no undo")[2].partition("```")[0]
    assert said == sorted(re.sub(r"call_\w+", "call", line) for line in f"has no undo{shown}".splitlines())
