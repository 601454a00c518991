"""Deferred tools: the body runs once, the call waits without a worker, and one completion from outside ends it."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.service import RetryConfig, RPCError
from typer.testing import CliRunner

from mulligan import connect
from mulligan.cli.app import app
from mulligan.client.origins.resume_run import resume_run
from mulligan.devserver import DevServer
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_continue_while_waiting import replay_chain, runs_of, write
from tests.live.test_resets import points_of, reset
from tests.promise.test_people import pending, refusal_of
from tests.support.deferred_agents import BODIES, CANCELLED, RELEASE, STARTED, clerk
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

PAGE = Path(__file__).parents[3] / "docs/deferred-tools.md"

JOB = '{"name": "sales"}'


@pytest.fixture(scope="module")
async def office(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"office-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load_agents([clerk], []), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture(scope="module")
async def doors(lab: Lab) -> AsyncIterator[list[Door]]:
    """Two replicas that share nothing but Temporal. They ask for tokens, but not for callbacks."""
    async with http_server(lab.client, tokens="ops:secret-1:*") as one, http_server(lab.client, tokens="a:b") as other:
        yield [one, other]


async def waits(handle: Any, count: int = 1) -> list[dict[str, Any]]:
    """The deferred calls of the newest step, as soon as `count` of them wait."""
    while True:
        steps = (await handle.query("steps"))["steps"]
        calls = [call for step in steps for call in step["tool_calls"] if call.get("deferred") and not call["result"]]
        if len(calls) >= count:
            return calls
        await asyncio.sleep(0.02)


async def token_of(handle: Any, call_id: str) -> str:
    while call_id not in STARTED[handle.id]:
        await asyncio.sleep(0.02)
    return STARTED[handle.id][call_id]


async def by_update(handle: Any, door: Door, call_id: str, **end: Any) -> None:
    accepted = await handle.execute_update("complete", {"call_id": call_id, **end})
    assert accepted == {"accepted": True, "call_id": call_id}


async def by_callback(handle: Any, door: Door, call_id: str, **end: Any) -> None:
    answer = await door.http.post(f"/api/callbacks/{await token_of(handle, call_id)}", json=end)
    assert (answer.status_code, answer.json()) == (200, {"accepted": True})


Complete = Callable[..., Awaitable[None]]
ENDS: list[tuple[Complete, dict[str, Any], str | None, str]] = [
    (by_update, {"result": {"rows": 7}}, None, '{"rows": 7}'),
    (by_callback, {"result": {"rows": 7, "note": "né"}}, None, '{"rows": 7, "note": "né"}'),
    (by_update, {"error": "No data."}, "tool_error", "No data."),
    (by_callback, {"error": "No data."}, "tool_error", "No data."),
    (by_callback, {"result": {"rows": "many"}}, "invalid_result", "rows: Input should be a valid integer"),
    (by_callback, {"result": None}, "invalid_result", "the result: Input should be"),
]
"""How a call of `order_report` is completed, the kind of its error, and a part of what the model reads."""


async def test_each_way_to_complete_a_call_settles_it_once_with_one_span(office: Lab, doors: list[Door]) -> None:
    async def complete(number: int, how: Complete, end: dict[str, Any], kind: str | None, text: str) -> None:
        handle = await office.start(
            [Turn(calls=[("order_report", JOB, "r"), ("note", "{}", "n")]), DONE], agent=clerk.name
        )
        [waiting] = await waits(handle)
        assert waiting["deferred"]["started"] == '{"job": "job-sales"}'
        assert await handle.query("pending") == []
        while (await handle.query("progress"))["running"]:
            await asyncio.sleep(0.02)
        progress = await handle.query("progress")
        assert (progress["status"], progress["waiting_for"]["kind"]) == ("waiting", "callback")
        assert f"mulligan complete {handle.id} r --result JSON" in progress["waiting_for"]["detail"]
        await how(handle, doors[number % 2], "r", **end)
        ran = await office.look(handle)
        assert BODIES[handle.id] == ["r"]
        result = ran.calls[0]["result"]
        assert (result["error"] or {}).get("kind") == kind
        assert text in result["text"]
        assert (ran.result["status"], ran.result["recovered_failures"]) == ("completed", int(kind is not None))
        [span] = [each for each in ran.spans_of("ai.toolCall") if each.attributes["gen_ai.tool.call.id"] == "r"]
        assert span.attributes.get("error.type") == kind
        assert span.attributes["mulligan.recovered"] is (kind is not None)
        sent = [m["content"] for m in ran.requests[-1].json["messages"] if m["role"] == "tool"]
        assert sent == [result["text"], "noted"]
        await replay_chain(office, handle)

    await asyncio.gather(*(complete(number, *row) for number, row in enumerate(ENDS)))


async def test_a_token_is_good_for_one_completion_and_says_nothing_of_the_run(office: Lab, doors: list[Door]) -> None:
    handle = await office.start(
        [Turn(calls=[("order_report", JOB, "r"), ("slow_start", "{}", "s")]), DONE], agent=clerk.name
    )
    token = await token_of(handle, "r")
    assert await token_of(handle, "s") != token
    assert handle.id not in token
    assert len(token) % 4 == 0
    post = doors[0].http.post

    async def answer(sent: str, **request: Any) -> tuple[int, str]:
        got = await doors[1].http.post(f"/api/callbacks/{sent}", **request)
        return got.status_code, got.json()["code"]

    done: Any = {"json": {"result": {"rows": 1}}}
    changed = token[:9] + ("A" if token[9] != "A" else "B") + token[10:]
    for wrong in (changed, token[:-4], "x" * 9_000, "é", "a" * 64):
        assert await answer(wrong, **done) == (404, "callback_not_found"), wrong
    for wrong_body in ({}, {"result": 1, "error": "x"}, {"call_id": "s", "result": 1}, {"error": 7}, {"error": ""}):
        assert (await answer(token, json=wrong_body))[0] == 422, wrong_body
    assert await answer(token, content=b"{") == (400, "invalid_json")
    assert await answer(token, json={"result": "x" * 1_100_000}) == (422, "invalid_input")
    await waits(handle)
    first = await post(f"/api/callbacks/{token}", **done)
    assert (first.status_code, first.json()) == (200, {"accepted": True})
    again = await post(f"/api/callbacks/{token}", **done)
    assert (again.status_code, again.json()["code"]) == (409, "not_waiting")
    assert again.json()["detail"].startswith("The call no longer waits: it was completed at 20")
    assert handle.id not in again.text
    assert '"r" no longer waits: it was completed' in await refusal_of(
        handle, "complete", {"call_id": "r", "result": 1}
    )
    assert 'No call "zzz" waits to be completed' in await refusal_of(
        handle, "complete", {"call_id": "zzz", "result": 1}
    )
    assert 'either "result" or "error"' in await refusal_of(handle, "complete", {"call_id": "r"})
    # Before the body has returned: it is accepted, once, and nothing is lost.
    early = await token_of(handle, "s")
    keyed: Any = {"json": {"result": "early"}, "headers": {"Idempotency-Key": "k"}}
    assert [(await post(f"/api/callbacks/{early}", **keyed)).status_code for _ in range(2)] == [200, 200]
    assert (await post(f"/api/callbacks/{early}", json={"result": "early"})).status_code == 409
    assert (await post(f"/api/callbacks/{early}", **keyed | {"json": {"result": "again"}})).status_code == 409
    RELEASE[handle.id].set()
    ran = await office.look(handle)
    assert [made["result"]["text"] for made in ran.calls] == ['{"rows": 1}', "early"]
    assert await answer(token, **done) == (409, "run_ended")


async def test_a_result_that_temporal_cannot_carry_is_refused_and_its_token_is_in_no_log(
    office: Lab, lab: Lab, doors: list[Door], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither at an answer of 5xx, nor in uvicorn's own log of requests, in which paths are quoted."""
    handle = await office.start([call("order_report", JOB, "c1"), DONE], agent=clerk.name)
    token = await token_of(handle, "c1")
    path = f"/api/callbacks/{token}"
    await waits(handle)
    refused = await doors[0].http.post(path, json={"result": "x" * 3_000_000})
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert "2,000,000" in refused.json()["detail"]
    assert "retry-after" not in refused.headers
    away = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    async with http_server(away) as door:
        assert (await door.http.post(path, json={"result": {}})).status_code == 503
    access = logging.getLogger("uvicorn.access")
    access.addHandler(caplog.handler)
    access.warning('%s - "%s %s HTTP/%s" %d', "::1", "POST", f"/agents{path}?x=1", "1.1", 503)
    access.removeHandler(caplog.handler)
    assert "POST /api/callbacks/…: Temporal" in caplog.text
    assert '"POST /agents/api/callbacks/…?x=1 HTTP/1.1" 503' in caplog.text
    assert token not in caplog.text
    assert (await doors[0].http.post(path, json={"result": {"rows": 7}})).status_code == 200
    await handle.result()


