"""A request that is sent again starts no second run: whatever fails, with the SDK of OpenAI and its own repetitions.

Each test has a tenant of its own. Its runs are counted on the Temporal server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from temporalio.service import RPCError

from mulligan.client.connect import connect
from mulligan.run_input import RunInput
from mulligan.serve import idempotency
from mulligan.serve.idempotency import StartRequest, Starts
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.lost_answers import Faults, unavailable, with_faults
from tests.support.openai_door_agents import MODEL, SCRIPTS, scripted
from tests.support.openai_turn import Turn
from tests.support.search_size import examples
from tests.support.tcp_proxy import tcp_proxy

REPEATED = {408, 409, 429, *range(500, 600)}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@dataclass
class Shop:
    """Two servers for one tenant, whose calls of Temporal fail as `faults` says."""

    lab: Lab
    tenant: str
    doors: list[Door]
    faults: Faults
    starts: list[str]

    @property
    def by(self) -> dict[str, str]:
        return self.doors[0].by(self.tenant)

    def sdk(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.doors[0].url}/v1", api_key=f"token-of-{self.tenant}", **options)

    async def post(self, path: str, body: Any, door: int = 0, /, **headers: str) -> Any:
        sent = {**self.by, **ACCEPT, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.doors[door].http.stream("POST", path, json=body, headers=sent) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                await answer.aread()
            return answer

    async def runs(self) -> list[str]:
        """The ids of the runs that there are, of all that a server has tried to start."""
        there = []
        for run_id in dict.fromkeys(self.starts):
            with contextlib.suppress(RPCError):
                await self.lab.client.get_workflow_handle(run_id).describe()
                there.append(run_id)
        return there


@pytest.fixture(scope="module")
async def queue(lab: Lab) -> AsyncIterator[str]:
    name = f"repeats-{uuid.uuid4().hex[:6]}"
    lab.model.script(MODEL, scripted(SCRIPTS))
    async with running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, name):
        yield name


@asynccontextmanager
async def shop_of(lab: Lab, queue: str, **options: Any) -> AsyncIterator[Shop]:
    starts: list[str] = []
    faults, tenant = Faults(starts=starts), f"t{uuid.uuid4().hex[:10]}"
    served = {"task_queue": queue, "tokens": f"{tenant}:token-of-{tenant}", **options}
    async with AsyncExitStack() as stack:
        doors = [
            await stack.enter_async_context(http_server(with_faults(lab.client, each), **served))
            for each in (faults, Faults(starts=starts))
        ]
        yield Shop(lab, tenant, doors, faults, starts)


@pytest.fixture
async def shop(lab: Lab, queue: str) -> AsyncIterator[Shop]:
    async with shop_of(lab, queue) as served:
        yield served


async def respond(sdk: AsyncOpenAI, prompt: str, agent: str = "seller") -> str:
    return (await sdk.responses.create(model=agent, input=prompt)).output_text


async def respond_in_stream(sdk: AsyncOpenAI, prompt: str, agent: str = "seller") -> str:
    stream = await sdk.responses.create(model=agent, input=prompt, stream=True)
    return [event async for event in stream][-1].response.output_text  # type: ignore[union-attr]


async def chat(sdk: AsyncOpenAI, prompt: str, agent: str = "seller") -> str:
    done = await sdk.chat.completions.create(model=agent, messages=[{"role": "user", "content": prompt}])
    return done.choices[0].message.content or ""


async def chat_in_stream(sdk: AsyncOpenAI, prompt: str, agent: str = "seller") -> str:
    stream = await sdk.chat.completions.create(model=agent, messages=[{"role": "user", "content": prompt}], stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


Ask = Callable[..., Any]
ASKS = [respond, respond_in_stream, chat, chat_in_stream]


@pytest.mark.parametrize("ask", ASKS)
async def test_a_start_whose_answer_was_lost_is_found_by_the_sdks_repetition(shop: Shop, ask: Ask) -> None:
    shop.faults.lose_starts = 2
    async with shop.sdk() as sdk:
        assert await ask(sdk, "Say hello.") == "Hello."
    assert len(await shop.runs()) == 1


@pytest.mark.parametrize("ask", ASKS)
async def test_a_connection_that_breaks_before_the_answer_is_one_run(shop: Shop, ask: Ask) -> None:
    async with tcp_proxy(shop.doors[0].url.removeprefix("http://")) as proxy:
        proxy.end_next_answer()
        token = f"token-of-{shop.tenant}"
        async with AsyncOpenAI(base_url=f"http://{proxy.address}/v1", api_key=token) as sdk:
            assert await ask(sdk, "Say hello.") == "Hello."
        assert proxy.answers_ended == 1
    assert len(await shop.runs()) == 1


@pytest.mark.parametrize("ask", ASKS)
async def test_a_full_server_refuses_before_anything_was_started(
    lab: Lab, queue: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of an SDK's attempts is refused; when a place is free, the next request starts one run."""
    monkeypatch.setattr("mulligan.serve.problems.RETRY_AFTER", 0)
    async with shop_of(lab, queue, most_watchers=1) as shop, shop.sdk() as sdk:
        waiting = await sdk.responses.create(model="seller", input="Ask me.", background=True)
        async with shop.doors[0].http.stream(
            "GET", f"/api/runs/{waiting.id}/events", headers={**shop.by, "Accept": "text/event-stream"}
        ) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            with pytest.raises(openai.InternalServerError) as refused:
                await ask(sdk, "Say hello.")
            assert (refused.value.status_code, refused.value.code) == (503, "too_many_watchers")
            for path, body in OTHER_STARTS:
                answer = await shop.post(path, body, **MCP_HEADERS)
                assert answer.status_code == 503, (path, answer.text)
            assert await shop.runs() == [waiting.id]
        while len(await shop.runs()) == 1:  # the server notices after a moment that the stream was closed
            with contextlib.suppress(openai.InternalServerError):
                assert await ask(sdk, "Say hello.") == "Hello."
        assert len(await shop.runs()) == 2


