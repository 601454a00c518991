"""Hostile values in each place of each route: no answer is the server's fault, and none tells of its machine.

The routes and their parameters are read from the application, so that a new one is tested without a line here; only the body of
a new POST has to be added.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from zlib import crc32

import httpx2
import pytest
from fastapi.routing import APIRoute

import mulligan
from mulligan.serve.arriving_body import BodyLimits
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.served_routes import SERVED_ROUTES

TEXTS = [
    "", " ", "0001-01-01", "9999-12-31T23:59-23:59", "0001-01-01T00:00+23:59", "https://[", "é", "\0", "\u202e\n", "a" * 3_000, "-1",
    "0", "9" * 30, "1e400", "NaN", "-Infinity", "../../../etc/passwd", "\"';--%", "[]", "null", "true", "~a=(1)", "WzEsIDFd",
    "WyIiLCBJbmZpbml0eV0=", "Ij8i",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 2**63, 10**400, 1.5, 1e308, "", "https://[", "data:;base64,", "é", "\0", "\u202e", "0001-01-01", "x" * 100_000, [], {},
    [None], [[]], {"a": {}}, {"type": "text"}, {"role": []}, "9" * 5_000,
]  # fmt: skip
ALMOST_JSON = [b"NaN", b'"\\ud800"', b"1" + b"0" * 2_000, b"[" * 300, b'{"a": 1, "a": 2}', b"\xff"]
HEADERS = {
    "Authorization": ["Bearer \xff", "Basic x", "Bearer"],
    "Origin": ["https://[", "null", "\xff"],
    "Last-Event-ID": ["https://[", "9" * 30, "~\xff"],
    "Idempotency-Key": ["\xff", "k" * 2_000],
    "X-Stainless-Retry-Count": ["-1", "9" * 30, "\xb2"],
    "Accept": ["text/event-stream", "\xff"],
    "Content-Type": ["text/plain; charset=\xff", "multipart/form-data"],
    "Cookie": [
        "mulligan_session=\xff",
        "mulligan_session=9999999999.a.b",
        "mulligan_note=%ED%A0%80",
        "mulligan_form=\xff",
    ],
    "X-Forwarded-For": ["https://[", "\xff"],
    "webhook-signature": ["v1,\xe9"],
}
USER = {"id": "m1", "role": "user"}
MCP = {
    "jsonrpc": "2.0", "id": 1, "method": "tools/call",
    "params": {
        "name": "policy_reader", "arguments": {"prompt": "Go."},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}  # fmt: skip
PARTS = [
    {"type": "text", "text": "Go."},
    {"type": "image", "url": "https://example.com/a.png", "media_type": "image/png"},
]
BODIES: dict[str, Any] = {
    "/api/runs": {
        "agent": "policy_reader", "prompt": PARTS, "messages": [{"role": "user", "text": "Hi."}], "metadata": {"a": "b"}, "max_steps": 1,
        "model": "scripted:policy_reader", "max_cost": 1.0, "priority": 1, "tenant": "ada", "traceparent": "00", "id": None,
    },
    "/api/runs/{id:path}/messages": {"text": "", "content": PARTS, "id": "m", "conversation": "0"},
    "/api/runs/{id:path}/decisions": {"call_id": "c", "decision": "deny", "reason": "No.", "arguments": {"a": 1}},
    "/api/runs/{id:path}/answers": {"call_id": "c", "text": "Yes."},
    "/api/runs/{id:path}/stop": {"reason": "Late."},
    "/api/runs/{id:path}/cancel": {},
    "/api/runs/{id:path}/resume": {"prompt": PARTS, "id": "x", "max_steps": 1, "model": "scripted:policy_reader"},
    "/api/runs/{id:path}/fork": {
        "at": 1, "edits": {"prompt": PARTS, "message": "Go.", "results": {"c": 1}}, "tools": "recorded", "unrecorded": "error",
        "max_steps": 1, "conversation": "0", "pinned": True, "id": "x",
    },
    "/api/runs/{id:path}/undo": {"from_step": 1, "continue": True, "lost": True, "although_continued": True},
    "/api/callbacks/{token}": {"result": {"a": 1}},
    "/api/webhooks/openai": {"type": "response.completed", "data": {"id": "resp_1"}},
    "/v1/responses": {
        "model": "policy_reader", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}],
        "previous_response_id": "resp_x", "instructions": "Be kind.", "metadata": {"a": "b"}, "stream": False, "background": False,
    },
    "/v1/responses/{response_id:path}/cancel": {},
    "/v1/responses/{path:path}": {},
    "/v1/chat/completions": {
        "model": "policy_reader", "stream": False, "n": 1, "temperature": 1, "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
                                         {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}]},
            {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "y"}, {"role": "user", "content": "Go."},
        ],
    },
    "/ag-ui/{agent}": {
        "threadId": "t", "runId": "r", "tools": [], "context": [], "state": None, "forwardedProps": None, "resume": [],
        "messages": [{**USER, "content": [{"type": "text", "text": "Go."}, {"type": "binary", "mimeType": "image/png", "url": "https://a/b"}]}],
    },
    "/ai-sdk/{agent}": {
        "id": "c", "trigger": "submit-message", "messages": [
            {**USER, "parts": [{"type": "text", "text": "Go."}, {"type": "file", "mediaType": "image/png", "url": "https://a/b", "filename": "b"}]}
        ],
    },
    "/mcp": MCP,
}  # fmt: skip
"""A valid body for each POST but those of forms."""
FORMS = {
    "/console/sign-in": {"token": "x", "next": "/"},
    "/console/sign-out": {},
    "/console/start": {
        "agent": "policy_reader",
        "prompt": "Go.",
        "max_steps": "1",
        "max_cost": "1",
        "priority": "1",
        "id": "",
        "form_id": "",
    },
    "/console/decide": {
        "run": "RUN",
        "call_id": "CALL",
        "action": "approve",
        "arg.0": "7",
        "arg.1.0": "1",
        "json": "{}",
        "reason": "",
    },
    "/console/rules/delete": {"name": "pay-1", "run": "RUN", "tenant": "", "only": ""},
    "/console/runs/{run_id:path}/resume": {"prompt": "Go.", "max_steps": "1", "model": ""},
    "/console/runs/{run_id:path}/fork": {
        "at": "1",
        "prompt": "Go.",
        "message": "",
        "instructions": "",
        "model": "",
        "call": "CALL",
        "result": "1",
        "tools": "diverge",
        "id": "",
    },
    "/console/runs/{run_id:path}/undo": {"continue": "1", "lost": "1", "although_continued": "1"},
    "/console/runs/{run_id:path}/{action}": {"text": "Go.", "reason": "", "message_id": "m"},
}
MACHINE = re.compile(
    "|".join(re.escape(str(each)) for each in (Path(mulligan.__file__).parents[1], Path(json.__file__).parents[1], Path.home()))
)  # fmt: skip
TOKENS = "hostile:token-of-hostile,root:token-of-root:*"
"""A tenant of this file: rules of other tests' tenants are in workflows whose worker has ended."""
TRIES = 10
"""Of a request to which a worker has not answered in time: a busy machine answers the next one, a hostile value does not."""
QUEUE = "hostile-requests"
AT_ONCE = 8
SHARE = int(os.environ.get("HOSTILE_SHARE", "6"))
Sent = tuple[str, str, dict[str, Any]]
"""The method, the path with its query, and other arguments of the client."""


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.support.console_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, tokens=TOKENS, task_queue=QUEUE, bodies=BodyLimits(most_bytes=1_000_000)) as served,
    ):
        yield served


