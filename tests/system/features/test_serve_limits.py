"""Every route of `mulligan serve` with bodies that are made to stop it: each is refused, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from temporalio.service import RetryConfig

from mulligan import InvalidRunInputError, RunInput, connect
from mulligan.client import start_run
from mulligan.client.callback_tokens import DeferredCallId, callback_tokens
from mulligan.serve import json_body
from mulligan.serve.arriving_body import BodyLimits
from mulligan.serve.console import signed_in
from mulligan.serve.create_app import create_app
from mulligan.serve.off_loop import SHORT_BYTES
from tests.support.http_server import Door, http_server

SECRET = base64.b64encode(b"test" * 8).decode()
TOKENS = "ada:token-of-ada,bob:token-of-bob"
GIVE_UP = 120.0
"""Seconds after which a server that does not answer is taken to be stuck. Nothing is measured by it."""
HELD = 400_000


def all_routes(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The method and path of each route, also of included routers."""
    for route in routes:
        if hasattr(route, "original_router"):
            yield from all_routes(route.original_router.routes)
            continue
        for method in route.methods - {"HEAD"}:
            path = route.path.replace(":path}", "}")
            yield method, path.replace("{", "").replace("}", "")


ROUTES = sorted(all_routes(create_app(tokens="").routes))
UNREAD = ("/cancel", "/sign-out", "/v1/responses/path")
READS = [path for method, path in ROUTES if method == "POST" and not path.endswith(UNREAD)]
"""Paths of the routes that read a body. A new route belongs to them, unless it is excluded here."""
Pieces = Callable[[], Iterator[tuple[bytes, float]]]
MANY_NAMES = b'{"result":{' + b",".join(b'"%d":0' % n for n in range(900_000)) + b"}}"


def whole(body: bytes) -> Pieces:
    """The body at once."""
    return lambda: iter([(body, 0.0)])


def never_ends() -> Iterator[tuple[bytes, float]]:
    """Half of a body, and then nothing."""
    yield b'{"' + b"x" * 50_000, GIVE_UP


def drips() -> Iterator[tuple[bytes, float]]:
    """A byte after another."""
    for _ in range(100_000):
        yield b" ", 0.02


BODIES: dict[str, tuple[int, Pieces]] = {
    # what, its Content-Length, its pieces and the seconds after each
    "900,000 names": (len(MANY_NAMES), whole(MANY_NAMES)),
    "deep": (2_000_000, whole(b"[" * 2_000_000)),
    "190,000 messages": (2_850_001, whole(b"[" + b'{"role":"user"},' * 178_125)),
    "never ends": (100_000, never_ends),
    "drips": (100_000, drips),
}


ENDLESS = ("never ends", "drips")


@pytest.fixture
async def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    """A server with tokens, whose Temporal is away. It waits long for bodies, except in tests of those that never end."""
    called_with = getattr(request.node, "callspec", None)
    is_endless = called_with is not None and called_with.params.get("what") in ENDLESS
    monkeypatch.setenv("MULLIGAN_CALLBACK_KEYS", "k" * 32)
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("OPENAI_WEBHOOK_SECRET", f"whsec_{SECRET}")
    client = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    async with http_server(client, tokens=TOKENS, bodies=BodyLimits(seconds=1.0 if is_endless else GIVE_UP)) as served:
        yield served


