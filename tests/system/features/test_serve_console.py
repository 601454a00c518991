"""The console over HTTP, without a browser: who sees it, what its pages contain, and what its forms do."""

from __future__ import annotations

import asyncio
import base64
import html
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from mulligan.serve.console.console_pages import ROUTERS
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.console_agents import RIGHT_TO_LEFT, SCRIPT_TAG
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab

QUEUE = "console"
TOKENS = "ada:token-of-ada,bob:token-of-bob,cleo:token-of-cleo,root:token-of-root:*"
OPEN_PATHS = {"/console/sign-in", "/console/assets/{name}"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.support.console_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, tokens=TOKENS, task_queue=QUEUE) as served,
    ):
        yield served


class Visitor:
    """Somebody with a browser: cookies, and the forms of pages."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http, self.csrf = http, ""

    async def page(self, path: str, status: int = 200) -> str:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        if found := re.search(r'name="csrf" value="([^"]+)"', answer.text):
            self.csrf = found[1]
        return answer.text

    async def send(self, path: str, status: int = 200, **fields: Any) -> str:
        """Send a form; the page that it leads to."""
        answer = await self.http.post(path, data={"csrf": self.csrf, **fields}, follow_redirects=True)
        assert answer.status_code == status, answer.text
        return answer.text

    async def until(self, path: str, text: str) -> str:
        """The page, once it has a text."""
        while text not in (found := await self.page(path)):
            await asyncio.sleep(0.1)
        return found


@asynccontextmanager
async def visitor(door: Door, name: str) -> AsyncIterator[Visitor]:
    async with httpx2.AsyncClient(base_url=door.url, timeout=300) as http:
        answer = await http.post("/console/sign-in", data={"token": door.tokens[name], "next": "/console/start"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/start")
        one = Visitor(http)
        await one.page("/console/start")
        yield one


async def start(one: Visitor, agent: str, **fields: Any) -> tuple[str, str]:
    """Start a run by the form; its id and the path of its page."""
    run_id = f"{agent}-{uuid.uuid4().hex[:8]}"
    await one.send("/console/start", agent=agent, prompt="Help Ada.", id=run_id, **fields)
    return run_id, f"/console/runs/{run_id}"


async def test_every_page_and_form_needs_a_session_but_for_the_sign_in_and_the_assets(door: Door) -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 15
    for route in routes:
        path = route.path.replace("{run_id:path}", "x").replace("{name:path}", "x").replace("{action}", "stop")
        for method in route.methods or ():
            answer = await door.http.request(method, path, headers={"Cookie": "mulligan_session=9999999999.x.y"})
            if route.path in OPEN_PATHS:
                assert answer.status_code in (200, 401, 404)
            else:
                assert answer.status_code == 303, (method, path)
                assert answer.headers["location"].startswith("/console/sign-in?next=")
    assert (await door.http.get("/api/runs")).status_code == 401
    assert (await door.http.get("/console/nothing", headers={"Accept": "text/html"})).status_code == 404


async def test_a_token_signs_in_and_its_cookie_is_for_pages_only(door: Door) -> None:
    """HttpOnly, SameSite, without the token; it is refused if it was changed, and by the API. No open redirect."""
    refused = await door.http.post("/console/sign-in", data={"token": "wrong"})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    for place in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        answer = await door.http.post("/console/sign-in", data={"token": "token-of-ada", "next": place})
        assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "token-of-ada" not in cookie
    value = cookie.partition(";")[0].partition("=")[2]
    ends, nonce, signature = value.split(".")
    for changed in (
        f"{int(ends) + 1}.{nonce}.{signature}",
        f"{ends}.{nonce}.{signature[:-1]}x",
        f"1.{nonce}.{signature}",
    ):
        answer = await door.http.get("/", headers={"Cookie": f"mulligan_session={changed}"})
        assert answer.status_code == 303
    signed_in = {"Cookie": f"mulligan_session={value}"}
    assert (await door.http.get("/", headers=signed_in)).status_code == 200
    assert (await door.http.get("/api/runs", headers=signed_in)).status_code == 401
    door.http.cookies.clear()


async def test_who_signs_out_has_no_session_any_more(door: Door) -> None:
    """Nobody has: a copy of the cookie is refused by pages, forms and streams. Other sessions of the token go on."""
    async with visitor(door, "ada") as ada, visitor(door, "ada") as elsewhere:
        copied = {"Cookie": f"mulligan_session={ada.http.cookies['mulligan_session']}"}
        assert (await door.http.get("/", headers=copied)).status_code == 200
        await ada.send("/console/sign-out")
        for method, path in (
            ("GET", "/"),
            ("GET", "/console/decide"),
            ("POST", "/console/start"),
            ("GET", "/console/runs/x/live"),
        ):
            answer = await door.http.request(
                method, path, headers=copied, data={"csrf": ada.csrf} if method == "POST" else None
            )
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/console/sign-in")
        await elsewhere.page("/")


async def test_attempts_to_sign_in_are_bounded_for_an_address(lab: Lab) -> None:
    """Also those at the same time. A token that is known does not count, and sessions go on."""
    address = ["192.0.2.1"]

    def from_address(application: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            await application({**scope, "client": (address[0], 1)} if scope["type"] == "http" else scope, receive, send)

        return call

    async with http_server(lab.client, tokens=TOKENS, wrap=from_address) as served, visitor(served, "ada") as ada:

        async def attempt(token: str) -> httpx2.Response:
            return await served.http.post("/console/sign-in", data={"token": token})

        for _ in range(20):
            assert (await attempt("token-of-bob")).status_code == 303
        answers = await asyncio.gather(*(attempt("wrong") for _ in range(30)))
        assert sorted(answer.status_code for answer in answers) == [401] * 10 + [429] * 20
        late = await attempt("token-of-bob")
        assert (late.status_code, 1 <= int(late.headers["retry-after"]) <= 60) == (429, True)
        assert "Too many attempts" in late.text
        await ada.page("/")
        address[0] = "192.0.2.2"
        assert (await attempt("token-of-bob")).status_code == 303


async def test_a_form_of_a_foreign_page_does_nothing(door: Door) -> None:
    """Without the session's CSRF token, with that of another session, or from another origin."""
    async with visitor(door, "ada") as ada, visitor(door, "bob") as bob:
        run_id, path = await start(ada, "support-desk")
        for csrf in ("", "x", bob.csrf):
            answer = await ada.http.post(f"{path}/cancel", data={"csrf": csrf})
            assert (answer.status_code, "Load the page again" in answer.text) == (403, True)
        foreign = {"Origin": "https://evil.example"}
        assert (await ada.http.post(f"{path}/cancel", data={"csrf": ada.csrf}, headers=foreign)).status_code == 403
        read = await door.http.get(f"/api/runs/{run_id}", headers=door.by("ada"))
        assert read.json()["status"] == "running"
        assert "was cancelled" in await ada.send(f"{path}/cancel")


