"""A sign-in of the application's own (docs/serving-sign-in.md): a function says who calls, over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.requests import HTTPConnection

from mulligan import DeclarationError, serve
from mulligan.client.start_run import read_input
from mulligan.serve import Caller, own_sign_in
from mulligan.serve.security import parse_tokens
from mulligan.serve.threads import Thread
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call

CALLERS = {
    "ada": Caller("ada@shop.example", tenant="shop", user="u-1", trusted=True),
    "abe": Caller("abe@shop.example", tenant="shop", user="u-2", trusted=True),
    "bob": Caller("bob@bank.example", tenant="bank", trusted=True),
    "shop": Caller("shop", tenant="street", trusted=True),
    "cleo": Caller("cleo", tenant="shop", agents=["desk"], trusted=True),
    "root": Caller("root", operator=True),
}
SECRET = "s3cret-of-a-session"
PAGE = Path(__file__).parents[3] / "docs" / "serving-sign-in.md"
ASKING = call("refund", '{"order": 7, "amount": {"euros": 2}}', "c1")


def by(name: str, **more: str) -> dict[str, str]:
    return {"X-Who": name, **more}


async def known(request: HTTPConnection) -> Caller | None:
    return CALLERS.get(request.headers.get("x-who", ""))


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client, authenticate=known) as served:
        yield served


async def start(lab: Lab, door: Door, who: str, *turns: Any, **fields: Any) -> httpx2.Response:
    script = f"run-{uuid.uuid4().hex[:8]}"
    lab.model.script(script, list(turns) or [DONE])
    run = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{script}", **fields}
    return await door.http.post("/api/runs", json=run, headers=by(who))


@pytest.mark.parametrize(
    "path", ["/api/runs", "/v1/models", "/mcp", "/ag-ui/shop/t", "/ai-sdk/shop/c", "/", "/console/start"]
)
async def test_whom_the_function_does_not_know_is_refused_by_every_protocol(door: Door, path: str) -> None:
    """A token of the server, or a cookie of its own sign-in, means nothing here."""
    method = "POST" if path == "/mcp" else "GET"
    for headers in ({}, by("nobody"), {"Authorization": "Bearer x"}, {"Cookie": "mulligan_session=9999999999.x.y"}):
        refused = await door.http.request(method, path, headers=headers)
        assert (refused.status_code, "Sign in first" in refused.text) == (401, True)
        assert "location" not in refused.headers


async def test_name_tenant_and_user_are_three_things(lab: Lab, door: Door) -> None:
    """The tenant is who sees what, the user is the run's, and the name is whose decision it is."""
    started = await start(lab, door, "ada", ASKING, DONE, agent="desk")
    assert started.status_code == 201, started.text
    path = f"/api/runs/{started.json()['id']}"
    given = await read_input(lab.client, started.json()["id"])
    assert given is not None
    assert (given.tenant, given.user) == ("shop", "u-1")
    for who, status in (("ada", 200), ("abe", 200), ("cleo", 200), ("root", 200), ("bob", 404), ("shop", 404)):
        assert (await door.http.get(path, headers=by(who))).status_code == status, who
        listed = (await door.http.get("/api/runs", headers=by(who))).json()["runs"]
        assert (started.json()["id"] in [run["id"] for run in listed]) == (status == 200), who
    decision = {"call_id": "c1", "decision": "deny", "by": "somebody else"}
    for who, status in (("bob", 404), ("shop", 404), ("abe", 200)):
        decided = await door.http.post(f"{path}/decisions", json=decision, headers=by(who))
        assert decided.status_code == status, who
    steps = (await door.http.get(f"{path}/steps", headers=by("ada"))).json()["steps"]
    assert steps[0]["tool_calls"][0]["decision"]["by"] == "abe@shop.example"
    await door.http.get(f"{path}?wait=30", headers=by("ada"))
    resumed = await door.http.post(f"{path}/resume", json={"prompt": "More."}, headers=by("abe"))
    again = await read_input(lab.client, resumed.json()["id"])
    assert again is not None
    assert (again.tenant, again.user) == ("shop", "u-2")


async def test_only_an_operator_names_a_tenant_and_a_user_and_agents_bound_the_others(lab: Lab, door: Door) -> None:
    for who, fields, status, code in (
        ("ada", {"tenant": "bank"}, 403, "foreign_tenant"),
        ("ada", {"user": "u-2"}, 403, "foreign_user"),
        ("cleo", {}, 404, "agent_not_found"),
    ):
        refused = await start(lab, door, who, **fields)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    started = await start(lab, door, "root", tenant="bank", user="u-9")
    given = await read_input(lab.client, started.json()["id"])
    assert given is not None
    assert (given.tenant, given.user) == ("bank", "u-9")
    assert (await door.http.get(f"/api/runs/{started.json()['id']}", headers=by("bob"))).status_code == 200


