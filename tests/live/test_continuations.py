"""A run is continued once, over HTTP and in Python, by several servers at a time, and whoever has taken the ids of others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from mulligan import AlreadyResumedError, ResumeError, resume_run
from mulligan.client.origins.chained_run import continuation_ids, request_digest
from mulligan.client.start_run import read_input
from tests.live.test_resets import points_of, reset
from tests.support.ag_ui_client import AgUiThread, user
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
from tests.support.shop_agents import shop

TOKENS = "ada:token-of-ada,bob:token-of-bob,root:token-of-root:*"
NO_MODEL = "nope:x"
"""A model without a provider: a run with it fails when it is opened, before its first model call."""


@pytest.fixture(scope="module")
async def doors(lab: Lab) -> AsyncIterator[list[Door]]:
    """Three servers for the same Temporal."""
    async with (
        http_server(lab.client, tokens=TOKENS) as first,
        http_server(lab.client, tokens=TOKENS) as second,
        http_server(lab.client, tokens=TOKENS) as third,
    ):
        yield [first, second, third]


async def ended_run(lab: Lab, door: Door, who: str = "ada") -> str:
    """A run of a tenant that has ended. Its model has the run's name, and so has that of all of its continuations."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, lambda _, __: DONE)
    body = {"id": run_id, "agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    assert (await door.http.post("/api/runs", json=body, headers=door.by(who))).status_code == 201
    assert (await end_of(door, run_id, who))["status"] == "completed"
    return run_id


async def end_of(door: Door, run_id: str, who: str = "root") -> dict[str, Any]:
    """A run that has ended."""
    read: dict[str, Any] = {"status": "running"}
    while read["status"] == "running":
        answer = await door.http.get(f"/api/runs/{run_id}?wait=30", headers=door.by(who))
        assert answer.status_code == 200, answer.text
        read = answer.json()
    return read


async def resume(door: Door, run_id: str, who: str = "ada", **body: Any) -> tuple[int, dict[str, Any], str]:
    """The status and the body of a resume, and the id that it names: of the run, or with 409 of the one that is there."""
    answer = await door.http.post(f"/api/runs/{run_id}/resume", json=body, headers=door.by(who), timeout=60)
    named = answer.headers.get("location", "").rpartition("/")[2]
    return answer.status_code, answer.json(), named


async def executions(lab: Lab, run_id: str) -> int:
    """How many executions an id has, once Temporal's visibility knows the newest one."""
    newest = (await lab.client.get_workflow_handle(run_id).describe()).run_id
    known: list[str] = []
    while newest not in known:
        known = [each.run_id async for each in lab.client.list_workflows(f'WorkflowId = "{run_id}"')]
    return len(known)


@pytest.mark.parametrize("own", [False, True], ids=["an id made from the run's", "an id of one's own"])
async def test_equal_requests_at_once_start_one_run_and_later_ones_return_it(
    lab: Lab, doors: list[Door], own: bool
) -> None:
    """Also after its end. Another message or option is refused with its id, and starts nothing."""
    run_id = await ended_run(lab, doors[0])
    chosen = {"id": f"{run_id}-again"} if own else {}
    new_id = chosen.get("id", f"{run_id}-resumed")
    many = await asyncio.gather(*(resume(doors[n % 3], run_id, prompt="Next.", **chosen) for n in range(9)))
    assert Counter(status for status, _, _ in many) == {201: 1, 200: 8}
    assert {body["id"] for _, body, _ in many} == {new_id}
    assert (await end_of(doors[0], new_id))["status"] == "completed"
    assert (await resume(doors[1], run_id, prompt="Next.", **chosen))[:2] == (200, {"id": new_id})
    for other in ({"prompt": "Other."}, {"prompt": "Next.", "max_steps": 9}, {"prompt": "Next.", "model": "openai:x"}):
        status, body, named = await resume(doors[2], run_id, **other, **chosen)
        assert (status, body["code"], named) == (409, "already_resumed", new_id), body
        assert repr(new_id) in body["detail"]
    assert await executions(lab, new_id) == 1
    assert len(lab.model.requests_of(run_id)) == 2


async def test_an_id_of_ones_own_is_a_branch_beside_the_continuation(lab: Lab, doors: list[Door]) -> None:
    """The id of a run that does not continue this one, such as its own, cannot be used."""
    run_id = await ended_run(lab, doors[0])
    for new_id in ("", f"{run_id}-a", f"{run_id}-b"):
        chosen = {"id": new_id} if new_id else {}
        assert (await resume(doors[0], run_id, prompt="Next.", **chosen))[0] == 201
    await asyncio.gather(*(end_of(doors[0], f"{run_id}{end}") for end in ("-a", "-b", "-resumed")))
    for taken in (run_id, await ended_run(lab, doors[0])):
        status, body, _ = await resume(doors[0], run_id, prompt="Next.", id=taken)
        assert (status, body["code"]) == (409, "id_taken")
        assert await executions(lab, taken) == 1


async def test_python_continues_a_run_once_and_names_the_continuation_that_is_there(
    lab: Lab, doors: list[Door]
) -> None:
    run_id = await ended_run(lab, doors[0])
    handles = await asyncio.gather(*(resume_run(lab.client, run_id, "Next.") for _ in range(8)))
    assert {handle.id for handle in handles} == {f"{run_id}-resumed"}
    assert {(await handle.result())["output"] for handle in handles} == {"done"}
    assert len({handle.first_execution_run_id for handle in handles}) == 1
    with pytest.raises(AlreadyResumedError, match="another prompt or other options") as refused:
        await resume_run(lab.client, run_id, "Next.", metadata={"a": "b"})
    assert refused.value.workflow_id == f"{run_id}-resumed"
    assert (await resume(doors[0], run_id, prompt="Next."))[:2] == (200, {"id": f"{run_id}-resumed"})


async def test_a_run_that_no_worker_began_is_continued_once_in_the_tenant_of_its_input(lab: Lab) -> None:
    """Its memo is empty if a client of another kind has started it."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, lambda _, __: DONE)
    given = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}", "tenant": "ada"}
    handle = await lab.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue="nobody-polls")
    await handle.terminate()
    handles = await asyncio.gather(*(resume_run(lab.client, run_id, task_queue="agents") for _ in range(5)))
    assert {each.id for each in handles} == {f"{run_id}-resumed"}
    await handles[0].result()
    assert (await resume_run(lab.client, run_id, task_queue="agents")).id == f"{run_id}-resumed"


async def end_before_work(lab: Lab, door: Door, run_id: str, how: str) -> str:
    """Continue a run in one that ends before its first model call; its id."""
    if how == "refused at opening":
        status, body, _ = await resume(door, run_id, prompt="First.", model=NO_MODEL)
        assert status == 201
        assert (await end_of(door, body["id"]))["status"] == "failed"
        return str(body["id"])
    handle = await resume_run(lab.client, run_id, "First.", task_queue=f"nobody-{uuid.uuid4().hex[:6]}")
    await handle.terminate()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    return handle.id


@pytest.mark.parametrize("how", ["refused at opening", "never begun"])
async def test_a_continuation_that_ended_before_its_first_model_call_is_made_again(
    lab: Lab, doors: list[Door], how: str
) -> None:
    """Under the next number, by the same request or another one, and once, whether the run or that continuation is resumed."""
    run_id = await ended_run(lab, doors[0])
    assert await end_before_work(lab, doors[0], run_id, how) == f"{run_id}-resumed"
    assert await end_before_work(lab, doors[0], run_id, how) == f"{run_id}-resumed-2"
    new_id = f"{run_id}-resumed-3"
    working: dict[str, Any] = {"model": f"openai-chat:{run_id}", "task_queue": "agents"}
    sources = (run_id, f"{run_id}-resumed")
    mixed = [resume_run(lab.client, each, "Next.", **working) for _ in range(4) for each in sources]
    answers = await asyncio.gather(*mixed, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, AlreadyResumedError)]
    assert [each.workflow_id for each in refused] == [new_id] * 4
    assert [each.id for each in answers if not isinstance(each, BaseException)] == [new_id] * 4
    assert (await end_of(doors[0], new_id))["status"] == "completed"
    assert len(lab.model.requests_of(run_id)) == 2
    assert (await resume(doors[0], run_id, prompt="Other."))[0] == 409
    assert (await resume(doors[0], new_id, prompt="Other."))[:2] == (201, {"id": f"{run_id}-resumed-4"})


async def unserved_run(lab: Lab) -> str:
    """A run of `ada` that ended before a worker began it, as all of its continuations do."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    given = {"agent": "shop", "prompt": "Go.", "tenant": "ada"}
    memo = {"agent": "shop", "tenant": "ada"}
    handle = await lab.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue="nobody-polls", memo=memo)
    await handle.terminate()
    return run_id


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}], ids=["without a key", "with a key"])
async def test_a_response_that_ended_before_its_first_model_call_is_made_again(
    lab: Lab, doors: list[Door], key: dict[str, str]
) -> None:
    """Under the next number, once for each; and another body with the same key is refused at each of them."""
    body = {"previous_response_id": await unserved_run(lab), "input": "Next.", "background": True}
    headers = {**doors[0].by("ada"), **key}
    ids: list[str] = []
    for _ in range(3):
        answers = await asyncio.gather(*(door.http.post("/v1/responses", json=body, headers=headers) for door in doors))
        [response] = {answer.json()["id"] for answer in answers}
        ids.append(response)
        other = await doors[0].http.post("/v1/responses", json={**body, "input": "Other."}, headers=headers)
        assert (other.status_code, "key_reused" in other.text) == ((422, True) if key else (200, False))
        await lab.client.get_workflow_handle(response).terminate()
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]