@pytest.mark.parametrize("ask", [respond, chat])
async def test_a_client_that_gives_up_three_times_has_one_run(
    shop: Shop, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's answer is held back until then."""
    attempts: list[int | None] = []
    start = Starts.start

    async def counted(self: Starts, run_input: RunInput, request: StartRequest) -> tuple[str, bool]:
        try:
            return await start(self, run_input, request)
        finally:  # also where the client has given up before the run was started
            attempts.append(request.attempt)

    monkeypatch.setattr(Starts, "start", counted)
    gate, prompt = asyncio.Event(), f"Wait {uuid.uuid4().hex}."
    shop.lab.model.script(MODEL, scripted({**SCRIPTS, prompt: [Turn("At last.", wait=gate)]}))
    async with shop.sdk(timeout=5.0) as sdk:
        with pytest.raises(openai.APITimeoutError):
            await ask(sdk, prompt)
    while len(attempts) < 3:
        await asyncio.sleep(0.05)
    gate.set()
    assert sorted(attempts, key=str) == [0, 1, 2]
    assert len(await shop.runs()) == 1


@pytest.mark.parametrize(
    ("agent", "prompt", "code"), [("strict_seller", "Fail.", "run_failed"), ("seller", "Ask me.", "waiting_for_person")]
)
async def test_a_run_that_failed_or_waits_is_no_reason_to_send_the_request_again(
    shop: Shop, agent: str, prompt: str, code: str
) -> None:
    """A chat completion is refused with the id of the run; a response has the status of the run."""
    async with shop.sdk() as sdk:
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            await chat(sdk, prompt, agent)
        assert refused.value.code == code
        [run] = await shop.runs()
        assert run in str(refused.value)
        response = await sdk.responses.create(model=agent, input=prompt)
    assert response.status == ("failed" if code == "run_failed" else "in_progress")
    assert len(await shop.runs()) == 2


MCP_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HTTP_HEADERS = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "seller"}
MCP_HEADERS = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": "seller"}


def mcp_call(name: str, **arguments: str) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": MCP_META}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


