"""Sub-agents: each call is a run of its own, in one trace."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError

from mulligan import InvalidRunInputError, ToolExecutionError
from mulligan.client.origins.resume_run import resume_run
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer
from mulligan.errors import RemoteSource
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_resets import points_of, reset
from tests.support.lab import DONE, Lab, Ran
from tests.support.openai_turn import Turn
from tests.support.worker_process import worker_process


@pytest.fixture(scope="module")
async def teams(lab: Lab) -> AsyncIterator[Lab]:
    """A worker for agents with sub-agents."""
    queue = f"teams-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.sub_agent_teams"]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


def ask(prompt: str, tool: str = "researcher", id: str | None = None) -> tuple[str, str, str | None]:  # noqa: A002
    return (tool, json.dumps({"prompt": prompt}), id)


def texts(ran: Ran) -> list[str]:
    return [call["result"]["text"] for call in ran.calls]


def read_by_model(ran: Ran) -> list[str]:
    """The results in the prompt of the second model call."""
    return [message["content"] for message in ran.requests[1].json["messages"] if message["role"] == "tool"]


def kinds(ran: Ran) -> list[str | None]:
    return [(call["result"]["error"] or {}).get("kind") for call in ran.calls]


def assert_one_trace(ran: Ran, runs: int) -> None:
    """Assert that every span is there once with its parent, and that there are `runs` runs."""
    ids = {span.span_id for span in ran.spans}
    assert len(ids) == len(ran.spans)
    roots = [span for span in ran.spans if not span.parent_span_id]
    assert len(roots) == 1
    assert all(span.parent_span_id in ids for span in ran.spans if span.parent_span_id)
    assert len([span for span in ran.spans if span.name.startswith("invoke_agent")]) == runs
    assert len(ran.spans_of("agent.finish")) == runs


async def start_agent(teams: Lab, agent: str, prompt: str, **run_input: Any) -> Any:
    """Start a run whose model is scripted in tests.support.sub_agent_teams."""
    given = {"agent": agent, "prompt": prompt, **run_input}
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    return await teams.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=teams.task_queue)


async def test_each_sub_agent_call_is_a_child_workflow_and_usage_is_added_up(teams: Lab) -> None:
    """Its id is derived from that of the caller; all spans are in one trace."""
    asked = [ask(f"note {n}", id=f"call_{n}") for n in range(1, 4)] + [
        ask("what is it"),
        ("note", '{"text": "x"}', None),
    ]
    ran = await teams.run([Turn(calls=asked), DONE], agent="lead", metadata={"team": "red"})
    assert texts(ran)[:4] == [f"found: note {n}" for n in range(1, 4)] + ["found: what is it"]
    assert kinds(ran) == [None] * 5
    children = [call["run"] for call in ran.calls[:4]]
    assert [child["id"] for child in children][:3] == [f"{ran.id}/call_{n}" for n in range(1, 4)]
    assert [(child["agent"], child["status"], child["steps"]) for child in children] == [
        ("researcher", "completed", 2),
        ("researcher", "completed", 3),
        ("researcher", "completed", 4),
        ("researcher", "completed", 1),
    ]
    assert "run" not in ran.calls[4]
    spent = [child["usage"]["input_tokens"] for child in children]
    assert ran.result["usage"]["input_tokens"] == 2 * 10 + sum(spent)
    assert min(spent) > 0
    child = teams.client.get_workflow_handle(children[0]["id"])
    result = await child.result()
    assert (result["status"], result["trace_id"]) == ("completed", ran.result["trace_id"])
    noted = (await child.query("steps"))["steps"][0]["tool_calls"][0]["result"]["text"]
    assert noted == "researcher noted 1; team red"
    described = await child.describe()
    assert (await described.memo())["agent"] == "researcher"
    assert described.parent_id == ran.id
    assert_one_trace(ran, 5)
    spans = {
        span.attributes["ai.toolCall.id"]: span
        for span in ran.spans_of("ai.toolCall")
        if span.attributes["ai.toolCall.name"] == "researcher"
    }
    assert {span.status for span in spans.values()} == {"UNSET"}
    assert spans["call_1"].attributes["mulligan.sub_run.id"] == children[0]["id"]
    roots = {span.attributes["gen_ai.tool.call.id"]: span for span in ran.spans_of("invoke_agent researcher")}
    assert roots["call_1"].attributes["temporal.workflow_id"] == children[0]["id"]
    [top] = ran.spans_of("invoke_agent lead")
    assert roots["call_1"].parent_span_id == spans["call_1"].parent_span_id == top.span_id
    # The next model call gets them like the results of any tool.
    assert read_by_model(ran) == texts(ran)


FAILURES = [
    (
        "lazy",
        "What?",
        "tool_exception",
        "`lazy` failed after it was started: ModelRequestError: There is no script 'no such script'",
    ),
    ("brittle", "Go.", "tool_exception", "`brittle` failed after it was started: InvalidToolInputError: "),
    ("hasty", "wait /never", "tool_timeout", "`hasty` did not come to its end within the 1 s that it may take"),
    ("far", "What?", "tool_timeout", "within the 3 s"),
    (
        "researcher",
        "for ever",
        "tool_exception",
        "after 6 steps: it used up its steps.\nIts last words: I am still at it.",
    ),
    ("researcher", "", "tool_exception", '"prompt" is empty; say what the agent is to do.'),
]


async def test_a_sub_agent_that_does_not_complete_is_reported_to_the_calling_model(teams: Lab) -> None:
    """With one ERROR span; the calling run goes on."""
    asked = [ask(prompt, name) for name, prompt, _, _ in FAILURES]
    ran = await teams.run([Turn(calls=asked), DONE], agent="lead")
    assert (ran.result["status"], ran.result["recovered_failures"]) == ("completed", 6)
    for said, told, kind, (_, _, expected, part) in zip(ran.calls, texts(ran), kinds(ran), FAILURES, strict=True):
        assert (kind, part in told, said["attempts"]) == (expected, True, 1), told
    statuses = [said["run"]["status"] for said in ran.calls]
    assert statuses == ["failed", "failed", "timed_out", "timed_out", "max_steps", "failed"]
    # The usage of a failed run is counted as well.
    took = [said["run"] for said in ran.calls]
    assert [run["steps"] for run in took] == [0, 2, 0, 0, 6, 0]
    assert ran.result["usage"]["input_tokens"] == 2 * 10 + sum(run["usage"]["input_tokens"] for run in took)
    assert took[1]["usage"]["input_tokens"] > 0
    asked_by_lead = {said["id"] for said in ran.calls}
    spans = [span for span in ran.spans_of("ai.toolCall") if span.attributes["ai.toolCall.id"] in asked_by_lead]
    errors = [span for span in spans if span.status == "ERROR"]
    assert sorted(span.attributes["error.type"] for span in errors) == sorted(row[2] for row in FAILURES)
    assert all(span.attributes["mulligan.recovered"] for span in errors)
    assert read_by_model(ran) == texts(ran)


async def test_a_policy_that_fails_the_calling_run_cancels_its_other_sub_agents(teams: Lab, tmp_path: Path) -> None:
    """It waits for them to end."""
    ran = await teams.run(
        [Turn(calls=[ask(f"wait {tmp_path}/never", id="waits"), ask("What?", "lazy")])], agent="strict_lead"
    )
    assert isinstance(ran.error, ToolExecutionError)
    assert ran.error.kind == "tool_exception"
    assert isinstance(ran.error.source, RemoteSource)
    assert ran.error.source.type_name == "ModelRequestError"
    child = await teams.client.get_workflow_handle(f"{ran.id}/waits").describe()
    assert child.status == WorkflowExecutionStatus.CANCELED


async def test_sub_agents_are_not_started_below_max_depth(teams: Lab) -> None:
    """`max_depth` is 2 for this agent; a run's input can lower it, not raise it. The model at the limit gets an error."""
    ran = await teams.look(await start_agent(teams, "nested", "Go"))
    assert (
        ran.result["output"]
        == "(((`nested` was not started: agents may not hand work on any deeper than this. Do it without another agent.)))"
    )
    assert_one_trace(ran, 3)
    [span] = [span for span in ran.spans_of("ai.toolCall") if span.status == "ERROR"]
    assert (span.attributes["error.type"], span.attributes["mulligan.recovered"]) == ("tool_exception", True)
    assert ran.calls[0]["run"]["id"] == f"{ran.id}/call_1_1"
    whole = ran.result["usage"]["input_tokens"]
    assert whole > ran.calls[0]["run"]["usage"]["input_tokens"] > 0
    for depth, roots in ((0, 1), (1, 2), (9, 3)):
        ran = await teams.look(await start_agent(teams, "nested", "Go", maxDepth=depth))
        assert len(ran.spans_of("invoke_agent nested")) == roots


