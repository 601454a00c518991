"""The prompt is the same whatever a worker has cached and whichever worker is asked."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from temporalio.worker import Worker

from mulligan import Message, ToolMessage, connect
from mulligan.client.settings import settings
from mulligan.devserver import DevServer, temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.run_input import RunInput
from mulligan.worker.loading import LoadedModules, load
from mulligan.worker.options import build
from mulligan.worker.wiring import AgentActivities, running_worker, sandbox
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn

STEPS = 6
LONG = "é" * 300
"""A result of this length is larger than a reference to it."""


@pytest.fixture(scope="module")
async def continuing_server() -> AsyncIterator[DevServer]:
    """A server on which runs continue as new after a few steps."""
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=50"]) as server:
        yield server


@asynccontextmanager
async def one_worker(address: str, loaded: LoadedModules, telemetry: Telemetry, queue: str) -> AsyncIterator[None]:
    async with running_worker(await connect(address), loaded, telemetry, queue):
        yield


@asynccontextmanager
async def two_workers(address: str, loaded: LoadedModules, telemetry: Telemetry, queue: str) -> AsyncIterator[None]:
    """Two workers without a workflow cache, so that each task may go to either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_MAX_CACHED_WORKFLOWS", "0")
        async with one_worker(address, loaded, telemetry, queue), one_worker(address, loaded, telemetry, queue):
            yield


@asynccontextmanager
async def separate_workers(
    address: str, loaded: LoadedModules, telemetry: Telemetry, queue: str
) -> AsyncIterator[None]:
    """One worker for workflows only, and two for activities only."""
    async with AsyncExitStack() as stack:
        recording = [
            a
            for a in await stack.enter_async_context(AgentActivities(loaded, telemetry).opened())
            if "record_run" in a.__module__
        ]
        runs = Worker(
            await connect(address),
            task_queue=queue,
            workflows=[AgentWorkflow],
            activities=recording,  # local ones
            workflow_runner=sandbox(loaded),
            no_remote_activities=True,
            **build(settings()),
            max_cached_workflows=0,
        )
        await stack.enter_async_context(runs)
        for _ in range(2):
            activities = await stack.enter_async_context(AgentActivities(loaded, telemetry).opened())
            client = await connect(address)
            serving = Worker(client, task_queue=queue, activities=activities, **build(settings()))
            await stack.enter_async_context(serving)
        yield


def turns() -> Iterator[Turn]:
    """Turns with inline results, cached results, a mistake, and several calls at once."""
    for n in range(STEPS):
        short, long = ("click", f'{{"selector": "{n}"}}', None), ("click", f'{{"selector": "{n}{LONG}"}}', None)
        yield Turn(text=f"Step {n}.", calls=[short, long] if n % 2 else [long, ("clik", "{}", None)])
    yield DONE