async def test_what_models_tools_and_people_write_is_text(door: Door) -> None:
    """No page has a script, style or handler of its own; characters that turn the direction are named."""
    async with visitor(door, "ada") as ada:
        _, path = await start(ada, "hostile")
        await ada.until(path, "waits for approval")
        paths = (
            "/",
            path,
            "/console/decide",
            "/console/agents",
            "/console/agents/hostile",
            "/console/start",
            f"{path}/stop-it",
        )
        for each in paths:
            answer = await ada.http.get(each)
            assert answer.headers["content-security-policy"].startswith(POLICY)
            assert answer.headers["cache-control"] == "no-store"
            assert SCRIPT_TAG[:8] + ">" not in re.sub(
                r'<script type="module" src="/console[^>]*></script>', "", answer.text
            )
            assert not re.search(r"<[^>]*\s(on\w+|style)\s*=", answer.text)
            assert not re.search(r'(src|href)="(https?:)?//', answer.text)
            assert not re.search(
                "[\u202a-\u202e\u2066-\u2069]",
                re.sub(r'value="[^"]*"|<textarea.*?</textarea>', "", answer.text, flags=re.S),
            )
        shown = await ada.page(path)
        assert html.escape(SCRIPT_TAG, quote=False) in html.unescape(shown).replace("<", "&lt;").replace(">", "&gt;")
        assert "⟦U+202E RIGHT-TO-LEFT OVERRIDE⟧" in shown
        assert len(shown) < 200_000
        whole = await ada.http.get(f"{path}/text?step=1&call=1&part=result")
        assert whole.headers["content-type"].startswith("text/plain")
        assert whole.headers["content-security-policy"] == "sandbox"
        assert RIGHT_TO_LEFT in whole.text
        await ada.send(f"{path}/cancel")


