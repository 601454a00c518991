"""The trace of a run in a real Jaeger: complete and without duplicates, whatever happens to its workers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client

from mulligan.devserver import DevServer, temporal_server
from tests.support.command_server import PIPE, start_command
from tests.support.jaeger_server import JaegerServer, attributes
from tests.support.lab import DONE, call
from tests.support.openai_server import OpenAIServer, Script
from tests.support.openai_turn import Failure, Turn
from tests.support.temporal import connect_to, environment_of

ADA = '{"customer": "Ada"}'
MISTAKES = [
    call("serch_orders", ADA),
    call("search_orders", '{"customer": "Ada"'),
    call("search_orders", '{"client": "Ada"}'),
    call("refuse"),
    call("explode"),
    call("hang_thread"),
    call("flaky"),
    call("give", '{"what": "object"}'),
    call("click", '{"element": "#a"}'),
    Turn(calls=[("now", "{}", None), ("refuse", "{}", None), ("nothing", "{}", None)]),
    Turn(calls=[("now", "{}", None)], fail_first=[Failure(status=500)]),
    Turn(text=""),
]
KILLS, STEPS_AFTER = int(os.environ.get("TRACE_KILLS", "3")), 20
Spans = list[dict[str, Any]]


@asynccontextmanager
async def worker(server: DevServer, queue: str, jaeger: JaegerServer, **environ: str) -> AsyncIterator[int]:
    """`mulligan worker` as a process; yields its id. If it still runs at the end, it drains."""
    process = await start_command(
        "worker", "--load", "tests.support.shop_agents", "--task-queue", queue,
        env={**os.environ, **jaeger.environment(), **environment_of(server), **environ}, stderr=PIPE,
    )  # fmt: skip
    assert process.stderr
    await process.stderr.readline()
    # Otherwise a worker with much output would block at a full pipe.
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await reading


async def start(client: Client, model: OpenAIServer, queue: str, turns: Script, **run_input: Any) -> Any:
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    model.script(run_id, turns)
    given = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}", "max_steps": 1000, **run_input}
    return await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=queue)


async def recovered_in_steps(handle: Any) -> Counter[tuple[str, str]]:
    """The failures that the run recovered from, by its own steps."""
    steps: list[dict[str, Any]] = (await handle.query("steps", args=[0, 1000]))["steps"]
    calls = [call for step in steps for call in step["tool_calls"]]
    return Counter((call["id"], call["result"]["error"]["kind"]) for call in calls if call["result"]["error"])


def recovered_in_trace(spans: Spans) -> Counter[tuple[str, str]]:
    """The failures that the trace shows as recovered."""
    about = [attributes(span) for span in spans if span["name"] == "ai.toolCall"]
    return Counter(
        (each["ai.toolCall.id"], each["error.type"])
        for each in about
        if each["mulligan.recovered"] and not each["ai.toolCall.id"].startswith("answer_")
    )


def assert_whole(spans: Spans) -> None:
    """Assert that there are no duplicate spans, and that each but the root has its parent."""
    ids = Counter(span["spanId"] for span in spans)
    assert [span for span in ids if ids[span] > 1] == []
    roots = [span for span in spans if span.get("parentSpanId") not in ids]
    assert [span["name"] for span in roots] == ["invoke_agent shop"]


async def in_jaeger(jaeger: JaegerServer, trace_id: str, settled: int = 5) -> Spans:
    """The trace after its workers have ended, as soon as it has not grown over `settled` requests."""
    spans: Spans = []
    unchanged = 0
    while unchanged < settled:
        await asyncio.sleep(0.1)
        now = await jaeger.spans(trace_id)
        ended = any(span["name"] == "agent.finish" for span in now)
        unchanged = unchanged + 1 if ended and len(now) == len(spans) else 0
        spans = now
    return spans


async def test_workers_without_caches_export_one_span_for_each_failure(
    jaeger: JaegerServer, model: OpenAIServer
) -> None:
    """Three workers without caches, and a run that continues as new."""
    config = ["limit.historyCount.suggestContinueAsNew=60"]
    forgetful = {"MULLIGAN_MAX_CACHED_WORKFLOWS": "0", "MULLIGAN_PREFIX_CACHE_BYTES": "0"}
    async with temporal_server(dynamic_config=config) as server, AsyncExitStack() as workers:
        three = [worker(server, "agents", jaeger, **forgetful) for _ in range(3)]
        await asyncio.gather(*map(workers.enter_async_context, three))
        client = await connect_to(server)
        handle = await start(client, model, "agents", [*MISTAKES, *MISTAKES, DONE])
        result = await handle.result()
        first = client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        assert (await first.describe()).status.name == "CONTINUED_AS_NEW"  # type: ignore[union-attr]
        failures = await recovered_in_steps(handle)
    spans = await in_jaeger(jaeger, result["trace_id"])
    assert result["status"] == "completed"
    assert_whole(spans)
    assert recovered_in_trace(spans) == failures
    # In addition to the calls: two empty answers.
    assert result["recovered_failures"] == failures.total() + 2
    by_name = Counter(span["name"].split(" ")[0] for span in spans)
    assert by_name["chat"] == result["steps"] + 2  # two were retried
    flaky = [attributes(span) for span in spans if attributes(span).get("ai.toolCall.name") == "flaky"]
    assert sorted((each["mulligan.attempt"], each.get("error.type", "")) for each in flaky) == [
        (1, "tool_exception"), (1, "tool_exception"), (2, "tool_exception"), (2, "tool_exception"), (3, ""), (3, ""),
    ]  # fmt: skip
    assert [span["status"].get("message") for span in spans if span["name"] == "agent.finish"] == [None]


async def test_workers_killed_at_any_point_export_no_span_twice(
    jaeger: JaegerServer, model: OpenAIServer, temporal: DevServer
) -> None:
    """Repeated kill -9: spans are neither duplicated nor invented; only those of a killed worker's last second are lost."""
    chance = random.Random(5)
    client = await connect_to(temporal)
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    mixed = [call("now"), call("refuse"), call("explode"), call("serch")]
    last: list[int] = []
    # The run ends some steps after the last kill: not before, however fast it is, and not long after.
    handle = await start(
        client, model, queue, lambda _, nth: DONE if last and nth >= last[0] + STEPS_AFTER else mixed[nth % 4]
    )
    ending = asyncio.create_task(handle.result())
    for _ in range(KILLS):
        async with worker(temporal, queue, jaeger) as pid:
            # Temporal must time out the tasks of the killed worker before the next one can be killed at work.
            await model.wait_for_requests(len(model.requests_of(handle.id)) + 1, model=handle.id)
            await asyncio.sleep(chance.uniform(0, 1.5))
            assert not ending.done()
            os.kill(pid, signal.SIGKILL)
    last.append(max(request.nth for request in model.requests_of(handle.id)))
    async with worker(temporal, queue, jaeger):
        result = await ending
    async with worker(temporal, queue, jaeger):
        failures = await recovered_in_steps(handle)
    spans = await in_jaeger(jaeger, result["trace_id"])
    assert result["status"] == "completed"
    assert_whole(spans)
    shown = recovered_in_trace(spans)
    assert shown - failures == Counter()
    lost = [failure not in shown for failure in failures]  # in the order of the steps
    print(f"{KILLS} kills: {sum(lost)} of {len(lost)} spans lost")
    gaps = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
    assert gaps <= KILLS