HELLO = [{"role": "user", "content": "Say hello."}]
OTHER_STARTS: list[tuple[str, dict[str, Any]]] = [
    ("/ag-ui/seller", {"threadId": "t", "runId": "r", "messages": [{"id": "m", **HELLO[0]}]}),
    (
        "/ai-sdk/seller",
        {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Say hello."}]}]},
    ),
    ("/mcp", mcp_call("seller", prompt="Say hello.")),
]
STARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "api": ("/api/runs", {"agent": "seller", "prompt": "Say hello."}),
    "response": ("/v1/responses", {"model": "seller", "input": "Say hello."}),
    "response in the background": ("/v1/responses", {"model": "seller", "input": "Say hello.", "background": True}),
    "response in a stream": ("/v1/responses", {"model": "seller", "input": "Say hello.", "stream": True}),
    "chat": ("/v1/chat/completions", {"model": "seller", "messages": HELLO}),
    "chat in a stream": ("/v1/chat/completions", {"model": "seller", "messages": HELLO, "stream": True}),
    "ag-ui": OTHER_STARTS[0],
    "ai-sdk": OTHER_STARTS[1],
    "ag-ui without a message id": ("/ag-ui/seller", {"threadId": "t", "runId": "r", "messages": HELLO}),
    "ai-sdk without a message id": (
        "/ai-sdk/seller",
        {"id": "c", "messages": [{"role": "user", "parts": [{"type": "text", "text": "Say hello."}]}]},
    ),
    "mcp": OTHER_STARTS[2],
    "mcp start_run": ("/mcp", mcp_call("start_run", agent="seller", prompt="Say hello.")),
}


def bug() -> Exception:
    return KeyError("a bug of the server")


def slow() -> Exception:
    return TimeoutError()


ERRORS = [unavailable, bug, slow]


@pytest.mark.parametrize("first", range(3) if os.environ.get("FAULTS") == "all" else [0])
@pytest.mark.parametrize("protocol", STARTS)
async def test_whatever_fails_after_the_start_no_status_says_to_send_the_request_again(
    shop: Shop, protocol: str, first: int
) -> None:
    """Each call of Temporal after the start fails once: the first of one request, the second of the next, and so on; with each
    kind of error in turn, and each protocol begins with another kind. FAULTS=all: each call with each kind.
    """
    path, body = STARTS[protocol]
    headers = MCP_HEADERS if path == "/mcp" else {}
    if "start_run" in json.dumps(body):
        headers = {**headers, "Mcp_Name": "start_run"}
    requests = 0
    while shop.faults.fail_call == 0 and requests < 30:
        requests += 1
        shop.faults.has_started, shop.faults.fail_call = False, requests
        shop.faults.error = ERRORS[(first + requests + list(STARTS).index(protocol)) % 3]
        # Chat protocols recognize a message by its id, and a thread has one turn at a time.
        fresh = json.loads(json.dumps(body).replace('"t"', f'"t{requests}"').replace('"c"', f'"c{requests}"'))
        answer = await shop.post(path, fresh, **headers)
        assert answer.status_code not in REPEATED, (requests, answer.text)
        if protocol.startswith("response"):
            assert answer.status_code == 200, answer.text
        assert shop.faults.has_started
        assert len(await shop.runs()) == requests
    assert shop.faults.fail_call > 0, "each call was made to fail"


@pytest.mark.parametrize("protocol", STARTS)
async def test_a_start_that_may_have_been_carried_out_is_not_to_be_sent_again_by_clients_that_are_not_recognized(
    shop: Shop, protocol: str
) -> None:
    """Its answer is lost, and Temporal does not say whether the run is there. Chat protocols recognize a message's id."""
    path, body = STARTS[protocol]
    headers = {**MCP_HEADERS, "Mcp_Name": body.get("params", {}).get("name", "")} if path == "/mcp" else {}
    shop.faults.lose_starts, shop.faults.fail_call = 1, 1
    answer = await shop.post(path, body, **headers)
    if protocol in ("ag-ui", "ai-sdk"):
        assert answer.status_code == 503
        shop.faults.fail_call = 0
        assert (await shop.post(path, body)).status_code == 200
    else:
        assert answer.status_code not in REPEATED, answer.text
        assert "may or may not have been started" in answer.text
    [run] = await shop.runs()
    assert run in answer.text or protocol in ("ag-ui", "ai-sdk")


CHATS = [protocol for protocol in STARTS if protocol.startswith("a") and protocol != "api"]