@pytest.fixture(scope="module")
async def run_id(door: Door) -> str:
    """A run that waits for a person."""
    chosen = f"waits-{uuid.uuid4().hex[:8]}"
    await door.http.post(
        "/api/runs", json={"agent": "support-desk", "prompt": "Go.", "id": chosen}, headers=door.by("hostile")
    )
    while not (await door.http.get(f"/api/runs/{chosen}/pending", headers=door.by("hostile"))).json():
        await asyncio.sleep(0.1)
    return chosen


def some(values: list[Any], place: str) -> list[Any]:
    """The values for a place: each place has its own, and each value is in as many places. HOSTILE_SHARE=1: all of them."""
    return [value for number, value in enumerate(values) if (number + crc32(place.encode())) % SHARE == 0]


def mutations(value: Any, place: str) -> Iterator[Any]:
    """The value with hostile ones in each of its places, and with each entry left out. `place`: where it is."""
    yield from some(VALUES, place)
    places = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for name, inner in places:
        for changed in mutations(inner, f"{place}/{name}"):
            copied = copy.copy(value)
            copied[name] = changed
            yield copied
    if isinstance(value, dict):
        yield from ({name: each for name, each in value.items() if name != left_out} for left_out in value)
        yield value | {"unknown\0": 1}


def path_of(route: APIRoute, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::path)?\}", lambda found: quote(values.get(found[1], "x"), safe=""), route.path)