async def test_the_function_alone_says_who_the_user_is(lab: Lab, door: Door) -> None:
    run = {"agent": "shop", "prompt": "Go.", "model": "openai-chat:nothing"}
    answer = await door.http.post("/api/runs", json=run, headers=by("ada", **{"Mulligan-User": "u-2"}))
    given = await read_input(lab.client, answer.json()["id"])
    assert given is not None
    assert given.user == "u-1"


async def test_one_key_is_one_run_of_a_tenant_and_an_sdk_s_repeat_one_of_a_user(lab: Lab, door: Door) -> None:
    lab.model.script("keyed", [DONE] * 9)
    run = {"agent": "shop", "prompt": uuid.uuid4().hex, "model": "openai-chat:keyed"}

    async def ids(header: str, value: str) -> list[str]:
        posted = [
            await door.http.post("/api/runs", json=run, headers=by(who, **{header: value}))
            for who in ("ada", "abe", "bob")
        ]
        return [answer.json()["id"] for answer in posted if answer.raise_for_status()]

    ada, abe, bob = await ids("Idempotency-Key", uuid.uuid4().hex)
    assert (ada == abe, ada == bob) == (True, False)
    assert len(set(await ids("x-stainless-retry-count", "1"))) == 3


def test_a_conversation_belongs_to_the_user_of_the_tenant() -> None:
    """The same thread id is another conversation for another user: the id of its first run is made from all three."""
    runs: Any = None  # nothing is read
    first = {who: Thread(runs, CALLERS[who], "shop", "thread")._first for who in ("ada", "abe", "bob", "shop")}
    assert len({*first.values()}) == 4
    again = Caller("Ada on her phone", tenant="shop", user="u-1")
    assert Thread(runs, again, "shop", "thread")._first == first["ada"]


async def test_over_mcp_each_caller_has_their_agents_and_runs(lab: Lab, door: Door) -> None:
    run_id = (await start(lab, door, "ada", ASKING, agent="desk")).json()["id"]

    @asynccontextmanager
    async def client_of(who: str) -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(headers=by(who), timeout=300) as http,
            Client(streamable_http_client(f"{door.url}/mcp", http_client=http)) as client,
        ):
            yield client

    async with client_of("cleo") as cleo:
        names = {tool.name for tool in (await cleo.list_tools()).tools}
    async with client_of("bob") as bob:
        foreign = await bob.call_tool("wait_for_run", {"run_id": run_id, "seconds": 1})
    assert "desk" in names
    assert "shop" not in names
    assert foreign.is_error
    assert "There is no run" in str(foreign.content)
    await door.http.post(f"/api/runs/{run_id}/cancel", headers=by("ada"))


async def test_the_console_asks_the_function_and_its_forms_need_their_token(lab: Lab, door: Door) -> None:
    """A browser may add what the function knows people by to a foreign page's form, `Authorization` too."""
    mine = (await start(lab, door, "ada", ASKING, agent="desk")).json()["id"]
    theirs = (await start(lab, door, "bob", ASKING, agent="desk")).json()["id"]
    async with httpx2.AsyncClient(base_url=door.url, headers=by("ada", Authorization="Basic x"), timeout=300) as ada:
        page = await ada.get("/")
        assert page.status_code == 200
        assert "ada@shop.example" in page.text
        assert "Sign out" not in page.text
        assert mine in page.text
        assert theirs not in page.text
        assert (await ada.get(f"/console/runs/{theirs}")).status_code == 404
        found = re.search(r'name="csrf" value="([^"]+)"', (await ada.get("/console/start")).text)
        assert found
        for csrf, status in (("", 403), ("x" * 43, 403), (found[1], 303)):
            sent = await ada.post(f"/console/runs/{mine}/cancel", data={"csrf": csrf})
            assert sent.status_code == status, csrf
        assert (await ada.get("/console/sign-in?next=/console/decide")).headers["location"] == "/console/decide"
    sent = await door.http.post("/console/sign-in", data={"token": "x"})
    assert "set-cookie" not in sent.headers
    await door.http.post(f"/api/runs/{theirs}/cancel", headers=by("bob"))


def fails(request: HTTPConnection) -> Caller:
    raise RuntimeError(f"cannot read {request.headers['authorization']} and {request.url.query}")