@pytest.mark.parametrize("protocol", CHATS)
@pytest.mark.parametrize("is_away", [False, True], ids=["Temporal says it", "Temporal is away"])
@pytest.mark.parametrize("turn", [1, 2])
async def test_a_message_whose_start_was_lost_is_one_turn(
    shop: Shop, protocol: str, turn: int, *, is_away: bool
) -> None:
    """The first turn of a conversation, or one that continues it. A message with an id may be sent again, any other not."""
    path, body = STARTS[protocol]
    if turn == 2:
        assert (await shop.post(path, body)).status_code == 200
        [first] = await shop.runs()
        await shop.lab.client.get_workflow_handle(first).result()
        body = json.loads(json.dumps(body).replace('"m"', '"m2"'))
    shop.faults.lose_starts, shop.faults.fail_call, shop.faults.has_started = 1, int(is_away), False
    answer = await shop.post(path, body)
    assert len(await shop.runs()) == turn
    if protocol in ("ag-ui", "ai-sdk"):
        assert answer.status_code == 503
        shop.faults.fail_call = 0
        assert (await shop.post(path, body)).status_code == 200
        assert len(await shop.runs()) == turn
    elif is_away:
        assert (answer.status_code, answer.json()["code"]) == (422, "start_unknown")
        assert "a message with an id can be sent again" in answer.text
        assert (await shop.runs())[-1] in answer.text
    else:
        assert answer.status_code == 200


async def test_a_start_is_one_run_when_the_connection_to_temporal_breaks_off_during_it(lab: Lab, queue: str) -> None:
    """Temporal's SDK sends it again, with the id of the same request."""
    tenant = f"t{uuid.uuid4().hex[:10]}"
    async with tcp_proxy(lab.client.service_client.config.target_host) as proxy:
        client = await connect(proxy.address, namespace=lab.client.namespace)
        faults, tokens = Faults(), f"{tenant}:token-of-{tenant}"
        async with http_server(with_faults(client, faults), task_queue=queue, tokens=tokens) as door:
            shop = Shop(lab, tenant, [door, door], faults, faults.starts)
            async with shop.sdk() as sdk:
                assert await respond(sdk, "Say hello.") == "Hello."
                for number in range(1, 6):
                    proxy.end_next_answer()
                    assert await respond(sdk, "Say hello.") == "Hello."
                    assert len(await shop.runs()) == number + 1
            assert proxy.answers_ended == 5


@pytest.mark.parametrize("protocol", ["response in the background", "chat in a stream", "api"])
@pytest.mark.parametrize("replica", [0, 1])
@pytest.mark.parametrize("is_quicker", [False, True])
async def test_a_first_attempt_in_flight_and_its_repetition_are_one_run(
    shop: Shop, protocol: str, replica: int, *, is_quicker: bool
) -> None:
    """The start is held back; the repetition comes to the same server or another one, before it or while it is sent."""
    path, body = STARTS[protocol]
    held = shop.faults.hold_start = asyncio.Event()
    first = asyncio.create_task(shop.post(path, body, x_stainless_retry_count="0"))
    await shop.faults.is_held.wait()
    again = asyncio.create_task(shop.post(path, body, replica, x_stainless_retry_count="1"))
    if is_quicker:
        await again
    held.set()
    statuses = [(await each).status_code for each in (first, again)]
    assert set(statuses) <= {200, 201}, statuses
    assert len(await shop.runs()) == 1
    third = await shop.post(path, body, 1 - replica, x_stainless_retry_count="2")
    assert third.status_code == 200
    assert len(await shop.runs()) == 1
    await shop.post(path, body, x_stainless_retry_count="0")
    assert len(await shop.runs()) == 2, "an equal first attempt is another request"


async def test_an_equal_body_is_no_repetition_for_another_tenant_path_or_after_ten_minutes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "seller", "input": "Say hello.", "background": True}
    ids = [(await post_json(shop, body, str(count)))["id"] for count in (0, 1)]
    assert ids[0] == ids[1]
    monkeypatch.setattr(idempotency, "RETRY_SECONDS", 0.000_001)
    assert (await post_json(shop, body, "1"))["id"] != ids[0]
    monkeypatch.undo()
    async with shop_of(shop.lab, "nobody") as other:
        assert (await post_json(other, body, "1"))["id"] != ids[0]


async def post_json(shop: Shop, body: Any, count: str) -> Any:
    return json.loads((await shop.post("/v1/responses", body, x_stainless_retry_count=count)).text)


KEYED = ["api", "response in the background", "chat"]