def requests_of(method: str, route: APIRoute, run_id: str) -> Iterator[Sent]:
    """What is sent to a route. Bytes that are no UTF-8 are in the raw paths at the end."""
    known = {
        "id": run_id,
        "run_id": run_id,
        "agent": "policy_reader",
        "name": "policy_reader",
        "model": "policy_reader",
        "action": "stop",
    }
    base = path_of(route, known)
    body = BODIES.get(route.path) if method == "POST" else None
    has_body = method not in {"GET", "HEAD", "DELETE"}
    plain: dict[str, Any] = {} if not has_body else {"data": FORMS[route.path]} if body is None else {"json": body}
    if route.path == "/api/webhooks/openai":  # its signature is compared for a time that is now
        plain["headers"] = {"webhook-id": "1", "webhook-timestamp": str(int(time.time()))}
    here = f"{method} {route.path}"
    for name in (each.alias for each in route.dependant.path_params):
        texts = some(TEXTS[1:], f"{here} {name}")
        yield from ((method, path_of(route, {**known, name: text}), plain) for text in texts)
    for name in (each.alias for each in route.dependant.query_params):
        yield from ((method, f"{base}?{urlencode({name: text})}", plain) for text in some(TEXTS, f"{here} {name}"))
    for header, value in some([(name, value) for name in HEADERS for value in HEADERS[name]], here):
        changed = {**plain.get("headers", {}), header: value.encode("latin-1")}
        yield method, base, {**plain, "headers": changed}
    if method == "POST":
        yield from ((method, base, {"content": text}) for text in ALMOST_JSON)
    if body is not None:
        yield from ((method, base, {"content": json.dumps(each).encode()}) for each in mutations(body, here))
    elif method == "POST":
        form = {
            name: {"RUN": run_id, "CALL": "call_5_1"}.get(value, value) for name, value in FORMS[route.path].items()
        }
        yield from (
            (method, base, {"data": {**form, name: text}}) for name in form for text in some(TEXTS, f"{here} {name}")
        )
    yield method, f"{base}%ED%A0%80?%ED%A0%80=%FF&since=%FF", plain


async def send(http: httpx2.AsyncClient, sent: Sent, headers: dict[str, str]) -> tuple[int, str]:
    method, path, arguments = sent
    given = {"Accept": "application/json, text/event-stream", **headers, **arguments.get("headers", {})}
    if "content" in arguments or "json" in arguments:
        given = {"Content-Type": "application/json", "Mcp-Protocol-Version": "2026-07-28", **given}
    rest = {name: value for name, value in arguments.items() if name != "headers"}
    async with http.stream(method, path, headers=given, **rest) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, ""
        return answer.status_code, (await answer.aread()).decode("utf-8", "replace")


@pytest.mark.parametrize("name", SERVED_ROUTES)
async def test_no_hostile_value_is_a_fault_of_the_server(
    door: Door, run_id: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_WEBHOOK_SECRET", "whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    faults: list[str] = []
    late: list[Sent] = []
    limit = asyncio.Semaphore(AT_ONCE)

    async def check(sent: Sent, *, is_last: bool = False) -> None:
        async with limit:
            status, text = await send(door.http, sent, door.by("hostile"))
        if status in {503, 504} and not is_last:
            late.append(sent)
        elif status >= 500 or "Traceback" in text or MACHINE.search(text):
            faults.append(f"{status} {str(sent)[:300]} {text[:300]}")

    every = list(requests_of(name.partition(" ")[0], SERVED_ROUTES[name], run_id))
    assert len(every) > 3
    await asyncio.gather(*(check(sent) for sent in every))
    for tried in range(1, TRIES):
        again, late = late, []
        for sent in again:  # one after the other: nothing else keeps the worker busy
            await check(sent, is_last=tried == TRIES - 1)
    assert not faults, "\n".join([f"{len(faults)} of {len(every)} requests", *faults[:20]])
