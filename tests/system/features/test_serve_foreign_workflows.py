"""Workflows of other programs in the namespace, whose queries, memos and results are anything: no page is missing for that."""

from __future__ import annotations

import asyncio
import html
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from temporalio import workflow
from temporalio.client import WorkflowHandle
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from mulligan.wire.agent_facts import DEFINITION_QUERY
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.fuzz.inputs import json_values, schemas
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.search_size import examples

QUEUE, FOREIGN_QUEUE = "decided-here", "foreign"
CARD_EXAMPLES, ANSWER_EXAMPLES = examples(8), examples(4)
MEMOS: list[dict[str, Any]] = [
    {"agent": 7, "tenant": "ada", "mulligan_pending": "x", "mulligan_status": 3},
    {"agent": ["x"], "tenant": ["ada"]},
    {"agent": ["x"], "tenant": "eve"},
    {"tenant": "ada", "request": 3, "resumed_from": 4},
]
RESULTS = [42, {"status": ["completed"], "cost": "much"}, {"status": "completed", "usage": 5}, None]
ANSWERS: dict[str, Any] = {}
"""By the query."""


@workflow.defn(name="Import")
class Import:
    """It answers each query with what the test has put into ANSWERS."""

    def __init__(self) -> None:
        self._result: list[Any] = []

    @workflow.run
    async def run(self) -> Any:
        await workflow.wait_condition(lambda: bool(self._result))
        return self._result[0]

    @workflow.signal
    def end(self, result: Any) -> None:
        self._result.append(result)

    @workflow.query(dynamic=True)
    def answer(self, name: str, args: Sequence[RawValue]) -> Any:
        return ANSWERS[name]


@dataclass
class Place:
    """The server, a foreign workflow, and the call of an agent's run that must be decidable all the time."""

    door: Door
    foreign: WorkflowHandle[Any, Any]
    good: str


@pytest.fixture(scope="module")
async def place(lab: Lab) -> AsyncIterator[Place]:
    loaded = load(["tests.support.console_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        Worker(lab.client, task_queue=FOREIGN_QUEUE, workflows=[Import], workflow_runner=UnsandboxedWorkflowRunner()),
        http_server(lab.client, tokens="ada:token-of-ada", task_queue=QUEUE) as door,
    ):
        good, memo = f"good-{uuid.uuid4().hex[:8]}", {"agent": "x", "tenant": "ada", "mulligan_pending": 1}
        body = {"agent": "support-desk", "prompt": "Go.", "id": good}
        await door.http.post("/api/runs", json=body, headers=door.by("ada"))
        foreign = await start(lab, memo)
        here = Place(door, foreign, good)
        tell({"pending": [asking()]})
        for run_id in (good, foreign.id):
            while f"{run_id}, step" not in (await page(here, "/console/decide"))[1]:
                await asyncio.sleep(0.1)
        yield here


async def start(lab: Lab, memo: dict[str, Any]) -> WorkflowHandle[Any, Any]:
    return await lab.client.start_workflow(
        "Import", id=f"import-{uuid.uuid4().hex[:8]}", task_queue=FOREIGN_QUEUE, memo=memo
    )


def asking(**changes: Any) -> dict[str, Any]:
    """An entry of the query `pending`."""
    entry = {
        "call_id": "c", "tool": "pay", "arguments": {"a": 1}, "kind": "approval", "since": "2026-11-25T10:00:00+00:00",
        "text": "pay(a=1)", "agent": "x", "step": 1,
    }  # fmt: skip
    return entry | changes


def defined(schema: Any) -> dict[str, Any]:
    """The answer to the query for the definition of an agent."""
    return {"instructions": "", "tools": [{"name": "pay", "description": "", "parameters": schema}]}


def tell(answers: dict[str, Any]) -> None:
    ANSWERS.clear()
    ANSWERS.update(answers)


async def page(place: Place, path: str) -> tuple[int, str]:
    answer = await place.door.http.get(path, headers=place.door.by("ada"))
    return answer.status_code, html.unescape(answer.text)


async def check_decide(place: Place, answers: dict[str, Any], *, is_shown: bool = True) -> None:
    """The page is there, with the good call and its form, and a card for the other one."""
    tell(answers)
    status, text = await page(place, "/console/decide")
    assert status == 200
    assert f"{place.good}, step" in text
    assert 'name="arg.1.0"' in text
    assert not is_shown or f'"/console/runs/{place.foreign.id}' in text


async def with_examples(check: Callable[[Any], Any], strategy: st.SearchStrategy[Any], count: int, *first: Any) -> None:
    """Await `check` for `count` generated values, on this loop. `first`: values that are always checked."""
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # to shrink takes minutes
    )  # fmt: skip
    @given(strategy)
    def run(value: Any) -> None:
        asyncio.run_coroutine_threadsafe(check(value), loop).result()

    for value in first:
        run = example(value)(run)
    await asyncio.to_thread(run)


MANY = {f"p{number}": number for number in range(201)}
OBJECT = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}
CARDS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "201 arguments": (asking(arguments=MANY), {"type": "object", "properties": {}}, 'name="json"'),
    "201 arguments in a schema": (asking(), {"type": "object", "properties": {name: {} for name in MANY}}, 'name="json"'),
    "no URL": (asking(kind="question", url="https://[", can_deny=True), {}, 'name="text"'),
    "definitions are a number": (asking(kind="question", answer_schema={**OBJECT, "$defs": 5}), {}, 'name="arg.0"'),
    "a definition is a number": (asking(), {**OBJECT, "$defs": {"a": 5}}, 'name="arg.0"'),
    "what is required is a number": (asking(), {**OBJECT, "required": 5}, 'name="arg.0"'),
    "a time before the first one": (asking(since="0001-01-01T00:00:00+05:00"), {}, "no form can be made of it"),
}  # fmt: skip