async def test_a_result_that_came_before_the_body_failed_is_told_beside_the_failure(
    office: Lab, doors: list[Door]
) -> None:
    handle = await office.start([call("slow_start", '{"fails": true}', "s"), DONE], agent=clerk.name)
    await by_callback(handle, doors[0], "s", result=7)
    RELEASE[handle.id].set()
    ran = await office.look(handle)
    result = ran.calls[0]["result"]
    assert result["error"]["kind"] == "tool_exception"
    assert result["text"].endswith("This result had come before: 7")
    [span] = ran.spans_of("ai.toolCall")
    assert (span.attributes["error.type"], ran.result["recovered_failures"]) == ("tool_exception", 1)


async def test_a_call_of_another_run_with_the_same_id_is_not_completed_by_an_old_token(
    office: Lab, doors: list[Door]
) -> None:
    handle = await office.start([call("order_report", JOB, "r"), DONE], agent=clerk.name)
    old = await token_of(handle, "r")
    await waits(handle)
    await handle.terminate()
    office.model.script(handle.id, [call("order_report", JOB, "r"), DONE])
    again = await office.client.start_workflow(
        "AgentWorkflow",
        {"agent": clerk.name, "prompt": "Go.", "model": f"openai-chat:{handle.id}"},
        id=handle.id,
        task_queue=office.task_queue,
    )
    await waits(again)
    refused = await doors[0].http.post(f"/api/callbacks/{old}", json={"result": {"rows": 1}})
    assert (refused.status_code, refused.json()["code"]) == (409, "not_waiting")
    assert STARTED[handle.id]["r"] != old
    await by_callback(again, doors[1], "r", result={"rows": 2})
    assert (await again.result())["status"] == "completed"