async def test_a_key_is_refused_with_another_message_also_after_a_continuation_that_never_began(
    lab: Lab, doors: list[Door]
) -> None:
    run_id = await unserved_run(lab)

    async def send(prompt: str, key: str) -> tuple[int, str]:
        headers = {**doors[0].by("ada"), "Idempotency-Key": key}
        answer = await doors[0].http.post(f"/api/runs/{run_id}/resume", json={"prompt": prompt}, headers=headers)
        return answer.status_code, answer.json().get("id") or answer.json()["code"]

    assert await send("A", "k") == (201, f"{run_id}-resumed")
    await lab.client.get_workflow_handle(f"{run_id}-resumed").terminate()
    assert await send("B", "k") == (422, "key_reused")
    assert await send("A", "k") == (201, f"{run_id}-resumed-2")
    await lab.client.get_workflow_handle(f"{run_id}-resumed-2").terminate()
    assert await send("B", "another") == (201, f"{run_id}-resumed-3")


async def test_only_runs_that_are_no_continuations_stop_a_run(
    lab: Lab, doors: list[Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its own continuations never began."""
    monkeypatch.setattr("mulligan.client.origins.resume_run.MOST_TAKEN_IDS", 2)
    run_id = await unserved_run(lab)
    for number in ("", "-2", "-3", "-4"):
        handle = await resume_run(lab.client, run_id, "Next.")
        assert handle.id == f"{run_id}-resumed{number}"
        await handle.terminate()
    for taken in ("-5", "-6"):
        await squat(lab, f"{run_id}-resumed{taken}", "of another tenant", run_id)
    with pytest.raises(ResumeError, match="2 runs that are not its continuations"):
        await resume_run(lab.client, run_id, "Next.")


async def test_a_run_that_was_reset_is_continued_with_what_it_has_now(lab: Lab, doors: list[Door]) -> None:
    """Its continuation before the reset has other messages, and stays."""
    run_id = await ended_run(lab, doors[0])
    assert (await resume(doors[0], run_id, prompt="Next."))[:2] == (201, {"id": f"{run_id}-resumed"})
    handle = lab.client.get_workflow_handle(run_id)
    again = await reset(lab, handle, (await points_of(handle))[0])
    await again.result()
    assert (await resume(doors[0], run_id, prompt="Next."))[:2] == (201, {"id": f"{run_id}-resumed-2"})
    assert (await resume(doors[1], run_id, prompt="Next."))[:2] == (200, {"id": f"{run_id}-resumed-2"})
    given = await read_input(lab.client, f"{run_id}-resumed-2")
    assert given is not None
    assert given.carried.origin is not None
    assert given.carried.origin.run_id == again.run_id


async def test_the_continuation_has_the_tenant_of_the_run_whoever_continues_it(lab: Lab, doors: list[Door]) -> None:
    run_id = await ended_run(lab, doors[0])
    assert (await resume(doors[0], run_id, "root", prompt="Next."))[0] == 201
    read = await end_of(doors[0], f"{run_id}-resumed", "ada")
    assert read["tenant"] == "ada"
    assert (await resume(doors[0], run_id, "ada", prompt="Next."))[:2] == (200, {"id": read["id"]})
    assert (await resume(doors[0], run_id, "bob", prompt="Next."))[0] == 404


# Ids and runs of others

RESERVED = [
    "{run}-resumed",
    "{run}-resumed-2",
    "{run}-resumed-2-resumed",
    f"shop-thread-{'a' * 32}",
    f"shop-thread-{'a' * 32}-2",
    f"shop-thread-{'a' * 32}-resumed",
    f"resp_{'a' * 32}",
    f"chatcmpl-{'a' * 32}",
    "{run}/call_1",
    "mulligan-budget-ada-2026-11-25",
    "mulligan-batch-agents-openai:gpt",
]


async def test_no_client_can_choose_an_id_that_is_made_here(lab: Lab, doors: list[Door]) -> None:
    """To start a run or to resume one; nothing is started. Not even the tenant itself can."""
    run_id = await ended_run(lab, doors[0])
    for form in RESERVED:
        chosen = form.format(run=run_id)
        for who in ("ada", "bob"):
            body = {"agent": "shop", "prompt": "Go.", "id": chosen}
            started = await doors[0].http.post("/api/runs", json=body, headers=doors[0].by(who))
            assert (started.status_code, '"id" is' in started.json()["detail"]) == (422, True), form
        status, refused, _ = await resume(doors[0], run_id, prompt="Next.", id=chosen)
        assert (status, '"id" is' in refused["detail"]) == (422, True), form
        assert (await doors[0].http.get(f"/api/runs/{chosen}", headers=doors[0].by("root"))).status_code == 404


async def test_no_client_can_say_that_its_run_continues_another_one(lab: Lab, doors: list[Door]) -> None:
    run_id = await ended_run(lab, doors[0])
    before = {"workflow_id": run_id, "run_id": (await lab.client.get_workflow_handle(run_id).describe()).run_id}
    body = {"agent": "shop", "prompt": "Go.", "id": f"{run_id}-next", "resumed_from": before}
    for who in ("ada", "bob", "root"):
        answer = await doors[0].http.post("/api/runs", json=body, headers=doors[0].by(who))
        assert (answer.status_code, "resumed_from" in answer.json()["detail"]) == (422, True)


def forged(run: dict[str, str], tenant: str | None) -> tuple[str, Any, dict[str, Any]]:
    """Type, input and memo of a run that says that it continues another one."""
    given = {
        "agent": "shop",
        "prompt": "FOREIGN",
        "carried": {"origin": {"kind": "resume", **run}},
        **({"tenant": tenant} if tenant else {}),
    }
    memo = {"agent": "shop", "resumed_from": {"id": run["workflow_id"], "run_id": run["run_id"]}}
    return "AgentWorkflow", given, {**memo, **({"tenant": tenant} if tenant else {})}


SQUATTERS: dict[str, Any] = {
    "of another tenant": lambda run: forged(run, "bob"),
    "of no tenant": lambda run: forged(run, None),
    "of another execution": lambda run: forged({**run, "run_id": str(uuid.uuid4())}, "ada"),
    "an ordinary run": lambda _: ("AgentWorkflow", {"agent": "shop", "prompt": "FOREIGN"}, {"tenant": "bob"}),
    "a memo that is nonsense": lambda _: ("AgentWorkflow", {"agent": 7}, {"tenant": ["ada"], "resumed_from": 7}),
    "a workflow of another type": lambda _: ("SomethingElse", "x", {"tenant": "ada"}),
}


async def squat(lab: Lab, taken: str, squatter: str, run_id: str) -> None:
    """Start a run under an id directly through Temporal, by somebody who knows all about the run that it should continue."""
    execution = str(uuid.uuid4())
    with suppress(RPCError):  # a conversation that has not begun has no run
        execution = (await lab.client.get_workflow_handle(run_id).describe()).run_id or execution
    kind, given, memo = SQUATTERS[squatter]({"workflow_id": run_id, "run_id": execution})
    await lab.client.start_workflow(kind, given, id=taken, task_queue="nobody-polls", memo=memo)


async def test_foreign_runs_under_the_next_ids_neither_block_a_run_nor_take_its_message(
    lab: Lab, doors: list[Door]
) -> None:
    """Whoever reaches Temporal can take any id. The run goes on under the next one, in one run, on all servers."""
    run_id = await ended_run(lab, doors[0])
    taken = continuation_ids(run_id)
    for squatter in SQUATTERS:
        await squat(lab, next(taken), squatter, run_id)
    own = next(taken)
    answers = await asyncio.gather(*(resume(doors[n % 3], run_id, prompt="Next.") for n in range(6)))
    assert Counter(status for status, _, _ in answers) == {201: 1, 200: 5}
    assert {body["id"] for _, body, _ in answers} == {own}
    assert (await end_of(doors[0], own, "ada"))["result"]["output"] == "done"
    assert (await resume(doors[0], run_id, prompt="Other."))[2] == own
    for number, squatter in enumerate(SQUATTERS):
        await squat(lab, f"{run_id}-own-{number}", squatter, run_id)
        status, body, _ = await resume(doors[0], run_id, prompt="Next.", id=f"{run_id}-own-{number}")
        assert (status, body["code"]) == (409, "id_taken"), squatter


def first_id(tenant: str, agent: str, thread: str) -> str:
    """The id of the first turn of a conversation, as everybody can compute it. The user is that of the tenant's token."""
    digest = hashlib.sha256(json.dumps([tenant, tenant, agent, thread]).encode()).hexdigest()[:32]
    return f"{agent}-thread-{digest}"


def texts_of(lab: Lab, thread: str) -> list[list[Any]]:
    """The user's texts in each request to the model of a conversation, whose messages end with its id."""
    name = str(shop.model).partition(":")[2]
    return [
        [each["content"] for each in request.conversation if each["role"] == "user"]
        for request in lab.model.requests_of(name)
        if request.prompt.endswith(thread)
    ]


@pytest.mark.parametrize("squatters", [[*SQUATTERS], [*SQUATTERS][::-1]], ids=["these first", "those first"])
async def test_a_conversation_whose_ids_others_have_goes_on_under_the_next_ones(
    lab: Lab, doors: list[Door], squatters: list[str]
) -> None:
    """Before its first turn, and between two turns. Each message is in one run, and the conversation is whole."""
    lab.model.script(str(shop.model).partition(":")[2], lambda _, nth: Turn(f"Reply {nth}."))
    threads = [AgUiThread(door, "shop", **door.by("ada")) for door in doors]
    for thread in threads:
        thread.id = threads[0].id
    first = first_id("ada", "shop", threads[0].id)
    began = f"{first}-4"
    places = (first, f"{first}-2", f"{first}-3", f"{began}-resumed", f"{began}-resumed-2", f"{began}-resumed-4")
    for taken, squatter in zip(places, squatters, strict=True):
        await squat(lab, taken, squatter, began)
    prompts = [f"{n} in {threads[0].id}" for n in range(4)]
    for n, prompt in enumerate(prompts):
        message = user(prompt, f"m{n}")
        streams = await asyncio.gather(*(thread.post(message) for thread in threads))
        assert [stream[-1].result["output"] for stream in streams] == [f"Reply {n}."] * 3
    assert texts_of(lab, threads[0].id) == [prompts[: n + 1] for n in range(4)]
    own = await lab.client.get_workflow_handle(began).describe()
    assert own.status == WorkflowExecutionStatus.COMPLETED


async def test_different_messages_of_a_conversation_at_once_are_one_turn_and_conflicts(
    lab: Lab, doors: list[Door]
) -> None:
    """A message that is refused is in no run."""
    lab.model.script(str(shop.model).partition(":")[2], lambda _, nth: Turn(f"Reply {nth}."))
    thread = AgUiThread(doors[0], "shop", **doors[0].by("ada"))
    given = {"threadId": thread.id, "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    accepted: list[str] = []
    for round_number in range(3):

        async def post(n: int, number: int = round_number) -> int:
            message = user(f"{number}.{n} in {thread.id}", f"m{number}.{n}")
            body = {**given, "runId": uuid.uuid4().hex, "messages": [message]}
            door = doors[n % 3]
            answer = await door.http.post("/ag-ui/shop", json=body, headers=door.by("ada"), timeout=60)
            if answer.status_code == 200:
                accepted.append(message["content"])
            return answer.status_code

        statuses = await asyncio.gather(*(post(n) for n in range(6)))
        assert set(statuses) <= {200, 409}
        assert 200 in statuses
    sent = texts_of(lab, thread.id)
    assert sorted(sent[-1]) == sorted(accepted)
    assert sent == [sent[-1][: n + 1] for n in range(len(accepted))]


async def test_a_response_whose_branch_has_a_foreign_run_is_refused_and_another_key_is_free(
    lab: Lab, doors: list[Door]
) -> None:
    """Nobody can compute that id before the earlier run has begun: it has Temporal's run id in it."""
    run_id, door = await ended_run(lab, doors[0]), doors[0]
    described = await lab.client.get_workflow_handle(run_id).describe()
    named = json.dumps(
        [run_id, described.run_id, request_digest({"prompt": "Next.", "metadata": {}, "client_metadata": {}})]
    )
    await squat(lab, f"resp_{hashlib.sha256(named.encode()).hexdigest()[:32]}", "of another tenant", run_id)
    body = {"previous_response_id": run_id, "input": "Next."}
    first = await door.http.post("/v1/responses", json={**body, "input": "First."}, headers=door.by("ada"))
    assert first.status_code == 200  # it goes on with the conversation, so that the next one is a branch
    refused = await door.http.post("/v1/responses", json=body, headers=door.by("ada"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "id_taken")
    key = {"Idempotency-Key": uuid.uuid4().hex}
    answer = await door.http.post("/v1/responses", json=body, headers={**door.by("ada"), **key})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert len(lab.model.requests_of(run_id)) == 3


# The generator

SEEDS = int(os.environ.get("RESUME_SEEDS", "2"))
"""Random sequences of requests; 30 for the longer form."""
OPTIONS: list[dict[str, Any]] = [
    {"prompt": "A"},
    {"prompt": "A"},
    {"prompt": "B"},
    {"prompt": "A", "max_steps": 3},
    {"prompt": "A", "model": NO_MODEL},
]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_resumes_leave_each_message_in_one_run_and_one_run_for_each_id(
    lab: Lab, doors: list[Door], seed: int
) -> None:
    """Equal and different requests, in bursts, to three servers, under own and default ids, some of which others have."""
    dice = random.Random(seed)
    runs = [await ended_run(lab, doors[0]) for _ in range(2)]
    for run_id in runs:
        free = dice.randrange(3)
        for taken, _ in zip(continuation_ids(run_id), range(free), strict=False):
            await squat(lab, taken, dice.choice(list(SQUATTERS)), run_id)
    accepted: dict[str, list[tuple[str, str | None, dict[str, Any], int]]] = defaultdict(list)
    refused: list[tuple[str, str]] = []

    async def send() -> None:
        run_id, options = dice.choice(runs), dice.choice(OPTIONS)
        own = dice.choice([None, None, f"{run_id}-x", f"{run_id}-y"])
        door, who = dice.choice(doors), dice.choice(["ada", "ada", "root"])
        status, body, named = await resume(door, run_id, who, **options, **({"id": own} if own else {}))
        if status == 409:
            assert body["code"] == "already_resumed", body
            refused.append((own or "", named))
        else:
            assert status in (200, 201), body
            accepted[body["id"]].append((run_id, own, options, status))

    for _ in range(3):
        await asyncio.gather(*(send() for _ in range(10)))
        if dice.random() < 0.5:
            await asyncio.gather(*(end_of(doors[0], new_id) for new_id in accepted))
    working: Counter[tuple[str, str | None]] = Counter()
    for new_id, requests in accepted.items():
        await end_of(doors[0], new_id)
        assert len({str(request[:3]) for request in requests}) == 1, requests
        assert sum(status == 201 for *_, status in requests) == 1
        assert await executions(lab, new_id) == 1
        run_id, own, options, _ = requests[0]
        given = await read_input(lab.client, new_id)
        assert given is not None
        assert (given.prompt, given.max_steps, given.tenant) == (options["prompt"], options.get("max_steps"), "ada")
        assert own in (None, new_id)
        working[run_id, own] += options.get("model") != NO_MODEL
    assert max(working.values(), default=0) <= 1
    assert all(named in accepted and own in ("", named) for own, named in refused)
    for run_id in runs:
        called = sum(count for (earlier, _), count in working.items() if earlier == run_id)
        assert len(lab.model.requests_of(run_id)) == 1 + called