class Odd:
    """A function that is an object, and async."""

    async def __call__(self, request: HTTPConnection) -> Caller:
        return Caller("")


async def is_late(request: HTTPConnection) -> Caller:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()
    return CALLERS["ada"]


WRONG: list[tuple[str, Callable[[HTTPConnection], Any], str]] = [
    ("raises", fails, "RuntimeError"),
    ("a text", lambda request: "ada", "It returned str; it must return a Caller or None."),
    ("False", lambda request: False, "It returned bool"),
    ("an empty name", Odd(), "Caller(name=…) has 0 characters"),
    ("no name", lambda request: Caller(None), "Caller(name=…) has the type NoneType"),  # type: ignore[arg-type]
    ("a long tenant", lambda request: Caller("ada", tenant="ü" * 33), "Caller(tenant=…) has 66 bytes; give 1 to 64"),
    ("no tenant", lambda request: Caller("ada", tenant=None), "Caller(tenant=…) has the type NoneType"),
    ("a long user", lambda request: Caller("ada", user="u" * 129), "Caller(user=…) has 129 characters"),
    ("half a character", lambda request: Caller("\ud800"), "surrogates not allowed"),
    ("agents as a text", lambda request: Caller("ada", agents="desk"), "Caller(agents=…) must be a list"),
    ("roles as a text", lambda request: Caller("ada", roles="desk"), "Caller(roles=…) must be a list"),
    ("a text for operator", lambda request: Caller("ada", operator="no"), "Caller(operator=…) has the type str"),  # type: ignore[arg-type]
    ("its own time limit", is_late, "TimeoutError"),
]