async def test_a_call_that_is_not_completed_in_time_is_a_timeout(office: Lab, doors: list[Door]) -> None:
    handle = await office.start([call("quick_job", "{}", "q"), DONE], agent=clerk.name)
    ran = await office.look(handle)
    assert ran.calls[0]["result"]["error"]["kind"] == "tool_timeout"
    assert "its result did not come within 1 s" in ran.calls[0]["result"]["text"]
    [span] = ran.spans_of("ai.toolCall")
    assert (span.attributes["error.type"], span.attributes["mulligan.recovered"]) == ("tool_timeout", True)
    assert ran.result["recovered_failures"] == 1


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_stop_and_cancel_end_the_wait_and_call_on_cancel(office: Lab, how: str) -> None:
    calls = [("order_report", JOB, "a"), ("order_report", JOB, "b"), ("wait_until", '{"seconds": 1000}', "w")]
    handle = await office.start([Turn(calls=calls), DONE], agent=clerk.name)
    await waits(handle, 3)
    trace = STARTED[handle.id]["a"]
    assert trace
    if how == "stop":
        await handle.execute_update("stop", {"reason": "lunch"})
        ran = await office.look(handle)
        assert (ran.result["status"], ran.result["recovered_failures"]) == ("stopped", 0)
        assert "was stopped before its result came: lunch" in ran.calls[0]["result"]["text"]
    else:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.query("progress"))["status"] == "cancelled"
        while len(CANCELLED[handle.id]) < 2:  # the run does not wait for it
            await asyncio.sleep(0.02)
    assert sorted(each for each, _ in CANCELLED[handle.id]) == ["a", "b"]
    assert [started for _, started in CANCELLED[handle.id]] == [{"job": "job-sales"}] * 2
    office.telemetry.flush()
    spans = [span for span in office.otlp.spans(trace_id=office._trace_of(handle.id)) if span.name == "ai.toolCall"]
    assert sorted(span.attributes["gen_ai.tool.call.id"] for span in spans) == ["a", "b", "w"]
    assert {span.attributes["mulligan.recovered"] for span in spans} == {False}
    await replay_chain(office, handle)


async def test_an_approved_deferred_call_runs_then_waits(office: Lab, doors: list[Door]) -> None:
    handle = await office.start([call("careful_job", "{}", "c"), DONE], agent=clerk.name)
    await pending(handle)
    assert "waits to be completed" in await refusal_of(handle, "complete", {"call_id": "c", "result": 1})
    await handle.execute_update("decide", {"call_id": "c", "decision": "approve", "by": "Ada"})
    await waits(handle)
    await by_callback(handle, doors[0], "c", result="done elsewhere")
    ran = await office.look(handle)
    assert (ran.calls[0]["result"]["text"], ran.calls[0]["decision"]["by"]) == ("done elsewhere", "Ada")