async def test_a_run_is_shown_with_its_mistakes_corrections_repairs_and_decisions(door: Door) -> None:
    async with visitor(door, "ada") as ada:
        run_id, path = await start(ada, "support-desk")
        shown = await ada.until(path, "waits for approval")
        assert "There is no tool `list_orders`" in html.unescape(shown)
        assert "Corrected in step 2" not in shown, "another tool than the unknown one was called there"
        assert '<a href="#step-4-call-1">Corrected in step 4</a>' in shown
        assert '<a href="#step-3-call-1">corrects the mistake in step 3</a>' in shown
        assert "Repaired by" in shown
        assert f'href="/console/runs/{run_id}/' in shown  # the sub-agent's run
        assert "Timeline of steps 1 to 5; mistakes in steps 1, 3" in shown
        part = await ada.page(f"/console/runs/{run_id}/call_4_2?part=sub_run")
        assert "Rule 12 (damage)" in part
        assert "step-1" not in re.findall(r' id="([^"]+)"', part)
        decide = await ada.page(f"/console/decide?run={run_id}")
        assert 'name="arg.0"' in decide
        form: dict[str, Any] = {
            "run": run_id,
            "call_id": "call_5_1",
            "only": "1",
            "arg.0": "7",
            "arg.1.0": "20",
            "arg.1.1": "damaged",
        }
        invalid = await ada.send("/console/decide", 422, action="approve", **{**form, "arg.1.0": "900", "arg.2": "x"})
        assert "euros" in invalid
        review = await ada.send("/console/decide", action="approve", **form)
        assert "You have changed what the model asked for" in review
        assert '<del dir="auto">48.0</del>' in review
        assert '<ins dir="auto">20</ins>' in review
        pending = await door.http.get(f"/api/runs/{run_id}/pending", headers=door.by("ada"))
        assert pending.json()[0]["arguments"]["amount"]["euros"] == 48
        done = await ada.send("/console/decide", action="confirm", **form)
        assert "refund was approved with your changes" in done
        late = await ada.send("/console/decide", action="deny", **form, reason="Too late.")
        assert "Somebody was first: this call was approved by ada" in late
        await ada.until(f"/console/decide?run={run_id}", "voucher")
        answered = await ada.send(
            "/console/decide", action="answer", run=run_id, call_id="call_6_1", text="Yes, five euros."
        )
        assert "was answered" in answered
        shown = await ada.until(path, 'class="entry ended"')
        assert "Approved by <strong>ada</strong>, with edited arguments" in shown
        assert "Refunded 20.00 euros" in shown
        assert "Yes, five euros." in shown
        listed = await ada.page(f"/?id={run_id}&part=rows")
        assert re.search(r'data-label="Steps" class="number">7<', listed)
        day = await ada.page("/console/agents/support-desk")
        assert "<code>track_parcel</code></th><td>invalid_arguments</td>" in day
        await ada.send(f"{path}/resume", prompt="Thank you.")
        assert "Thank you." in await ada.until(f"{path}-resumed", "Thank you.")


async def test_a_rule_is_made_and_deleted_where_calls_are_decided(door: Door) -> None:
    """Beside the calls that wait. Nobody else sees a tenant's rules, or deletes one."""
    async with visitor(door, "ada") as ada, visitor(door, "bob") as bob:
        run_id, path = await start(ada, "support-desk")
        await ada.until(path, "waits for approval")
        card = await ada.page(f"/console/decide?run={run_id}")
        assert "who may decide: everybody who sees the run" in card
        form: dict[str, Any] = {
            "run": run_id,
            "call_id": "call_5_1",
            "arg.0": "7",
            "arg.1.0": "20",
            "arg.1.1": "damaged",
        }
        review = await ada.send("/console/decide", action="approve", remember="tenant", **form)
        assert '<option value="tenant" selected>' in review
        done = await ada.send("/console/decide", action="confirm", remember="tenant", **form)
        [name] = re.findall(r"The rule (refund-\w+) approves equal calls", done)
        assert f"<strong>{name}</strong>" in done
        assert name not in await bob.page("/console/decide")
        other = await bob.send("/console/rules/delete", name=name, tenant="ada")
        assert "another one than this caller" in html.unescape(other)
        deleted = await ada.send("/console/rules/delete", name=name, tenant="ada")
        assert f"The rule {name} was deleted." in deleted
        assert f"<strong>{name}</strong>" not in deleted
        await ada.send(f"{path}/cancel")