async def test_a_cancelled_run_ends_after_all_its_sub_agents_have_ended(teams: Lab, tmp_path: Path) -> None:
    """A sub-agent that is cancelled alone is reported to its caller."""
    handle = await teams.start(
        [Turn(calls=[ask(f"wait {tmp_path}/a", id="a"), ask(f"wait {tmp_path}/b", id="b")]), DONE], agent="lead"
    )
    child = teams.client.get_workflow_handle(f"{handle.id}/a")
    await until_running(child, "wait_for_file")
    shown = (await handle.query("steps"))["steps"][0]["tool_calls"][0]
    assert (shown["run"]["status"], shown["run"]["id"], shown["result"]) == ("running", child.id, None)
    await child.cancel()
    (tmp_path / "b").touch()
    ran = await teams.look(handle)
    assert kinds(ran) == ["tool_exception", None]
    assert texts(ran)[0] == "`researcher` did not complete its work: it was cancelled."
    assert_one_trace(ran, 3)

    handle = await teams.start(
        [Turn(calls=[ask(f"deep wait {tmp_path}/c", "chief", id="c"), ask(f"wait {tmp_path}/d", id="d")])], agent="lead"
    )
    below = teams.client.get_workflow_handle(f"{handle.id}/c/call_1_1")
    beside = teams.client.get_workflow_handle(f"{handle.id}/d")
    await until_running(below, "wait_for_file")
    await until_running(beside, "wait_for_file")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    ended = [
        (await teams.client.get_workflow_handle(each).describe())
        for each in (handle.id, f"{handle.id}/c", below.id, beside.id)
    ]
    assert {one.status for one in ended} == {WorkflowExecutionStatus.CANCELED}
    closed_at = [one.close_time for one in ended]
    assert all(at and closed_at[0] and at <= closed_at[0] for at in closed_at)
    teams.telemetry.flush()
    root = next(span for span in teams.otlp.spans() if span.attributes.get("temporal.workflow_id") == handle.id)
    spans = teams.otlp.spans(trace_id=root.trace_id)
    finished = [span.attributes["mulligan.status"] for span in spans if span.name == "agent.finish"]
    assert finished == ["cancelled"] * 4
    closed = [span.attributes["error.type"] for span in spans if span.name == "ai.toolCall"]
    assert closed == ["cancelled"] * 5