async def test_a_wait_for_a_time_ends_then_or_with_a_message_or_a_stop(office: Lab) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    rows = {
        "time": ('{"seconds": 0.5}', "The time has come"),
        "when": (f'{{"when": "{soon}"}}', "The time has come"),
        "past": ('{"when": "2020-01-01T00:00:00Z"}', "The time has come"),
        "message": ('{"seconds": 3000}', "by a message"),
        "stop": ('{"seconds": 3000}', "the run was stopped"),
        "neither": ("{}", "either `when` or `seconds`"),
        "long": ('{"seconds": 1e9}', "366 days at most"),
    }

    async def wait(how: str, arguments: str, text: str) -> None:
        handle = await office.start([call("wait_until", arguments, "w"), DONE], agent=clerk.name)
        if how in ("message", "stop"):
            [waiting] = await waits(handle)
            assert (waiting["deferred"]["kind"], waiting["deferred"]["until"] > soon) == ("timer", True)
            assert (await handle.query("progress"))["waiting_for"]["kind"] == "timer"
            assert "a message to the run ends that" in await refusal_of(
                handle, "complete", {"call_id": "w", "result": 1}
            )
            update, fields = ("stop", {}) if how == "stop" else ("send_message", {"text": "Wake up!"})
            await handle.execute_update(update, fields)
        ran = await office.look(handle)
        assert text in ran.calls[0]["result"]["text"], how
        assert len(ran.spans_of("ai.toolCall")) == 1
        if how == "message":
            assert "Wake up!" in str(ran.requests[-1].json["messages"][-1])
        await replay_chain(office, handle)

    await asyncio.gather(*(wait(how, *row) for how, row in rows.items()))