@pytest.fixture
def long_parses(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which bodies are parsed that are not short."""
    threads: list[threading.Thread] = []
    for module, name in ((json_body, "read_json"), (signed_in, "parse_qsl")):
        parse = getattr(module, name)

        def parse_in_view(body: Any, *arguments: Any, parse: Any = parse, **options: Any) -> Any:
            if len(body) > SHORT_BYTES:
                threads.append(threading.current_thread())
            return parse(body, *arguments, **options)

        monkeypatch.setattr(module, name, parse_in_view)
    return threads


async def with_token(path: str) -> str:
    """The path, with the token of a call if it is that of callbacks."""
    sealed = await callback_tokens(lambda: None).seal(DeferredCallId("run", "trace", "0", "call"))  # type: ignore[return-value,arg-type]
    return path.replace("/callbacks/token", f"/callbacks/{sealed}")


def headers_of(path: str, who: str) -> dict[str, str]:
    """The headers of a request: of nobody, of somebody with a wrong token, or of `ada`."""
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if path == "/mcp":
        headers |= {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "shop"}
    if who == "wrong token":
        signature = hmac.new(b"another", b"x", hashlib.sha256).digest()
        headers |= {
            "Authorization": "Bearer token-of-eve",
            "Cookie": "mulligan=1.2.3; mulligan-session=99999999999.x.y",
        }
        headers |= {"webhook-id": "w", "webhook-timestamp": str(int(time.time()))}
        headers |= {"webhook-signature": f"v1,{base64.b64encode(signature).decode()}"}
    if who == "ada":
        headers |= {"Authorization": "Bearer token-of-ada"}
    return headers


async def send(door: Door, method: str, path: str, headers: dict[str, str], length: int, pieces: Pieces) -> int:
    """Send a request, read the beginning of the response, and close the connection; the status."""
    host, _, port = door.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def write() -> None:
        with suppress(OSError):
            for piece, seconds in pieces():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(seconds)

    lines = {"Host": host, **headers, "Content-Length": str(length)}
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
    writer.write("\r\n".join(head).encode())
    writing = asyncio.create_task(write())
    try:
        async with asyncio.timeout(GIVE_UP):
            return int((await reader.readuntil(b"\r\n")).split()[1])
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        writer.transport.abort()


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("who", ["nobody", "wrong token"])
async def test_whoever_has_no_token_is_answered_and_no_body_of_theirs_is_parsed(
    door: Door, long_parses: list[threading.Thread], who: str, what: str
) -> None:
    """Every route. Where the body itself proves who sends it, little of it is read, for a short time."""
    assert len(ROUTES) > 40
    length, pieces = BODIES[what]
    statuses = await asyncio.gather(
        *(send(door, method, path, headers_of(path, who), length, pieces) for method, path in ROUTES)
    )
    refused = {route: status for route, status in zip(ROUTES, statuses, strict=True) if route[0] != "GET"}
    assert all(300 <= status < 500 for status in refused.values()), refused
    assert long_parses == []
    if what == "900,000 names":
        assert refused["POST", "/console/sign-in"] == 413
        assert refused["POST", "/api/webhooks/openai"] == (413 if who == "wrong token" else 400)


@pytest.mark.parametrize("path", ["/api/runs", "/api/callbacks/token", "/console/sign-in"])
async def test_a_client_that_closes_after_the_response_sees_it_though_its_body_was_not_read(
    door: Door, path: str
) -> None:
    """It sends all of its body first. A server that closed the connection before that would reset it."""
    host, _, port = door.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(MANY_NAMES)}\r\n\r\n"
    async with asyncio.timeout(GIVE_UP):
        for start in range(0, len(MANY_NAMES), 100_000):
            writer.write((head.encode() if not start else b"") + MANY_NAMES[start : start + 100_000])
            await writer.drain()
        answer = await reader.read()
    writer.transport.abort()
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404", b"HTTP/1.1 413")), answer


@pytest.mark.parametrize("what", BODIES)
async def test_whoever_has_a_token_is_refused_too_and_parses_in_another_thread(
    door: Door, long_parses: list[threading.Thread], what: str
) -> None:
    length, pieces = BODIES[what]
    paths = [await with_token(path) for _, path in ROUTES]
    statuses = await asyncio.gather(
        *(
            send(door, method, path, headers_of(path, "ada"), length, pieces)
            for (method, _), path in zip(ROUTES, paths, strict=True)
        )
    )
    read = {route[1]: status for route, status in zip(ROUTES, statuses, strict=True) if route[1] in READS}
    # A form can be read, so that it gets as far as Temporal, which is away.
    assert all(
        400 <= status < 500 or (path.startswith("/console") and status < 504) for path, status in read.items()
    ), read
    assert threading.main_thread() not in long_parses
    assert long_parses or what in ENDLESS


LATE = [path for path in READS if "webhooks" not in path and "sign-in" not in path]
"""The others read too little for another thread."""


@pytest.mark.parametrize("path", LATE)
async def test_others_are_answered_while_a_body_is_parsed(
    door: Door, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The parser waits until another request has been answered."""
    begun, answered = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def wait(*_: Any, **__: Any) -> Any:
        begun.set()
        in_time.append(answered.wait(GIVE_UP))
        raise ValueError("cannot be read")

    monkeypatch.setattr(json_body, "read_json", wait)
    monkeypatch.setattr(signed_in, "parse_qsl", wait)
    body = json.dumps({"x": "x" * SHORT_BYTES}).encode()
    sent = send(door, "POST", await with_token(path), headers_of(path, "ada"), len(body), whole(body))
    sending = asyncio.create_task(sent)
    await asyncio.to_thread(begun.wait, GIVE_UP)
    assert (await door.http.get("/console/sign-in")).status_code == 200
    answered.set()
    await sending
    assert in_time == [True]


USER: dict[str, Any] = {"id": "m", "role": "user"}
THREAD: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "tools": [],
    "context": [],
    "state": None,
    "forwardedProps": None,
}
TEXT = {"type": "text", "text": "x"}
MANY = json_body.MOST_MESSAGES + 1
COUNTED: list[tuple[str, dict[str, Any], str]] = [
    ("/api/runs", {"agent": "shop", "messages": [{"role": "user", "text": "x"}] * MANY}, "messages"),
    ("/api/runs", {"agent": "shop", "prompt": [TEXT] * MANY}, "prompt"),
    ("/api/runs/x/resume", {"prompt": [TEXT] * MANY}, "prompt"),
    ("/api/runs/x/messages", {"content": [TEXT] * MANY}, "content"),
    ("/v1/chat/completions", {"model": "shop", "messages": [{"role": "user", "content": "x"}] * MANY}, "messages"),
    ("/v1/responses", {"model": "shop", "input": [{"role": "user", "content": "x"}] * MANY}, "input"),
    ("/v1/responses", {"previous_response_id": "x", "input": [{"type": "function_call_output"}] * MANY}, "input"),
    ("/ag-ui/shop", {**THREAD, "messages": [{**USER, "content": "x"}] * MANY}, "messages"),
    ("/ag-ui/shop", {**THREAD, "messages": [{**USER, "content": [TEXT] * MANY}]}, "content"),
    ("/ai-sdk/shop", {"id": "c", "messages": [{**USER, "parts": [TEXT]}] * MANY}, "messages"),
    ("/ai-sdk/shop", {"id": "c", "messages": [{**USER, "parts": [TEXT] * MANY}]}, "parts"),
]