@pytest.mark.parametrize("protocol", KEYED)
async def test_a_key_is_one_run_for_its_body_on_each_server(shop: Shop, protocol: str) -> None:
    """At the same time, after a lost answer, and when the run has ended. Another body is refused, also with an SDK's count."""
    path, body = STARTS[protocol]
    shop.faults.lose_starts = 1
    answers = await asyncio.gather(*(shop.post(path, body, n % 2, Idempotency_Key="k") for n in range(6)))
    shop.faults.lose_starts = 0  # another request may have started the run
    ids = {answer.json().get("id") for answer in answers if answer.status_code != 503}
    assert len([answer for answer in answers if answer.status_code == 503]) <= 1
    again = await shop.post(path, body, 1, Idempotency_Key="k", x_stainless_retry_count="0")
    assert (again.status_code, {again.json()["id"]}) == (200, ids)
    other = {**body, "metadata": {"a": "b"}}
    for door in (0, 1):
        refused = await shop.post(path, other, door, Idempotency_Key="k", x_stainless_retry_count="1")
        assert refused.status_code == 422
        assert "key_reused" in refused.text
    assert set(await shop.runs()) == ids
    for key in ("", "x" * 1_001):
        assert (await shop.post(path, body, Idempotency_Key=key)).status_code in (400, 422)
    assert (await shop.post(path, body, Idempotency_Key="another")).status_code in (200, 201)
    assert len(await shop.runs()) == 2
    async with shop_of(shop.lab, "nobody") as tenant:
        background = {**body, "stream": True} if protocol == "chat" else body
        assert (await tenant.post(path, background, Idempotency_Key="k")).status_code in (200, 201)
        assert set(await tenant.runs()).isdisjoint(ids)


