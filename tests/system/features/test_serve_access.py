"""Who may call `mulligan serve`, and what is refused: each rule on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.service import RetryConfig

from mulligan import connect
from mulligan.serve.arriving_body import BodyLimits
from tests.support.http_server import Door, http_server

TOKENS = "ada:token-of-ada,bob:token-of-bob:shop|clerk,root:token-of-root:*"
NOBODY: dict[str, str] = {}


@pytest.fixture(scope="module")
async def door() -> AsyncIterator[Door]:
    """A server whose Temporal is away."""
    client = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    served = http_server(
        client,
        tokens=TOKENS,
        hosts=["agents.example.com"],
        origins=["https://shop.example.com"],
        bodies=BodyLimits(most_bytes=1_000),
    )
    async with served as running:
        yield running


REFUSED: list[tuple[str, str, str, dict[str, Any], int, str, str]] = [
    # what, method, path, request, status, code, a part of the sentence
    ("no token", "GET", "/api/runs", {"headers": NOBODY}, 401, "unauthorized", "Authorization: Bearer"),
    (
        "half a surrogate pair", "POST", "/api/runs/x/messages",
        {"content": b'{"text": "x", "\\ud800": 1}', "headers": {"Content-Type": "application/json"}},
        422, "invalid_input", "valid string",
    ),
    ("another token", "GET", "/api/runs", {"headers": {"Authorization": "Bearer x"}}, 401, "unauthorized", "not known"),
    ("no Bearer", "GET", "/api/runs", {"headers": {"Authorization": "Basic token-of-ada"}}, 401, "unauthorized", "Bearer"),
    ("not ASCII", "GET", "/api/runs", {"headers": {"Authorization": b"Bearer \xff\xfe"}}, 401, "unauthorized", "not known"),
    ("foreign host", "GET", "/api/runs", {"headers": {"Host": "evil.example"}}, 421, "foreign_host", "--allow-host"),
    ("foreign page", "GET", "/api/runs", {"headers": {"Origin": "https://evil.example"}}, 403, "foreign_origin", "--allow-origin"),
    ("null origin", "GET", "/api/runs", {"headers": {"Origin": "null"}}, 403, "foreign_origin", "--allow-origin"),
    ("large body", "POST", "/api/runs", {"content": b" " * 2_000}, 413, "too_large", "1,000 bytes"),
    ("large stream", "POST", "/api/runs", {"content": None}, 413, "too_large", "1,000 bytes"),
    ("not JSON", "POST", "/api/runs", {"content": b"{"}, 400, "invalid_json", "not JSON"),
    ("not JSON", "POST", "/api/runs/x/messages", {"content": b"{"}, 400, "invalid_json", "not JSON"),
    ("deep JSON", "POST", "/api/runs", {"content": b"[" * 900}, 400, "invalid_json", "not JSON"),
    ("a list", "POST", "/api/runs", {"json": []}, 422, "invalid_input", "one JSON object"),
    ("no agent", "POST", "/api/runs", {"json": {"prompt": "x"}}, 422, "invalid_input", '"agent"'),
    ("unknown field", "POST", "/api/runs", {"json": {"agent": "a", "prompt": "x", "promt": 1}}, 422, "invalid_input", '"promt"'),
    ("bad id", "POST", "/api/runs", {"json": {"agent": "a", "prompt": "x", "id": 7}}, 422, "invalid_input", '"id"'),
    ("empty id", "POST", "/api/runs", {"json": {"agent": "a", "prompt": "x", "id": " "}}, 422, "invalid_input", '"id"'),
    (
        "an id of a tenant's budget", "POST", "/api/runs",
        {"json": {"agent": "a", "prompt": "x", "id": "mulligan-budget-other-2026-11-24"}},
        422, "invalid_input", "have ids of this form",
    ),
    (
        "an id of a collector", "POST", "/api/runs",
        {"json": {"agent": "a", "prompt": "x", "id": "mulligan-batch-mulligan-openai:m"}},
        422, "invalid_input", "have ids of this form",
    ),
    ("no prompt", "POST", "/api/runs", {"json": {"agent": "a"}}, 422, "invalid_input", '"prompt"'),
    ("no call id", "POST", "/api/runs/x/decisions", {"json": {"decision": "approve"}}, 422, "invalid_input", '"call_id" is missing'),
    ("bad decision", "POST", "/api/runs/x/decisions", {"json": {"call_id": "c", "decision": "maybe"}}, 422, "invalid_input", "maybe"),
    ("unknown field", "POST", "/api/runs/x/stop", {"json": {"why": "x"}}, 422, "invalid_input", '"why"'),
    ("bad limit", "GET", "/api/runs?limit=0", {}, 422, "invalid_input", '"limit" is "0", but it must be at least 1.'),
    ("limit in words", "GET", "/api/runs?limit=few", {}, 422, "invalid_input", '"limit" is "few", but it must be an integer.'),
    ("bad time", "GET", "/api/runs?since=soon", {}, 422, "invalid_input", "a time such as 2026-11-22T12:00:00Z"),
    ("a text as call id", "POST", "/api/runs/x/decisions", {"json": {"call_id": 7, "decision": "approve"}}, 422, "invalid_input", "it must be a string"),
    ("bad status", "GET", "/api/runs?status=odd", {}, 422, "invalid_input", '"status" is \'odd\''),
    ("bad cursor", "GET", "/api/runs?cursor=odd", {}, 422, "invalid_input", '"cursor" is \'odd\''),
    ("no such path", "GET", "/api/none", {}, 404, "path_not_found", "/api/none"),
    ("wrong method", "DELETE", "/api/runs", {}, 405, "wrong_method", "DELETE"),
    ("Temporal is away", "GET", "/api/runs", {}, 503, "unavailable", "Try again"),
    ("Temporal is away", "POST", "/api/runs", {"json": {"agent": "a", "prompt": "x"}}, 503, "unavailable", "Try again"),
    ("Temporal is away", "GET", "/api/runs/x/events", {"headers": {"Accept": "text/event-stream"}}, 503, "unavailable", "Try again"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "code", "sentence"),
    [row[1:] for row in REFUSED],
    ids=[f"{row[0]} {row[1]} {row[2]}" for row in REFUSED],
)
async def test_what_is_refused_gets_one_sentence_as_problem_json(
    door: Door, method: str, path: str, request_: dict[str, Any], status: int, code: str, sentence: str
) -> None:
    headers = request_.pop("headers", None) if "headers" in request_ else None
    request = {**request_}
    if request.get("content", b"") is None:
        request["content"] = pieces()
    given = {**door.by("ada"), **(headers or {})} if headers != NOBODY else NOBODY
    answer = await door.http.request(method, path, headers=given, **request)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert sentence in problem["detail"]
    assert "Traceback" not in answer.text
    assert "token-of" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)
    assert ("www-authenticate" in answer.headers) == (status == 401)
    if headers and "Origin" in headers:
        assert "access-control-allow-origin" not in answer.headers


async def pieces() -> AsyncIterator[bytes]:
    """A body without a Content-Length."""
    for _ in range(5):
        yield b" " * 300


async def test_pages_of_allowed_origins_may_call_and_read_refusals(door: Door) -> None:
    """The preflight has no token; other origins get no CORS headers."""
    origin = {"Origin": "https://shop.example.com"}
    asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = await door.http.options("/api/runs", headers=asking)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://shop.example.com"
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    refused = await door.http.get("/api/runs", headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://shop.example.com"
    foreign = await door.http.options("/api/runs", headers={**asking, "Origin": "https://evil.example"})
    assert foreign.status_code == 403
    own = await door.http.get("/api/none", headers={**door.by("ada"), "Origin": door.url})
    assert own.status_code == 404


async def test_named_hosts_are_served_and_the_api_describes_itself_to_everybody(door: Door) -> None:
    answer = await door.http.get("/api/openapi.json", headers={"Host": "agents.example.com:443"})
    assert answer.status_code == 200
    assert {"/api/runs", "/api/runs/{id}/events", "/api/agents"} <= set(answer.json()["paths"])