async def test_the_rest_of_a_budget_is_divided_among_the_sub_agents_that_share_it(teams: Lab) -> None:
    """A sub-agent ends when its share is spent."""
    asked = [ask("for ever", "sharing", id="a"), ask("for ever", "sharing", id="b"), ask("note 2", id="c")]
    turns = [Turn(calls=asked), Turn(calls=[ask("What?", "sharing", id="d")]), DONE]
    ran = await teams.run(turns, agent="lead", maxTotalTokens=2_015)
    shares = []
    for each in ("a", "b", "c"):
        history = await teams.client.get_workflow_handle(f"{ran.id}/{each}").fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        shares.append(json.loads(started.input.payloads[0].data).get("max_total_tokens"))
    assert shares == [1_000, 1_000, None]
    spent = [run["usage"]["input_tokens"] + run["usage"]["output_tokens"] for run in (c["run"] for c in ran.calls[:3])]
    assert [each["run"]["status"] for each in ran.calls[:3]] == ["max_tokens", "max_tokens", "completed"]
    assert all(1_000 <= each < 1_200 for each in spent[:2])
    assert "it used up its tokens." in texts(ran)[0]
    assert ran.result["status"] == "max_tokens"
    usage = ran.result["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == sum(spent) + 15


async def test_a_stop_reaches_the_sub_agents_of_a_run(teams: Lab, tmp_path: Path) -> None:
    """At all levels. Running calls may finish, and partial results are returned."""
    handle = await teams.start([Turn(calls=[ask(f"deep wait {tmp_path}/a", "chief", id="c")]), DONE], agent="lead")
    chief, below = (teams.client.get_workflow_handle(f"{handle.id}/{each}") for each in ("c", "c/call_1_1"))
    await until_running(below, "wait_for_file")
    await handle.execute_update("stop", {"reason": "lunch"})
    while not await has_signal(below):
        await asyncio.sleep(0.05)
    (tmp_path / "a").touch()
    ran = await teams.look(handle)
    ended = [await each.result() for each in (chief, below)]
    assert [each["status"] for each in (ran.result, *ended)] == ["stopped"] * 3
    assert ended[1]["reason"] == "lunch"
    assert texts(ran) == ["`chief` did not complete its work after 1 step: it was stopped by a person."]
    assert_one_trace(ran, 3)


async def test_sub_agent_calls_can_be_approved_edited_and_denied(teams: Lab) -> None:
    """The span says who decided."""
    asked = [ask("What?", "careful", id="c"), ask("Why?", "careful", id="d")]
    handle = await teams.start([Turn(calls=asked), DONE], agent="lead")
    while len(await handle.query("pending")) < 2:
        await asyncio.sleep(0.05)
    approved = {"call_id": "c", "decision": "approve", "by": "Ada", "arguments": {"prompt": "Who?"}}
    await handle.execute_update("decide", approved)
    await handle.execute_update("decide", {"call_id": "d", "decision": "deny", "by": "Ada"})
    ran = await teams.look(handle)
    assert texts(ran)[0] == "found: Who?"
    assert kinds(ran) == [None, "denied"]
    [span] = [one for one in ran.spans_of("ai.toolCall") if one.status == "UNSET"]
    assert span.attributes["mulligan.decision.by"] == "Ada"


async def test_two_agents_of_one_workflow_may_use_the_same_call_ids(teams: Lab) -> None:
    """Also in a later turn of one agent."""
    run_id = f"two-{uuid.uuid4().hex[:8]}"
    turns = [Turn(calls=[ask("first", id="same")]), DONE]
    teams.model.script(run_id, [*turns, Turn(calls=[ask("third", id="other")]), Turn(text="again")])
    teams.model.script(run_id + "-b", [Turn(calls=[ask("second", id="same")]), DONE])
    models = [f"openai-chat:{run_id}", f"openai-chat:{run_id}-b"]
    handle = await teams.client.start_workflow("TwoLeads", models, id=run_id, task_queue=teams.task_queue)
    assert await handle.result() == ["done", "done", "again"]
    for name, output in (("same", "first"), ("same.1", "second"), ("other", "third")):
        result = await teams.client.get_workflow_handle(f"{run_id}/{name}").result()
        assert result["output"] == f"found: {output}"


async def test_a_caller_gets_the_result_of_the_last_run_of_a_sub_agents_chain(
    teams: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller continues as new too, while no sub-agent runs."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    turns = [Turn(calls=[ask(f"note {steps}", "patient", id=f"call_{steps}")]) for steps in (15, 1, 2, 3)]
    ran = await teams.run([*turns, DONE], agent="lead")
    assert texts(ran) == [f"found: note {steps}" for steps in (15, 1, 2, 3)]
    assert ran.calls[0]["run"]["steps"] == 16
    assert (await size_of_chain(teams.client, f"{ran.id}/call_15")).runs > 2
    assert (await size_of_chain(teams.client, ran.id)).runs > 1
    assert_one_trace(ran, 5)


async def test_a_sub_agent_whose_id_is_in_use_gets_another_id(teams: Lab, tmp_path: Path) -> None:
    """As after a reset, while the earlier run of the same call is being cancelled. Several ids are tried."""
    handle = await teams.start([Turn(calls=[ask(f"wait {tmp_path}/go"), ask("What?", id="taken")]), DONE], agent="lead")
    taken = [
        f"{handle.id}/taken",
        f"{handle.id}/taken.again2",
        f"{handle.id}/full",
        f"{handle.id}/full.again2",
        f"{handle.id}/full.again3",
    ]
    teams.model.script(handle.id + "-2", [Turn(calls=[ask("What?", id="taken"), ask("What?", id="full")]), DONE])
    await handle.cancel()
    squatters = [
        await teams.client.start_workflow(
            "AgentWorkflow",
            {"agent": "researcher", "prompt": f"wait {tmp_path}/go"},
            id=each,
            task_queue=teams.task_queue,
        )
        for each in taken
    ]
    given = {"agent": "lead", "prompt": "Go.", "model": f"openai-chat:{handle.id}-2"}
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    again = await teams.client.start_workflow("AgentWorkflow", given, id=handle.id, task_queue=teams.task_queue)
    result = await again.result()
    assert result["recovered_failures"] == 1
    first, second = (await again.query("steps"))["steps"][0]["tool_calls"]
    assert (first["run"]["id"], first["result"]["text"]) == (f"{handle.id}/taken.again3", "found: What?")
    assert (second["result"]["error"]["kind"], second["attempts"], "run" in second) == ("tool_exception", 0, False)
    assert "was not started: a run of the id" in second["result"]["text"]
    (tmp_path / "go").touch()
    for squatter in squatters:
        await squatter.result()


async def test_a_reset_after_the_call_keeps_its_sub_agent_and_one_before_starts_another(
    teams: Lab, tmp_path: Path
) -> None:
    """The other one has another workflow id."""
    handle = await start_agent(teams, "chief", f"deep wait {tmp_path}/go")
    child = teams.client.get_workflow_handle(f"{handle.id}/call_1_1")
    await until_running(child, "wait_for_file")
    await reset(teams, handle, (await points_of(handle))[-1])
    (tmp_path / "go").touch()
    result = await teams.client.get_workflow_handle(handle.id).result()
    assert (result["status"], result["steps"]) == ("completed", 2)

    handle = await start_agent(teams, "chief", f"deep wait {tmp_path}/again")
    child = teams.client.get_workflow_handle(f"{handle.id}/call_1_1")
    await until_running(child, "wait_for_file")
    await reset(teams, handle, (await points_of(handle))[0])
    await until_running(teams.client.get_workflow_handle(f"{child.id}.again2"), "wait_for_file")
    (tmp_path / "again").touch()
    result = await teams.client.get_workflow_handle(handle.id).result()
    assert result["status"] == "completed"
    assert (await child.result())["status"] == "completed"


async def test_a_cost_limit_is_refused_when_the_price_of_a_sub_agents_model_is_unknown(teams: Lab) -> None:
    """Its cost could not be counted."""
    ran = await teams.look(await start_agent(teams, "costly", "Go", maxCost=1))
    assert isinstance(ran.error, InvalidRunInputError)
    assert "the price of openai-chat:nobody is not known" in ran.error.message


async def test_a_sub_agent_is_cancelled_when_its_caller_is_terminated(teams: Lab, tmp_path: Path) -> None:
    """By its parent close policy."""
    handle = await teams.start([Turn(calls=[ask(f"wait {tmp_path}/never", id="a")])], agent="lead")
    child = teams.client.get_workflow_handle(f"{handle.id}/a")
    await until_running(child, "wait_for_file")
    await handle.terminate()
    with pytest.raises(WorkflowFailureError) as failed:
        await child.result()
    assert isinstance(failed.value.cause, CancelledError)


async def test_runs_and_their_sub_agents_survive_the_kill_of_their_only_worker(
    lab: Lab, temporal: DevServer, tmp_path: Path
) -> None:
    """kill -9 while two sub-agents run; no span is exported twice."""
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    asked = [ask(f"again {tmp_path}/go", id="a"), ask(f"wait {tmp_path}/go", id="b")]
    handle = await at.start([Turn(calls=asked), DONE], agent="lead")
    telemetry = lab.otlp.environment("http/protobuf")
    async with worker_process("tests.support.sub_agent_teams", queue, temporal, **telemetry) as first:
        for child in ("a", "b"):
            await until_running(lab.client.get_workflow_handle(f"{handle.id}/{child}"), "wait_for_file")
        first.kill()
        await first.wait()
    (tmp_path / "go").touch()
    async with worker_process("tests.support.sub_agent_teams", queue, temporal, **telemetry) as second:
        ran = await at.look(handle)
        below = [await lab.client.get_workflow_handle(f"{handle.id}/{child}").query("steps") for child in ("a", "b")]
        second.terminate()
        assert await second.wait() == 0
    ran.spans = lab.otlp.spans(trace_id=ran.result["trace_id"])
    assert kinds(ran) == [None, None]
    again, lost = (child["steps"][0]["tool_calls"][0] for child in below)
    assert (again["attempts"], again["result"]["text"]) == (2, "it is there")
    assert lost["result"]["error"]["kind"] == "tool_lost"
    assert_one_trace(ran, 3)


async def test_a_resumed_run_reports_its_lost_sub_agent_and_starts_no_other(teams: Lab, tmp_path: Path) -> None:
    """The sub-agent was running when its caller was terminated, and is cancelled."""
    asked = [ask("What?", id="a"), ask(f"wait {tmp_path}/never", id="b")]
    handle = await teams.start([Turn(calls=asked), DONE], agent="lead")
    await until_running(teams.client.get_workflow_handle(f"{handle.id}/b"), "wait_for_file")
    while not (await handle.query("steps", args=[0, 9]))["steps"][0]["tool_calls"][0]["result"]:
        await asyncio.sleep(0.05)
    await handle.terminate()
    new = await teams.look(await resume_run(teams.client, handle.id))
    assert (new.result["status"], new.calls) == ("completed", [])
    [found, lost] = [
        m["content"] for m in teams.model.requests_of(handle.id)[-1].json["messages"] if m["role"] == "tool"
    ]
    assert found == "found: What?"
    assert "`researcher`" in lost
    assert "may or may not" in lost
    done = (await new.handle.fetch_history()).events
    assert not any(event.HasField("start_child_workflow_execution_initiated_event_attributes") for event in done)
    with pytest.raises(WorkflowFailureError) as ended:
        await teams.client.get_workflow_handle(f"{handle.id}/b").result()
    assert isinstance(ended.value.cause, CancelledError)


async def until_running(handle: Any, tool: str) -> None:
    while True:
        try:
            if any(name.startswith(tool) for name in (await handle.query("progress"))["running"]):
                return
        except RPCError:
            pass
        await asyncio.sleep(0.05)


async def has_signal(handle: Any) -> bool:
    history = await handle.fetch_history()
    return any(event.HasField("workflow_execution_signaled_event_attributes") for event in history.events)
