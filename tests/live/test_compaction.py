"""Compaction: older steps are summarised for the model, the run goes on, and its user can still read all of them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError

from mulligan import connect
from mulligan.client.read_run import read_pages, read_steps
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.compaction_agents import LIMIT, PROMPT, READ, is_summing_up, reading
from tests.support.lab import Lab, Ran
from tests.support.openai_turn import Failure, Turn
from tests.support.worker_process import worker_process


@pytest.fixture(scope="module")
async def continuing_lab(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server on which runs continue as new after a few steps."""
    client: Client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"compact-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        yield at


async def run(at: Lab, script: Any, **given: Any) -> tuple[Ran, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run to the end; return the run with all its steps and messages, from whichever run of the chain has them."""
    ran = await at.run(script, **{"agent": "page_reader", "prompt": PROMPT, **given})

    async def ask(run_id: str | None, name: str, *args: Any) -> Any:
        return await at.client.get_workflow_handle(ran.id, run_id=run_id).query(name, args=args)

    return ran, await read_steps(at.client, ran.handle), await read_pages(ask, "messages")


@pytest.mark.parametrize(("api", "pages"), [("openai-chat", 22), ("openai", 11)])
async def test_a_compacted_and_continued_run_keeps_every_message_and_runs_each_call_once(
    continuing_lab: Lab, api: str, pages: int
) -> None:
    """The run is compacted and continued as new several times each; every message can still be read."""
    ran, steps, messages = await run(continuing_lab, reading(pages), api=api)
    result = ran.result
    assert (result["status"], result["output"]) == ("completed", f"heron, after {pages}")
    assert (result["steps"], result["tool_calls"], result["recovered_failures"]) == (pages + 1, pages, 0)
    # The log is complete, and its numbers are those of the whole run.
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * pages, "assistant"]
    assert messages[0]["text"] == PROMPT
    assert [m["text"].split(":")[0] for m in messages if m["role"] == "tool"] == [f"PAGE {n + 1}" for n in range(pages)]
    assert [step["step"] for step in steps] == list(range(1, pages + 2))
    # The model gives each call the same id.
    keys = [key for _, key in READ[ran.id]]
    ids = [call["id"] for step in steps for call in step["tool_calls"]]
    assert len(set(keys)) == len(set(ids)) == pages
    assert [page for page, _ in READ[ran.id]] == list(range(1, pages + 1))
    # Requests stay near the limit: they may exceed it by one step, of 2 KB here.
    asked = [request for request in ran.requests if not is_summing_up(request.json)]
    assert len(asked) == pages + 1
    assert max(len(json.dumps(request.conversation)) for request in asked) < 4 * LIMIT + 3_000
    assert all(request.prompt.startswith(PROMPT) for request in asked)
    compacted = [step["compaction"] for step in steps if "compaction" in step]
    assert len(compacted) >= pages // 5
    assert all(one["text"].startswith("Read so far: PAGE ") and one["error"] is None for one in compacted)
    usages = [one["usage"] for one in [*steps, *compacted]]
    assert result["usage"]["input_tokens"] == sum(usage["input_tokens"] for usage in usages)
    # The trace has one chat span for each summary beside those of the steps; no duplicate, no span without its parent.
    spans = [span for span in ran.spans if "mulligan.compaction" in span.attributes]
    assert [span.attributes["mulligan.compaction"] for span in spans] == [one["messages"] for one in compacted]
    known = {span.span_id for span in ran.spans}
    assert len(known) == len(ran.spans) == 2 * pages + 1 + len(spans) + 2
    assert {span.parent_span_id for span in ran.spans} - known <= {""}
    # The last run of the chain names the run that has the rest.
    page, steps_page = await ran.handle.query("messages", args=[0, 10]), await ran.handle.query("steps")
    assert (page["messages"], page["total"], steps_page["steps"]) == ([], 2 * pages + 2, [])
    assert page["earlier"] == steps_page["earlier"]
    earlier = continuing_lab.client.get_workflow_handle(ran.id, run_id=page["earlier"]["run_id"])
    [last] = (await earlier.query("messages", args=[page["next"] - 1, 1]))["messages"]
    assert last == messages[page["next"] - 1]
    assert earlier.run_id not in (ran.handle.first_execution_run_id, None)


async def test_a_run_goes_on_when_the_model_refuses_to_summarise(continuing_lab: Lab) -> None:
    """The endpoint refuses only the request for a summary, as it would if that were too long."""
    pages = 6
    refusing = reading(pages, summary=Turn(failure=Failure(status=400)))
    ran, steps, messages = await run(continuing_lab, refusing, agent="terse_page_reader")
    assert (ran.result["status"], ran.result["output"]) == ("completed", f"heron, after {pages}")
    assert len(messages) == 2 * pages + 2
    [given_up] = [step["compaction"] for step in steps if "compaction" in step]
    assert (given_up["text"], given_up["error"]["kind"]) == ("", "ModelRequestError")
    # The summary is requested with those settings of the agent that are not about answers.
    given = {name: [name in request.json for request in ran.requests] for name in ("temperature", "stop", "max_tokens")}
    summing_up = [is_summing_up(request.json) for request in ran.requests]
    assert given == dict(zip(given, ([True] * len(summing_up), *[[not one for one in summing_up]] * 2), strict=True))
    [span] = [span for span in ran.spans if "mulligan.compaction" in span.attributes]
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "ModelRequestError")


async def test_a_failed_summary_request_is_retried_with_a_span_for_each_attempt(continuing_lab: Lab) -> None:
    """It is retried like any model call, with an ERROR span for each failed attempt."""
    ran, steps, _ = await run(continuing_lab, reading(6, fail_first=[Failure(status=500), Failure(drop="before")]))
    assert ran.result["status"] == "completed"
    [first, *_] = [step["compaction"] for step in steps if "compaction" in step]
    assert first["error"] is None
    spans = [span for span in ran.spans if "mulligan.compaction" in span.attributes][:3]
    assert [(span.attributes["mulligan.attempt"], span.status) for span in spans] == [
        (1, "ERROR"), (2, "ERROR"), (3, "UNSET"),
    ]  # fmt: skip


async def test_nothing_is_compacted_below_the_limit(continuing_lab: Lab) -> None:
    ran, steps, _ = await run(continuing_lab, reading(4), agent="page_reader_with_room")
    assert ran.result["status"] == "completed"
    assert not any("compaction" in step for step in steps)
    assert all(call["id"].startswith("same") for step in steps for call in step["tool_calls"])


async def test_a_run_can_be_cancelled_during_compaction(continuing_lab: Lab) -> None:
    """It ends as cancelled, as during any other call; the trace is closed, and the messages stay readable."""
    never = asyncio.Event()
    handle = await continuing_lab.start(
        reading(9, summary=Turn(text="late", wait=never)), agent="page_reader", prompt=PROMPT
    )
    while not any(is_summing_up(request.json) for request in continuing_lab.model.requests_of(handle.id)):
        await asyncio.sleep(0.05)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)
    steps = await read_steps(continuing_lab.client, handle)
    assert len(steps) >= 5
    continuing_lab.telemetry.flush()
    [root] = [s for s in continuing_lab.otlp.spans() if s.attributes.get("temporal.workflow_id") == handle.id]
    [finish] = [s for s in continuing_lab.otlp.spans() if s.parent_span_id == root.span_id and s.name == "agent.finish"]
    assert finish.attributes["mulligan.status"] == "cancelled"
    assert finish.attributes["mulligan.steps"] == len(steps)


async def test_a_run_stopped_during_compaction_finishes_the_summary_and_asks_no_more(continuing_lab: Lab) -> None:
    """The summary is used, and no model is asked after it."""
    stopping = asyncio.Event()
    handle = await continuing_lab.start(
        reading(12, summary=Turn(text="Read so far: PAGE 3.", wait=stopping)), agent="page_reader"
    )
    while not any(is_summing_up(request.json) for request in continuing_lab.model.requests_of(handle.id)):
        await asyncio.sleep(0.02)
    await handle.execute_update("stop", {"reason": "lunch"})
    stopping.set()
    ran = await continuing_lab.look(handle)
    assert (ran.result["status"], ran.result["reason"]) == ("stopped", "lunch")
    assert is_summing_up(ran.requests[-1].json)


async def test_a_compaction_survives_the_kill_of_its_worker(lab: Lab, temporal: DevServer) -> None:
    """kill -9: the next worker writes the summary, and the span of the lost attempt."""
    released = asyncio.Event()
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"compact-{uuid.uuid4().hex[:6]}")
    script = reading(6, summary=Turn(text="Read so far: PAGE 3.", wait=released))
    handle = await at.start(script, agent="page_reader", prompt=PROMPT)
    telemetry = lab.otlp.environment("http/protobuf")
    serving = partial(worker_process, "tests.support.compaction_agents", at.task_queue, temporal, **telemetry)
    async with serving() as first:
        while not any(is_summing_up(request.json) for request in at.model.requests_of(handle.id)):
            await asyncio.sleep(0.05)
        first.kill()
        await first.wait()
    released.set()
    async with serving() as second:
        ran = await at.look(handle)
        second.terminate()
        assert await second.wait() == 0
    assert (ran.result["status"], ran.result["output"]) == ("completed", "heron, after 6")
    assert [json.loads(call["raw_arguments"])["number"] for call in ran.calls] == [1, 2, 3, 4, 5, 6]
    spans = [s for s in lab.otlp.spans(trace_id=ran.result["trace_id"]) if "mulligan.compaction" in s.attributes][:2]
    told = [(s.attributes["mulligan.attempt"], s.attributes.get("error.type")) for s in spans]
    assert sorted(told, key=str) == [(1, "WorkerLost"), (2, None)]