async def test_a_resume_with_a_key_is_one_run_and_only_the_key_of_that_run_is_reused(shop: Shop) -> None:
    started = (await shop.post("/api/runs", STARTS["api"][1])).json()["id"]
    await shop.doors[0].ended(started, shop.by)
    path = f"/api/runs/{started}/resume"
    answers = [await shop.post(path, {"prompt": "Again."}, door, Idempotency_Key="k") for door in (0, 1)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json() == answers[1].json()
    fresh = await shop.post(path, {"prompt": "Again."}, Idempotency_Key="fresh")
    assert (fresh.status_code, fresh.json()) == (200, answers[0].json())
    for door in (0, 1):
        reused = await shop.post(path, {"prompt": "Another."}, door, Idempotency_Key="k")
        assert (reused.status_code, reused.json()["code"]) == (422, "key_reused")
        for headers in ({}, {"Idempotency_Key": "another"}):
            refused = await shop.post(path, {"prompt": "Another."}, door, **headers)
            assert (refused.status_code, refused.json()["code"]) == (409, "already_resumed")
            assert refused.headers["Location"] == f"/api/runs/{answers[0].json()['id']}"
    assert len(await shop.runs()) == 2


async def test_a_request_with_an_id_and_a_key_is_one_run_under_that_id(shop: Shop) -> None:
    run_id = f"mine-{uuid.uuid4().hex}"
    body = {**STARTS["api"][1], "id": run_id}
    answers = [await shop.post("/api/runs", body, door, Idempotency_Key="k") for door in (0, 1)]
    assert [(answer.status_code, answer.json()["id"]) for answer in answers] == [(201, run_id), (200, run_id)]
    other = await shop.post("/api/runs", {**body, "prompt": "Another."}, Idempotency_Key="k")
    assert (other.status_code, other.json()["code"]) == (422, "id_taken")
    await shop.doors[0].ended(run_id, shop.by)
    again = {"prompt": "Again.", "id": f"{run_id}-2"}
    path = f"/api/runs/{run_id}/resume"
    answers = [await shop.post(path, again, door, Idempotency_Key="k2") for door in (0, 1)]
    assert [(answer.status_code, answer.json()["id"]) for answer in answers] == [(201, again["id"]), (200, again["id"])]
    other = await shop.post(path, {**again, "prompt": "Another."}, Idempotency_Key="k2")
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert len(await shop.runs()) == 2


@pytest.mark.parametrize("form", ["resp_", "chatcmpl-", "keyed-"])
async def test_nobody_takes_an_id_that_is_made_from_a_request(shop: Shop, form: str) -> None:
    run_id = f"{form}{uuid.uuid4().hex}"
    refused = await shop.post("/api/runs", {**STARTS["api"][1], "id": run_id})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    headers = {**MCP_HEADERS, "Mcp_Name": "start_run"}
    call = mcp_call("start_run", agent="seller", prompt="Say hello.", run_id=run_id)
    assert '"isError":true' in (await shop.post("/mcp", call, **headers)).text
    assert await shop.runs() == []


MOVES = st.lists(
    st.lists(st.tuples(st.sampled_from(["first", "again"]), st.integers(0, 2)), min_size=1, max_size=4), max_size=5
)


@settings(
    max_examples=examples(10),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moves=MOVES)
async def test_there_are_never_more_runs_than_first_attempts(lab: Lab, moves: list[list[tuple[str, int]]]) -> None:
    """Any sequence of attempts at three servers, some of them at the same time, on a real Temporal server.

    `moves`: groups of attempts that are made together. A repetition before all first attempts counts as one.
    """
    servers = [Starts(lab.client, "nobody") for _ in range(3)]
    body, run_input = uuid.uuid4().hex, RunInput(agent="nobody", prompt="Go.")
    ids: set[str] = set()
    firsts = 0

    async def attempt(kind: str, server: int) -> tuple[str, str, bool]:
        request = StartRequest("resp_", ("tenant", "/v1/responses"), body, attempt=int(kind == "again"))
        return kind, *await servers[server].start(run_input, request)

    for group in moves:
        before = set(ids)
        done = await asyncio.gather(*(attempt(*each) for each in group))
        in_group = sum(kind == "first" for kind, _ in group)
        firsts += in_group or (not ids)
        ids |= {run_id for _, run_id, _ in done}
        assert len(ids) <= firsts, (group, done)
        assert sum(is_new for *_, is_new in done) == len(ids - before)
        if in_group == len(group):
            assert len(ids - before) == in_group, "equal first attempts are different requests"
        if not in_group:
            assert len({run_id for _, run_id, _ in done}) == 1
    for run_id in ids:
        await lab.client.get_workflow_handle(run_id).terminate()


NO_PLACE = {"api", "response in the background", "mcp start_run"}


@pytest.mark.parametrize("protocol", sorted({*STARTS} - NO_PLACE))
async def test_a_place_comes_back_however_a_request_ends(lab: Lab, queue: str, protocol: str) -> None:
    """It is refused, fails at each of its calls of Temporal, or its client goes at once; there is one place."""
    path, body = STARTS[protocol]
    headers = {**MCP_HEADERS, "Mcp_Name": body.get("params", {}).get("name", "")} if path == "/mcp" else {}
    async with shop_of(lab, queue, most_watchers=1) as shop:
        for number, error in enumerate((bug, unavailable, slow), 1):
            shop.faults.has_started, shop.faults.fail_call, shop.faults.error = True, number, error
            await shop.post(*(path, body), **headers)
        shop.faults.fail_call = 0
        for unknown in ("sell", "nobody"):
            await shop.post(path.replace("seller", unknown), json.loads(json.dumps(body).replace("seller", unknown)))
        host, port = shop.doors[0].url.removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        for sent in (len(content) - 1, len(content)):  # the client goes before the end of its request, and after it
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {shop.by['Authorization']}\r\n"
            writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content[:sent])
            await writer.drain()
            writer.transport.abort()
        while (answer := await shop.post("/v1/chat/completions", STARTS["chat"][1])).status_code == 503:
            await asyncio.sleep(0.1)  # the server notices after a moment that a client has gone
        assert answer.status_code == 200