@pytest.mark.parametrize("name", CARDS)
async def test_a_broken_call_is_a_card_among_others(place: Place, name: str) -> None:
    pending, schema, part = CARDS[name]
    await check_decide(place, {"pending": [pending], DEFINITION_QUERY: defined(schema)})
    _, text = await page(place, "/console/decide")
    [card] = [each for each in text.split("<article")[1:] if place.foreign.id in each]
    assert part in card


async def test_no_call_schema_or_question_takes_the_page_from_the_others(place: Place) -> None:
    hostile = st.sampled_from(["https://[", "javascript:alert(1)", "//", "https://\u202e", "\0", "9" * 400]) | st.text(
        max_size=5
    )
    schema = (
        schemas()
        | json_values()
        | st.builds(lambda each: {"type": "object", "properties": each, "$defs": each}, json_values())
    )
    calls = st.builds(
        lambda arguments, answer_schema, url, text, kind, **rest: asking(
            arguments=arguments, answer_schema=answer_schema if isinstance(answer_schema, dict) else None, url=url, text=text, kind=kind,
            **rest,
        ),
        json_values(), schema, hostile, hostile, st.sampled_from(["approval", "question"]), tool=st.just("pay") | hostile,
        call_id=hostile, agent=hostile, step=st.sampled_from([-1, 0, 2**63]), can_deny=st.booleans(),
    )  # fmt: skip

    async def check(given: tuple[dict[str, Any], Any]) -> None:
        await check_decide(place, {"pending": [given[0]], DEFINITION_QUERY: defined(given[1])})

    await with_examples(check, st.tuples(calls, schema), CARD_EXAMPLES)


async def test_no_answer_of_a_foreign_workflow_is_a_fault_of_the_server(place: Place) -> None:
    """In the lists its row is there; on its own page, and in the API, a sentence."""
    names = ("progress", "pending", "steps", "messages", "events", DEFINITION_QUERY)
    progress = {
        "status": "running", "step": 1, "max_steps": 2, "usage": {}, "tool_calls": 0, "recovered_failures": 1, "cost": 0.1,
        "waiting_for": {"kind": "tool", "since": "2026-11-25T10:00:00+00:00", "detail": "x"},
    }  # fmt: skip
    event = {"type": "step_started", "offset": 0, "at": "2026-11-25T10:00:00+00:00", "step": 1, "model": "m"}
    call = {
        "id": "c",
        "name": "n",
        "arguments": "{}",
        "result": {"text": "", "error": {"kind": "tool_error", "message": "m"}},
    }
    valid: dict[str, Any] = {
        "progress": progress, "pending": [asking()], "steps": {"steps": [{"step": 1, "tool_calls": [call]}], "next": None, "total": 1},
        "messages": {"messages": [{"role": "user", "text": "x"}], "next": None, "total": 1},
        "events": {"events": [event], "next": None, "total": 1, "writing": None}, DEFINITION_QUERY: defined({}),
    }  # fmt: skip
    one_is_wrong = st.builds(lambda name, value: {**valid, name: value}, st.sampled_from(names), json_values())
    in_one_place = st.builds(
        lambda name, key, value: {**valid, name: [valid[name][0] | {key: value}] if name == "pending" else valid[name] | {key: value}},
        st.sampled_from(names),
        st.sampled_from(["status", "cost", "step", "waiting_for", "since", "events", "steps", "next", "total", "writing", "arguments"]),
        json_values(),
    )  # fmt: skip
    run = place.foreign.id
    lists = ("/", f"/?id={run}", "/console/agents", "/console/decide", "/api/runs")
    own = ["", "/steps", "/messages", "/events", "/pending"]
    paths = [f"/console/runs/{run}", f"/console/decide?run={run}", *(f"/api/runs/{run}{each}" for each in own)]

    async def check(answers: dict[str, Any]) -> None:
        await check_decide(place, answers, is_shown=False)
        for path in lists:
            assert (await page(place, path))[0] == 200, path
        for path in paths:
            assert (await page(place, path))[0] < 500, path

    await with_examples(
        check,
        one_is_wrong | in_one_place,
        ANSWER_EXAMPLES,
        dict.fromkeys(names, 42),
        {**valid, "progress": progress | {"cost": "much"}},
    )


@pytest.mark.parametrize(("memo", "result"), [*zip(MEMOS, RESULTS, strict=True), (MEMOS[0], RESULTS[1])])
async def test_no_memo_or_result_of_a_foreign_workflow_is_a_fault_of_the_server(
    lab: Lab, place: Place, memo: dict[str, Any], result: Any
) -> None:
    for is_ended in (True, False):
        handle = await start(lab, memo)
        if is_ended:
            await handle.signal("end", result)
            await handle.result()
        else:
            tell({"progress": result, "pending": result})
        served = http_server(
            lab.client, tokens="ada:token-of-ada,ops:token-of-ops:*,eve:token-of-eve:x", task_queue=QUEUE
        )
        async with served as door:
            here = Place(door, handle, place.good)
            for name in ("ada", "ops", "eve"):
                for path in (
                    "/",
                    "/console/agents",
                    "/console/decide",
                    "/api/runs",
                    f"/console/runs/{handle.id}",
                    f"/api/runs/{handle.id}",
                ):
                    answer = await here.door.http.get(path, headers=door.by(name))
                    assert answer.status_code in ((200, 404) if handle.id in path else (200,)), (
                        name,
                        path,
                        answer.text,
                    )
        if not is_ended:
            await handle.terminate()