async def test_the_agents_page_names_the_tool_that_models_misunderstood_most(door: Door) -> None:
    """In ended and open runs that the caller sees, with a link to the call. The tool's own error is not counted."""
    async with visitor(door, "cleo") as cleo:
        assert "There were no runs." in await cleo.page("/console/agents")
        ended, path = await start(cleo, "misreader")
        await cleo.until(path, 'class="entry ended"')
        await cleo.send("/console/start", agent="misreader", prompt="ask", id=f"{ended}-ask")
        await cleo.until(f"{path}-ask", "waits for approval")
        shown = await cleo.page("/console/agents")
        [row] = re.findall(r"<tr>\s*(<th scope=\"row\"><code>count<.*?)</tr>", shown, re.DOTALL)
        cells = [
            html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
        ]
        assert cells == ["count", "misreader", "invalid_arguments", "4", ended]
        assert "From 2 of 2 runs." in shown
        link = f"{path}?page=1#step-1-call-2"
        assert f'href="{link}"' in row
        call = (await cleo.page(link)).split('id="step-1-call-2"')[1].split('id="step-2')[0]
        assert "invalid_arguments" in call
        await cleo.send(f"{path}-ask/cancel")


async def test_runs_of_another_tenant_are_not_there(door: Door) -> None:
    """On any page; in any form. An operator sees and decides them, by name."""
    async with visitor(door, "ada") as ada, visitor(door, "bob") as bob, visitor(door, "root") as root:
        run_id, path = await start(ada, "support-desk")
        await ada.until(path, "waits for approval")
        for each in (
            path,
            f"{path}?part=sub_run",
            f"{path}/live",
            f"{path}/text?step=1",
            f"{path}/stop-it",
            f"{path}/call_4_2",
        ):
            await bob.page(each, 404)
        assert run_id not in await bob.page("/")
        assert run_id not in await bob.page("/console/decide")
        form: dict[str, Any] = {"run": run_id, "call_id": "call_5_1", "reason": "No."}
        await bob.send("/console/decide", 404, action="deny", **form)
        assert "There is no run" in html.unescape(await bob.send(f"{path}/cancel", 404))
        assert run_id in await root.page("/console/decide")
        assert "refund was denied" in await root.send("/console/decide", action="deny", **form)
        shown = await ada.until(path, "Denied by")
        assert "Denied by <strong>root</strong>" in shown
        assert "“No.”" in shown
        await ada.send(f"{path}/cancel")


async def test_the_button_that_resumes_a_run_starts_one_however_often_it_is_pressed(door: Door) -> None:
    """On any number of pages. With another prompt the page says which run it is."""
    async with visitor(door, "ada") as ada, visitor(door, "root") as root:
        run_id, path = await start(ada, "support-desk")
        await ada.until(path, "waits for approval")
        await ada.send(f"{path}/cancel")
        await ada.until(path, "Resume")
        for each in (ada, root):
            await each.page(path)

        async def press(who: Visitor, prompt: str) -> str:
            answer = await who.http.post(f"{path}/resume", data={"csrf": who.csrf, "prompt": prompt})
            assert answer.status_code == 303
            return answer.headers["location"]

        pages = await asyncio.gather(*(press(each, "Go on.") for each in (ada, root) * 5))
        assert set(pages) == {f"{path}-resumed"}
        assert await press(ada, "Something else.") == path
        assert f"as '{run_id}-resumed'" in html.unescape(await ada.page(path))
        await ada.send(f"{path}-resumed/cancel")