def expected(told: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What each request must contain according to the script; ids and error texts are taken from the run."""
    prompt: list[dict[str, Any]] = [
        {"role": "system", "content": "You work in a shop."},
        {"role": "user", "content": "Go."},
    ]
    ids = iter([message["call_id"] for message in told if message["role"] == "tool"])
    words = iter([message["text"] for message in told if message["role"] == "tool"])
    found = []
    for turn in turns():
        found.append([*prompt])
        calls = [(next(ids), name, raw) for name, raw, *_ in turn.calls]
        prompt.append(
            {
                "role": "assistant",
                "content": turn.text,
                "tool_calls": [
                    {"id": id_, "type": "function", "function": {"name": name, "arguments": raw}}
                    for id_, name, raw in calls
                ],
            }
        )
        for id_, name, raw in calls:
            said = next(words)
            text = f"clicked {json.loads(raw)['selector']}" if name == "click" else said
            prompt.append({"role": "tool", "tool_call_id": id_, "content": text})
    return found


@pytest.mark.parametrize(
    ("workers", "cache"),
    [
        (one_worker, None),
        (one_worker, "0"),
        (two_workers, None),
        (two_workers, "0"),
        (two_workers, "12000"),
        (separate_workers, None),
        (separate_workers, "0"),
    ],
    ids=lambda value: getattr(value, "__name__", value or "default"),
)
async def test_the_prompt_is_the_same_for_any_cache_size_and_number_of_workers(
    lab: Lab, continuing_server: DevServer, monkeypatch: pytest.MonkeyPatch, workers: Any, cache: str | None
) -> None:
    """Each request begins with the bytes of the one before, and no attempt fails."""
    if cache is not None:
        monkeypatch.setenv("MULLIGAN_PREFIX_CACHE_BYTES", cache)
    client = await connect(continuing_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"cache-{uuid.uuid4().hex[:6]}")
    async with workers(continuing_server.address, load(["tests.support.shop_agents"]), lab.telemetry, at.task_queue):
        ran = await at.run(list(turns()), max_steps=100)
        messages = (await ran.handle.query("messages", args=[0, 1000]))["messages"]
        first = client.get_workflow_handle(ran.id, run_id=ran.handle.first_execution_run_id)
        assert (await first.describe()).status.name == "CONTINUED_AS_NEW"  # type: ignore[union-attr]
    assert ran.result["output"] == "done"
    assert ran.result["recovered_failures"] == STEPS / 2
    assert [request.json["messages"] for request in ran.requests] == expected(messages)
    prefixes = [messages_of(request.body) for request in ran.requests]
    assert all(after.startswith(before) for before, after in pairwise(prefixes))
    assert [span.attributes.get("mulligan.attempt") for span in ran.spans_of(f"chat {ran.id}")] == [1] * (STEPS + 1)


def messages_of(body: bytes) -> bytes:
    """The messages of a request as bytes, up to where the next request must be equal."""
    text = body.decode()
    start = text.index('"messages":[')
    _, end = json.JSONDecoder().raw_decode(text, start + len('"messages":'))
    return text[start : end - 1].encode()


ELSEWHERE = "changing-elsewhere"
"""The task queue of the tool `elsewhere`."""


async def cache_metrics(lab: Lab) -> Counter[str]:
    """The cache metrics of this process so far: requests by result, and bytes."""
    lab.telemetry.flush()
    found: Counter[str] = Counter()
    for name in ("requests", "fetched", "size"):
        newest = lab.otlp.metrics(f"mulligan.prefix_cache.{name}")[-1]
        assert (newest.kind, newest.unit) == ("sum", "{request}" if name == "requests" else "By")
        for point in newest.points:
            found[point.attributes.get("mulligan.prefix_cache.result", name)] += int(point.value)
    return found


@pytest.fixture
async def own_lab(lab: Lab) -> AsyncIterator[Lab]:
    """A separate worker, so that no other test changes its cache."""
    queue = f"changing-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.changing_results_agent"]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def test_the_cache_fetches_only_what_no_worker_has_made(own_lab: Lab) -> None:
    """Cached messages are not fetched from the workflow, results of lost calls too; another worker's results must be."""
    await own_lab.run([call("look"), call("now"), DONE], agent="changing")
    before = await cache_metrics(own_lab)
    assert before["size"] > 0
    others = running_worker(
        own_lab.client, load(["tests.support.changing_results_agent"]), own_lab.telemetry, ELSEWHERE
    )
    async with others:
        turns = [call("look"), call("deserted"), call("elsewhere"), call("look"), DONE]
        ran = await own_lab.run(turns, agent="changing")
    after = await cache_metrics(own_lab)
    remote = ran.calls[2]
    message = ToolMessage(role="tool", call_id=remote["id"], name="elsewhere", **remote["result"])
    assert message.error is None
    assert after.pop("size") > before.pop("size")
    assert after - before == {"hit": 4, "partial": 1, "fetched": json_bytes(message)}


async def test_a_worker_without_cache_fetches_the_conversation_at_each_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except at the first step, whose messages are in the activity input. The cache stays empty."""
    queue = f"forgetful-{uuid.uuid4().hex[:6]}"
    monkeypatch.setenv("MULLIGAN_PREFIX_CACHE_BYTES", "0")
    before = await cache_metrics(lab)
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run([call("now"), call("now"), DONE])
        messages = (await ran.handle.query("messages"))["messages"]
    said = RunInput(agent="shop", messages=messages).messages
    fetched = json_bytes(*said[:3]) + json_bytes(*said[:5])
    assert await cache_metrics(lab) - before == {"hit": 1, "absent": 2, "fetched": fetched}


def json_bytes(*messages: Message) -> int:
    return sum(len(message.model_dump_json().encode()) for message in messages)


async def test_a_turn_with_another_provider_fetches_nothing_from_the_workflow(own_lab: Lab) -> None:
    """The worker encodes its cached messages again."""
    ids = [f"run-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in ids:
        own_lab.model.script(name, lambda _, nth: call("look") if nth % 2 == 0 else DONE)
    before = await cache_metrics(own_lab)
    models = [f"openai-chat:{ids[0]}", f"openai:{ids[1]}", f"openai-chat:{ids[0]}"]
    handle = await own_lab.client.start_workflow("OneConversation", models, id=ids[0], task_queue=own_lab.task_queue)
    assert await handle.result() == ["done"] * 3
    after = await cache_metrics(own_lab)
    after.pop("size")
    assert after - before == {"hit": 6}
    chat, responses = (own_lab.model.requests_of(name) for name in ids)
    assert [request.refusal for request in [*chat, *responses]] == [None] * 6
    assert [len(request.json["messages"]) for request in chat] == [2, 4, 10, 12]
    assert [len(request.json["input"]) for request in responses] == [5, 7]
    seen = [item["output"] for item in responses[-1].json["input"] if item.get("type") == "function_call_output"]
    assert seen == [f"Look {n} at 0: " + "é" * 200 for n in (1, 2)]
    seen = [message["content"] for message in chat[-1].json["messages"] if message["role"] == "tool"]
    assert seen == [f"Look {n} at 0: " + "é" * 200 for n in (1, 2, 3)]