@pytest.mark.parametrize("api", ["api/traces", "api/v3/traces"])
async def test_jaeger_warns_of_no_span_of_a_run(
    jaeger: JaegerServer, model: OpenAIServer, temporal: DevServer, api: str
) -> None:
    """Nearly all spans begin after their parent, `invoke_agent`, has ended: Jaeger must know that they share a clock.

    `api/traces` is what Jaeger's UI reads.
    """
    client = await connect_to(temporal)
    queue = f"warned-{uuid.uuid4().hex[:6]}"
    async with worker(temporal, queue, jaeger):
        handle = await start(client, model, queue, [call("now"), call("serch_orders", ADA), call("flaky"), DONE])
        result = await handle.result()
    spans = await in_jaeger(jaeger, result["trace_id"])
    assert len(spans) > 8
    answer = await jaeger.get(f"{api}/{result['trace_id']}")
    assert answer.count("agent.finish") == 1
    assert "clock skew" not in answer
    assert '"warnings":[' not in answer.replace(" ", "")


async def test_a_model_call_lost_with_its_worker_has_one_span(
    jaeger: JaegerServer, model: OpenAIServer, temporal: DevServer
) -> None:
    """The next attempt exports the span of the lost one."""
    client = await connect_to(temporal)
    queue = f"lost-{uuid.uuid4().hex[:6]}"
    handle = await start(client, model, queue, [Turn(text="done", fail_first=[Failure(delay=10), Failure()])])
    async with worker(temporal, queue, jaeger) as pid:
        await model.wait_for_requests(1, model=handle.id)
        os.kill(pid, signal.SIGKILL)
    async with worker(temporal, queue, jaeger):
        result = await handle.result()
    spans = await in_jaeger(jaeger, result["trace_id"])
    assert_whole(spans)
    chats = [attributes(span) for span in spans if span["name"] == f"chat {handle.id}"]
    assert sorted((each["mulligan.attempt"], each.get("error.type")) for each in chats) == [
        (1, "WorkerLost"), (2, "Unavailable"), (3, None),
    ]  # fmt: skip


async def test_from_step_101_on_each_hundred_steps_have_a_span_of_their_own(
    jaeger: JaegerServer, model: OpenAIServer, temporal: DevServer
) -> None:
    """So that long traces stay readable."""
    client = await connect_to(temporal)
    queue = f"long-{uuid.uuid4().hex[:6]}"
    async with worker(temporal, queue, jaeger):
        handle = await start(client, model, queue, [*[call("now") for _ in range(210)], DONE])
        result = await handle.result()
    spans = await in_jaeger(jaeger, result["trace_id"])
    assert_whole(spans)
    [root] = [span for span in spans if span["name"] == "invoke_agent shop"]
    groups = {span["spanId"]: attributes(span) for span in spans if span["name"] == "agent.steps"}
    assert sorted((each["mulligan.step"], each["mulligan.last_step"]) for each in groups.values()) == [
        (101, 200),
        (201, 300),
    ]
    for span in spans:
        if span["name"] in ("ai.toolCall", f"chat {handle.id}"):
            hundred = (attributes(span)["mulligan.step"] - 1) // 100
            hangs_on = span["parentSpanId"]
            assert groups[hangs_on]["mulligan.step"] == hundred * 100 + 1 if hundred else hangs_on == root["spanId"]
    assert len(spans) == 1 + 2 + 211 + 210 + 1