@pytest.mark.parametrize(("authenticate", "logged"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
async def test_what_goes_wrong_in_the_function_is_logged_and_refused(
    lab: Lab, caplog: pytest.LogCaptureFixture, authenticate: Any, logged: str
) -> None:
    """With 500, in the protocol's form, without the reason. The log has no secret of the request."""
    async with http_server(lab.client, authenticate=authenticate) as door:
        with caplog.at_level(logging.ERROR, own_sign_in.__name__):
            answers = [
                await door.http.get(f"{path}?key={SECRET}", headers={"Authorization": f"Bearer {SECRET}"})
                for path in ("/api/runs", "/v1/models", "/")
            ]
    assert [answer.status_code for answer in answers] == [500] * 3
    for answer in answers:
        assert "its log has the reason" in answer.text
        assert "Traceback" not in answer.text
        assert logged not in answer.text
    assert answers[0].json()["code"] == "sign_in_failed"
    assert logged in caplog.text
    assert SECRET not in caplog.text


async def test_a_function_that_blocks_is_given_up_and_holds_up_nobody_else(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a thread. One that is async has the same limit."""
    monkeypatch.setattr(own_sign_in, "SECONDS", 1_000.0)
    release, released = threading.Event(), asyncio.Event()

    async def hang() -> Caller:
        await released.wait()
        return CALLERS["ada"]

    def slow(request: HTTPConnection) -> Caller | Awaitable[Caller | None]:
        match request.headers.get("x-who"):
            case "blocks":
                release.wait()
            case "hangs":
                return hang()
        return CALLERS["ada"]

    async with http_server(lab.client, authenticate=slow) as door:

        async def status(who: str) -> int:
            return (await door.http.get("/api/runs", headers=by(who))).status_code

        late = [asyncio.create_task(status(who)) for who in ("blocks", "blocks", "hangs")]
        await asyncio.sleep(0)
        assert [await status("ada") for _ in range(3)] == [200] * 3
        assert not any(task.done() for task in late)
        release.set()
        released.set()
        assert await asyncio.gather(*late) == [200] * 3
        release.clear()
        released.clear()
        monkeypatch.setattr(own_sign_in, "SECONDS", 0.2)
        assert await asyncio.gather(*map(status, ("blocks", "hangs"))) == [503] * 2
        release.set()


@pytest.mark.parametrize(
    ("entry", "agents", "roles", "operator"),
    [
        ("desk:t", None, set(), False),
        ("desk:t::finance|legal", None, {"finance", "legal"}, False),
        ("desk:t:shop|clerk:finance", {"shop", "clerk"}, {"finance"}, False),
        ("desk:t:shop:", {"shop"}, set(), False),
        ("desk:t:*:finance", None, {"finance"}, True),
    ],
)
def test_a_token_may_have_agents_and_roles(entry: str, agents: Any, roles: set[str], operator: bool) -> None:
    [token] = parse_tokens(entry)
    caller = token.caller
    assert (caller.name, caller.tenant, caller.user) == ("desk", "desk", "desk")
    assert (caller.agents, caller.roles, caller.operator) == (agents, roles, operator)


def test_tokens_beside_it_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationError, match="authenticate is given, and tokens too"):
        serve.app(tokens=f"ada:{SECRET}", authenticate=known)
    with pytest.raises(DeclarationError, match="authenticate is of the type str"):
        serve.app(tokens="", authenticate="known")  # type: ignore[arg-type]
    monkeypatch.setenv("MULLIGAN_SERVE_TOKENS", f"ada:{SECRET}")
    with pytest.raises(DeclarationError, match="MULLIGAN_SERVE_TOKENS") as refused:
        serve.app(authenticate=known)
    assert SECRET not in str(refused.value)
    serve.app(tokens="", authenticate=known)


class Issuer:
    """An OIDC provider: its keys over HTTP, and tokens that it signs."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.fetched = 0

    def jwks(self) -> bytes:
        key = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
        return json.dumps({"keys": [{**key, "kid": "k1", "alg": "RS256", "use": "sig"}]}).encode()

    def token(self, key: Any = None, algorithm: str = "RS256", kid: str = "k1", **changed: Any) -> str:
        claims = {
            "iss": "https://issuer.example", "aud": "agents", "sub": "user-1", "exp": int(time.time()) + 60,
            "email": "ada@shop.example", "org_id": "shop", **changed,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.key if key is None else key, algorithm=algorithm, headers={"kid": kid})

    def signed_with_public_key(self) -> str:
        """A token that says it is signed with a secret, which is the public key: known to everybody. PyJWT makes none."""
        signed = self.token("s" * 32, "HS256").rpartition(".")[0]
        pem = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        signature = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    @contextmanager
    def serving(self) -> Iterator[str]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetched += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(issuer.jwks())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/jwks.json"
        finally:
            server.shutdown()
            server.server_close()


async def test_the_page_s_example_verifies_tokens_of_an_oidc_provider(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PyJWT, against the keys of a provider on this machine. Each token that it must not believe is refused."""
    issuer, names = Issuer(), dict[str, Any]()
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "PyJWKClient" in block
    )
    with issuer.serving() as url:
        monkeypatch.setenv("OIDC_ISSUER", "https://issuer.example")
        monkeypatch.setenv("OIDC_AUDIENCE", "agents")
        monkeypatch.setenv("OIDC_JWKS_URL", url)
        exec(compile(code, str(PAGE), "exec"), names)
        async with http_server(lab.client, authenticate=names["authenticate"]) as door:

            async def get(token: str, path: str = "/api/runs") -> httpx2.Response:
                return await door.http.get(path, headers={"Authorization": f"Bearer {token}"})

            lab.model.script("oidc", [DONE])
            run = {"agent": "shop", "prompt": "Go."}
            headers = {"Authorization": f"Bearer {issuer.token()}"}
            started = await door.http.post("/api/runs", json=run, headers=headers)
            assert started.status_code == 201, started.text
            given = await read_input(lab.client, started.json()["id"])
            assert given is not None
            assert (given.tenant, given.user) == ("shop", "user-1")
            path = f"/api/runs/{started.json()['id']}"
            assert (await get(issuer.token(org_id="bank"), path)).status_code == 404
            assert (await get(issuer.token(org_id="bank", groups=["mulligan-operators"]), path)).status_code == 200
            assert issuer.fetched == 1
            refused = [
                "x", issuer.token(exp=int(time.time()) - 60), issuer.token(exp=None), issuer.token(aud="others"),
                issuer.token(iss="https://evil.example"), issuer.token(sub=None), issuer.token(org_id=None),
                issuer.token(rsa.generate_private_key(public_exponent=65537, key_size=2048)), issuer.token(kid="k2"),
                issuer.token("", "none"), issuer.signed_with_public_key(), issuer.token()[:-4] + "AAAA",
            ]  # fmt: skip
            for token in refused:
                assert (await get(token)).status_code == 401, token
            assert (await door.http.get("/api/runs", headers={"Authorization": "Basic eDp5"})).status_code == 401
    monkeypatch.setenv("OIDC_JWKS_URL", url)  # nobody listens there now
    exec(compile(code, str(PAGE), "exec"), names)
    async with http_server(lab.client, authenticate=names["authenticate"]) as door:
        away = await door.http.get("/api/runs", headers=headers)
        assert (away.status_code, away.json()["code"]) == (500, "sign_in_failed")