async def test_a_wait_goes_on_through_continue_as_new_and_an_early_update(
    lab: Lab, doors: list[Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results, the waits, their time limits and what was completed before are carried."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"chain-{uuid.uuid4().hex[:6]}")
    calls = [("order_report", JOB, "r"), ("careful_job", "{}", "c"), ("slow_start", "{}", "s"), ("note", "{}", "n")]
    async with running_worker(at.client, load_agents([clerk], []), lab.telemetry, at.task_queue):
        handle = await at.start([Turn(calls=calls), DONE], agent=clerk.name)
        RELEASE[handle.id].set()
        await waits(handle, 2)
        await by_update(handle, doors[0], "s", result="first")
        await write(handle, [f"message {number}" for number in range(40)])
        continued = await runs_of(at, handle)
        assert continued > 1
        assert "it was completed" in await refusal_of(handle, "complete", {"call_id": "s", "result": 1})
        assert [each["call_id"] for each in await handle.query("pending")] == ["c"]
        await handle.execute_update("decide", {"call_id": "c", "decision": "approve"})
        await waits(handle, 2)
        await write(handle, [f"more {number}" for number in range(40)])
        assert await runs_of(at, handle) > continued
        await asyncio.gather(
            by_callback(handle, doors[0], "r", result={"rows": 3}),
            by_callback(handle, doors[1], "c", error="Too late."),
        )
        ran: Ran = await at.look(handle)
        assert [made["result"]["text"] for made in ran.calls] == ['{"rows": 3}', "Too late.", "first", "noted"]
        assert sorted(BODIES[handle.id]) == ["c", "r", "s"]
        spans = sorted(span.attributes["gen_ai.tool.call.id"] for span in ran.spans_of("ai.toolCall"))
        assert spans == ["c", "n", "r", "s"]
        await replay_chain(at, handle)


async def test_a_completion_survives_a_reset_and_a_resumed_run_is_told_what_was_lost(
    office: Lab, doors: list[Door]
) -> None:
    """After a reset the token is as good as before: completions that came after the point of the reset come again."""
    handle = await office.start([call("order_report", JOB, "r"), DONE, DONE], agent=clerk.name)
    await waits(handle)
    points = await points_of(handle)
    again = await reset(office, handle, points[-1])
    await waits(again)
    await by_callback(handle, doors[0], "r", result={"rows": 4})
    assert (await again.result())["status"] == "completed"
    ended = await reset(office, again, points[-1])
    assert (await ended.result())["status"] == "completed"
    [step] = [step for step in (await ended.query("steps"))["steps"] if step["tool_calls"]]
    assert step["tool_calls"][0]["result"]["text"] == '{"rows": 4}'
    assert BODIES[handle.id] == ["r"]
    # A run that is terminated while it waits.
    lost = await office.start([call("order_report", JOB, "r"), DONE], agent=clerk.name)
    await waits(lost)
    await lost.terminate()
    resumed = await resume_run(office.client, lost.id)
    assert (await resumed.result())["status"] == "completed"
    sent = [m["content"] for m in office.model.requests_of(lost.id)[-1].json["messages"] if m["role"] == "tool"]
    assert "may or may not have" in sent[0]
    old = await doors[0].http.post(f"/api/callbacks/{STARTED[lost.id]['r']}", json={"result": {"rows": 1}})
    assert (old.status_code, old.json()["code"]) == (409, "run_ended")


async def test_a_call_waits_on_after_the_kill_of_its_worker(lab: Lab, temporal: DevServer, doors: list[Door]) -> None:
    """`kill -9` while calls wait: another worker settles them, and no body runs again."""
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    calls = [("order_report", JOB, "r"), ("wait_until", '{"seconds": 3}', "w")]
    handle = await at.start([Turn(calls=calls), DONE], agent=clerk.name)
    telemetry = lab.otlp.environment("http/protobuf")
    async with worker_process("tests.support.deferred_agents", queue, temporal, **telemetry) as first:
        while len((await progress_of(handle)).get("running", ["none yet"])) or not await waits(handle, 2):
            await asyncio.sleep(0.1)
        first.kill()
        await first.wait()
    async with worker_process("tests.support.deferred_agents", queue, temporal, **telemetry):
        await by_update(handle, doors[0], "r", result={"rows": 5})
        ran = await at.look(handle)
    assert [made["result"]["text"][:8] for made in ran.calls] == ['{"rows":', "The time"]
    assert [made["attempts"] for made in ran.calls] == [1, 1]


async def progress_of(handle: Any) -> dict[str, Any]:
    try:
        progress: dict[str, Any] = await handle.query("progress")
    except RPCError:  # no worker polls yet
        return {}
    return progress


async def test_the_example_of_the_page_works(lab: Lab, doors: list[Door]) -> None:
    names: dict[str, Any] = {}
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), names)
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"page-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load_agents([names["accountant"]], []), lab.telemetry, at.task_queue):
        handle = await at.start([call("order_report", '{"year": 2026}', "r"), DONE], agent="accountant")
        await waits(handle)
        [order] = names["ORDERS"]
        path = order["callback"].removeprefix("https://agents.example.com")
        assert (await doors[0].http.post(path, json={"result": {"rows": 12}})).status_code == 200
        assert (await handle.result())["status"] == "completed"
        stopped = await at.start([call("order_report", '{"year": 2025}', "r"), DONE], agent="accountant")
        await waits(stopped)
        await stopped.execute_update("stop", {})
        assert (await stopped.result())["status"] == "stopped"
        assert names["ORDERS"] == [order]


async def test_the_command_completes_a_call(office: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of(temporal).items():
        monkeypatch.setenv(name, value)

    async def complete(*words: str) -> tuple[int, str]:
        ran = await asyncio.to_thread(CliRunner().invoke, app, ["complete", *words], catch_exceptions=False)
        return ran.exit_code, ran.stdout + ran.stderr

    calls = [("order_report", JOB, "a"), ("order_report", JOB, "b"), ("slow_start", "{}", "n")]
    handle = await office.start([Turn(calls=calls), DONE], agent=clerk.name)
    RELEASE[handle.id].set()
    await waits(handle, 3)
    for words, sentence in {
        ("a",): "either --result or --error",
        ("a", "--result", "1", "--error", "x"): "either --result or --error",
        ("a", "--result", "{rows}"): "--result is not JSON",
        ("zzz", "--result", "1"): "waits to be completed; those that wait: a, b, n",
    }.items():
        code, text = await complete(handle.id, *words)
        assert (code, sentence in " ".join(text.split())) == (2, True), text
    assert await complete(handle.id, "a", "--result", '{"rows": 9}') == (0, f"a of {handle.id} was completed.\n")
    assert (await complete(handle.id, "b", "--error", "No data.", "--json"))[0] == 0
    assert (await complete(handle.id, "n", "--result", "null"))[0] == 0
    ran = await office.look(handle)
    assert [made["result"]["text"] for made in ran.calls] == ['{"rows": 9}', "No data.", "null"]
    assert (await complete(handle.id, "a", "--result", "1"))[0] == 2