async def test_a_form_of_a_fork_with_other_fields_is_refused_with_a_sentence(door: Door) -> None:
    async with visitor(door, "ada") as ada:
        run_id, path = await start(ada, "support-desk")
        for fields in ({"prompt": "x", "tools": "no such"}, {"message": "x", "at": "zz", "id": f"{run_id}-resumed"}):
            assert "Fork from step 1" in await ada.send(f"{path}/fork", 422, **fields)
        await ada.send(f"{path}/cancel")


async def test_the_stream_of_a_page_shows_each_step_and_resumes_with_the_open_one(door: Door) -> None:
    async with visitor(door, "ada") as ada:
        _, path = await start(ada, "teller")
        frames = [frame async for frame in read_frames(ada, f"{path}/live")]
        kinds = [frame["event"] for frame in frames]
        assert kinds[-1] == "ended"
        assert {"entry", "text"} <= set(kinds)
        first = next(frame for frame in frames if 'id="step-1"' in frame["data"])
        assert "The model is writing" in first["data"]
        opened = next(frame for frame in frames if 'id="step-2"' in frame["data"])
        again = [frame async for frame in read_frames(ada, f"{path}/live", opened["id"])]
        steps = [re.search(r'id="(step-\d+)"', frame["data"]) for frame in again if frame["event"] == "entry"]
        assert {found[1] for found in steps if found} == {"step-2"}
        assert again[-1]["event"] == "ended"
        after = await ada.http.get(f"{path}/live", headers={"Last-Event-ID": frames[-1]["id"]})
        assert after.status_code == 204


async def test_without_tokens_forms_are_still_bound_to_the_browser(lab: Lab) -> None:
    async with http_server(lab.client, task_queue="nobody-polls") as alone:
        one = Visitor(alone.http)
        await one.page("/")
        path, run_id = "/console/start", f"alone-{uuid.uuid4().hex[:8]}"
        answer = await alone.http.post(path, data={"csrf": "x" * 43, "agent": "a", "prompt": "p"})
        assert answer.status_code == 403
        answer = await alone.http.post("/api/runs", json={"agent": "shop", "prompt": "Go.", "id": run_id})
        assert answer.status_code == 201
        shown = await one.page(f"/console/runs/{run_id}")
        assert "only a worker of its task queue can tell its steps. Start one (mulligan worker)" in shown
        assert "no worker polls task queue &#39;nobody-polls&#39;; start one" in shown
        assert f'src="/console/runs/{run_id}/live"' in shown  # as soon as one does, the page shows its steps
        answer = await alone.http.post(f"/console/runs/{run_id}/cancel", data={"csrf": one.csrf})
        assert (answer.status_code, "was%20cancelled" in answer.headers["set-cookie"]) == (303, True)


async def test_an_encrypted_run_is_readable_where_the_server_has_the_keys(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them each page says so, and shows nothing of it."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"k:{base64.b64encode(b'k' * 32).decode()}")
    client = await lab.another_client()
    loaded = load(["tests.support.console_agents"])
    run_id = f"secret-{uuid.uuid4().hex[:8]}"
    async with running_worker(client, loaded, lab.telemetry, "secret-console"):
        async with http_server(client, task_queue="secret-console") as served:
            body = {"agent": "support-desk", "prompt": "Help Ada.", "id": run_id}
            assert (await served.http.post("/api/runs", json=body)).status_code == 201
            shown = await Visitor(served.http).until(f"/console/runs/{run_id}", "waits for approval")
            assert "Teapot, dented box" in shown
        async with http_server(lab.client, task_queue="secret-console") as served:
            one = Visitor(served.http)
            shown = await one.page(f"/console/runs/{run_id}")
            assert "MULLIGAN_ENCRYPTION_KEYS" in shown
            assert "Teapot" not in shown
            assert run_id in await one.page("/")
            assert re.search("open run(s are| is) encrypted", await one.page("/console/decide"))
        await client.get_workflow_handle(run_id).cancel()


async def read_frames(one: Visitor, path: str, since: str = "") -> AsyncIterator[dict[str, Any]]:
    headers = {"Last-Event-ID": since} if since else {}
    async with one.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        frame: dict[str, Any] = {"data": "", "id": ""}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "data" and frame["data"]:
                frame["data"] += "\n" + value
            elif name in ("id", "event", "data"):
                frame[name] = value
            elif not line and "event" in frame:
                yield frame
                frame = {"data": "", "id": ""}