@pytest.mark.parametrize(
    ("path", "body", "field"), COUNTED, ids=[f"{path} {max(body)} {field}" for path, body, field in COUNTED]
)
async def test_too_many_messages_or_parts_are_refused_with_the_name_of_the_field(
    door: Door, path: str, body: dict[str, Any], field: str
) -> None:
    answer = await door.http.post(path, json=body, headers=headers_of(path, "ada"))
    assert answer.status_code in (400, 422), answer.text
    assert field in answer.text
    assert len(answer.text) < 1_000


async def test_an_object_with_too_many_names_is_refused(door: Door) -> None:
    """pydantic would describe each that it does not know."""
    names = dict.fromkeys(map(str, range(json_body.MOST_NAMES + 1)), 1)
    answer = await door.http.post("/api/runs/x/decisions", json=names, headers=headers_of("", "ada"))
    assert answer.status_code == 413
    assert "10,001 names; the limit is 10,000" in answer.text


async def test_the_result_of_a_call_may_have_more_values_and_names(door: Door) -> None:
    """It is as long as the page on deferred tools allows. Temporal is away here, so what is accepted is answered with 503."""
    path = await with_token("/api/callbacks/token")
    for result in ([1] * 300_000, dict.fromkeys(map(str, range(12_000)), 1)):
        assert (await door.http.post(path, json={"result": result})).status_code == 503
    answer = await door.http.post(path, json={"result": [1] * (json_body.MOST_RESULT_VALUES + 1)})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_who_sends_much_more_than_the_limit_reads_that_it_is_too_large(door: Door) -> None:
    headers = headers_of("/api/runs", "ada")
    answer = await door.http.post("/api/runs", content=b"x" * 60_000_000, headers=headers)
    assert answer.status_code == 413


async def test_requests_to_sign_in_that_are_never_complete_keep_nobody_out(door: Door) -> None:
    host, _, port = door.url.removeprefix("http://").partition(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
    for _, writer in held:
        writer.write(b"POST /console/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
        await writer.drain()
    await door.http.get("/console/sign-in")  # the server has read what was sent before
    signed_in = await door.http.post("/console/sign-in", data={"token": "token-of-ada", "next": "/"})
    assert signed_in.status_code == 303
    wrong = [await door.http.post("/console/sign-in", data={"token": "wrong"}) for _ in range(11)]
    assert [answer.status_code for answer in wrong] == [401] * 10 + [429]
    for _, writer in held:
        writer.close()


async def test_the_input_of_a_run_is_prepared_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def prepare(*_: Any) -> None:
        threads.append(threading.current_thread())
        raise InvalidRunInputError("no")

    monkeypatch.setattr(start_run, "start_argument", prepare)
    client = await connect("127.0.0.1:1", lazy=True)
    with pytest.raises(InvalidRunInputError):
        await start_run.begin_run(client, RunInput(agent="a", prompt="x"), "id", "queue")
    assert threading.main_thread() not in threads


async def test_unfinished_bodies_of_a_tenant_are_bounded_together_and_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three bodies of 100 KB that do not end: two may wait, and all that is held is free again when they have gone."""
    client = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    async with http_server(client, tokens=TOKENS, bodies=BodyLimits(most_held=HELD)) as door:

        def unfinished(who: str) -> asyncio.Task[int]:
            headers = headers_of("", "") | door.by(who)
            pieces: Pieces = lambda: iter([(b"[" + b"x" * 99_999, GIVE_UP)])  # noqa: E731
            return asyncio.create_task(send(door, "POST", "/api/runs", headers, 200_000, pieces))

        ada = [unfinished("ada") for _ in range(3)]
        done, waiting = await asyncio.wait(ada, return_when=asyncio.FIRST_COMPLETED)
        assert [await each for each in done] == [503]
        small = await door.http.post("/api/runs", content=b"[]" + b" " * 150_000, headers=door.by("bob"))
        assert small.status_code == 422, small.text
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while answer := await door.http.post("/api/runs", content=b"[]" + b" " * 150_000, headers=door.by("ada")):
            if answer.status_code == 422:
                break
            assert answer.json()["code"] == "too_many_bodies"