@pytest.mark.parametrize("first", range(3) if os.environ.get("FAULTS") == "all" else [0])
@pytest.mark.parametrize("way", ["responses", "resume"])
async def test_whatever_fails_after_a_continuation_was_started_no_status_says_to_send_the_request_again(
    shop: Shop, way: str, first: int
) -> None:
    """As for starts. Each request makes a branch of its own; sent again, it is the same run."""
    run_id = (await shop.post("/v1/responses", STARTS["response"][1])).json()["id"]
    requests = 0
    while shop.faults.fail_call == 0 and requests < 30:
        requests += 1
        path, body = "/v1/responses", {"model": "seller", "input": f"Again {requests}.", "previous_response_id": run_id}
        if way == "resume":
            path, body = f"/api/runs/{run_id}/resume", {"prompt": "Again.", "id": f"{shop.tenant}-{requests}"}
        shop.faults.has_started, shop.faults.fail_call = False, requests
        shop.faults.error = ERRORS[(first + requests) % 3]
        answer = await shop.post(path, body)
        assert answer.status_code not in REPEATED, answer.text
        assert shop.faults.has_started
        assert len(await shop.runs()) == requests + 1
        left, shop.faults.fail_call = shop.faults.fail_call, 0
        assert (await shop.post(path, body, 1)).status_code == 200
        assert len(await shop.runs()) == requests + 1
        shop.faults.fail_call = left


async def test_a_full_server_neither_passes_an_answer_on_nor_waits(lab: Lab, queue: str) -> None:
    """An answer in a call of MCP, of which the server would report the events, and a request that waits for a run's end."""
    async with shop_of(lab, queue, most_watchers=1) as shop:
        call = mcp_call("seller", prompt="Ask me.")
        can_ask: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
        call["params"]["_meta"] = {**MCP_META, **can_ask}
        http, sent = shop.doors[0].http, {**shop.by, **ACCEPT, **HTTP_HEADERS}
        text = (await http.post("/mcp", json=call, headers=sent)).text
        result = json.loads(next(line for line in text.splitlines() if "requestState" in line).removeprefix("data: "))
        state, [form] = result["result"]["requestState"], result["result"]["inputRequests"]
        answer = {"action": "accept", "content": {"answer": "Blue."}}
        call["params"] |= {"requestState": state, "inputResponses": {form: answer}}
        [run] = await shop.runs()
        stream_of = {**shop.by, "Accept": "text/event-stream"}
        async with http.stream("GET", f"/api/runs/{run}/events", headers=stream_of) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            refused = await http.post("/mcp", json=call, headers=sent)
            assert (refused.status_code, "Nothing was started" in refused.text) == (503, False)
            assert len((await http.get(f"/api/runs/{run}/pending", headers=shop.by)).json()) == 1
            waits = await http.get(f"/api/runs/{run}?wait=1", headers=shop.by)
            assert (waits.status_code, waits.json().get("code")) == (503, "too_many_watchers")
            assert (await http.get(f"/api/runs/{run}", headers=shop.by)).status_code == 200
        # the server notices after a moment that the stream was closed
        while (await http.post("/mcp", json=call, headers=sent)).status_code == 503:
            await asyncio.sleep(0.1)
        assert (await http.get(f"/api/runs/{run}/pending", headers=shop.by)).json() == []


async def test_a_stream_that_cannot_be_read_has_the_response_and_the_error(shop: Shop) -> None:
    shop.faults.fail_call, shop.faults.error = 1, bug
    path, body = STARTS["response in a stream"]
    text = (await shop.doors[0].http.post(path, json=body, headers=shop.by)).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "error"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    assert events[0]["response"]["id"] == (await shop.runs())[0]
    assert events[2]["code"] == "internal_error"


async def test_a_reply_with_invalid_metadata_is_not_passed_on(shop: Shop) -> None:
    async with shop.sdk() as sdk:
        started = await sdk.responses.create(model="seller", input="Ask me.")
    [call] = [item.call_id for item in started.output if item.type == "function_call"]
    reply = {"type": "function_call_output", "call_id": call, "output": "Blue."}
    body = {"previous_response_id": started.id, "input": [reply], "metadata": 7}
    refused = await shop.post("/v1/responses", body)
    assert (refused.status_code, "metadata" in refused.text) == (400, True)
    assert len((await shop.doors[0].http.get(f"/api/runs/{started.id}/pending", headers=shop.by)).json()) == 1


async def test_only_first_attempts_are_remembered(lab: Lab) -> None:
    """A server forgets its oldest requests when it has too many. Those of others must not push its own out."""
    starts = Starts(lab.client, "nobody")
    request = StartRequest("resp_", ("tenant", "/v1/responses"), uuid.uuid4().hex, attempt=1)
    run_id, _ = await starts.start(RunInput(agent="nobody", prompt="Go."), request)
    await lab.client.get_workflow_handle(run_id).terminate()
    assert starts._equal == {}
