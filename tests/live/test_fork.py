"""Forks: a run that begins where another one was, and sends the model what that sent, without repeating a call."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan import (
    Agent,
    ForkError,
    InvalidRunInputError,
    ResumeError,
    Skills,
    connect,
    error_of,
    fork_run,
    resume_run,
    tool,
)
from mulligan.activities.recorded_tools import call_records
from mulligan.activities.recorded_tools.call_records import CallRecords
from mulligan.client.read_run import read_steps
from mulligan.client.start_run import read_input
from mulligan.devserver import DevServer
from mulligan.wire.recorded_tools import RecordSource
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.promise.test_people import REFUND, pending
from tests.support.compaction_agents import PROMPT, READ, reading
from tests.support.deferred_agents import BODIES, STARTED, clerk
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

ADA = '{"customer": "Ada"}'


@pytest.fixture(scope="module")
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server on which runs continue as new after a few steps."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"fork-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        yield at


async def fork(lab: Lab, ran: Ran, **how: Any) -> Ran:
    """Fork a run and wait for the end; `requests` are those of the fork alone."""
    before = len(lab.model.requests_of(ran.id))
    forked = await lab.look(await fork_run(lab.client, ran.id, **how))
    forked.requests = lab.model.requests_of(ran.id)[before:]
    return forked


async def test_a_fork_of_each_step_sends_its_request_and_repeats_no_call(lab: Lab) -> None:
    """Its numbers go on, its steps before are shared, and memo, span and steps name where it comes from."""
    turns = [call("search_orders", ADA), Turn(calls=[("now", "{}", None), ("sarch", "{", None)]), call("refuse"), DONE]
    ran = await lab.run(turns, max_steps=9)
    for step in range(1, 5):
        forked = await fork(lab, ran, at=step)
        assert forked.requests[0].body == ran.requests[step - 1].body
        assert (forked.result["status"], forked.result["steps"]) == ("completed", 4)
        assert [each.get("shared", False) for each in forked.steps] == [n < step for n in range(1, 5)]
        assert RAN[forked.id] == []
        origin = {"id": ran.id, "run_id": ran.handle.first_execution_run_id, "step": step}
        memo = await (await forked.handle.describe()).memo()
        assert memo["forked_from"].items() > origin.items()
    assert len(RAN[ran.id]) == 3


@pytest.fixture(scope="module")
async def long_run(chained: Lab) -> Ran:
    """A chain of runs that was compacted."""
    return await chained.run(reading(14), agent="page_reader", prompt=PROMPT)


async def test_a_fork_of_a_compacted_chain_sends_the_request_of_its_step(chained: Lab, long_run: Ran) -> None:
    """Whatever of the chain has the step: also one before the compactions, and one whose fork is forked again."""
    ran = long_run
    sent = [request for request in ran.requests if request.json.get("tools")]
    for step in (1, 2, 5, 8, 11, 14, 15):
        forked = await fork(chained, ran, at=step)
        assert forked.requests[0].body == sent[step - 1].body, step
        assert READ[forked.id] == []


async def test_an_edit_changes_only_what_it_names(lab: Lab) -> None:
    """Prompt, message, instructions, model and results stand in the request; the rest is the same text."""
    turns = [call("search_orders", ADA, "c1"), call("explode", "{}", "c2"), DONE]
    ran = await lab.run(turns, max_steps=9)
    other = f"other-{ran.id}"
    lab.model.script(other, [DONE, DONE, Turn(text="by the other")])
    sent = ran.requests[2].json
    edits = {
        "prompt": "Stop.",
        "message": "Be quick.",
        "instructions": "You rest.",
        "results": {"c1": [{"id": 1}], "c2": "ok"},
    }
    forked = await fork(lab, ran, at=3, edits=edits)
    system, prompt, first, orders, second, result, message = forked.requests[0].json["messages"]
    assert (system["content"], prompt["content"], message["content"]) == ("You rest.", "Stop.", "Be quick.")
    assert (orders["content"], result["content"]) == ('[{"id": 1}]', "ok")
    assert [first, second] == [sent["messages"][2], sent["messages"][4]]
    assert forked.requests[0].json["tools"] == sent["tools"]
    assert forked.calls[1]["result"] == {"text": "ok", "error": None}
    by_other = await lab.look(await fork_run(lab.client, ran.id, at=3, edits={"model": f"openai-chat:{other}"}))
    assert (by_other.result["output"], by_other.steps[-1]["model"]) == ("by the other", f"openai-chat:{other}")
    assert lab.model.requests_of(other)[0].json["messages"] == sent["messages"]
    assert RAN[forked.id] + RAN[by_other.id] == []


async def test_a_call_gets_the_result_of_the_equal_call_and_no_tool_runs(lab: Lab) -> None:
    """The n-th for the n-th; arguments are compared as JSON values after repairs. Spans and steps say that it is recorded."""
    ada = [call("search_orders", ADA), call("search_orders", '{"limit": 10, "customer": "Ada"}'), call("refuse")]
    ran = await lab.run([call("click", '{"element": "#a"}'), *ada, DONE], max_steps=9)
    mended = [call("click", '{"selector": "#a"}'), *ada, DONE]
    lab.model.script(ran.id, mended)
    forked = await fork(lab, ran, at=1)
    assert RAN[forked.id] == []
    assert [each["result"] for each in forked.calls] == [each["result"] for each in ran.calls]
    assert [each["recorded"] for each in forked.calls] == [True] * 4
    assert (forked.result["status"], forked.result["recovered_failures"]) == ("completed", 1)
    spans = forked.spans_of("ai.toolCall")
    assert [each.attributes["mulligan.recorded"] for each in spans] == [True] * 4
    assert [each.attributes["mulligan.recovered"] for each in spans if each.status == "ERROR"] == [True]
    [root] = forked.spans_of("invoke_agent shop")
    assert root.attributes["mulligan.forked_from.workflow_id"] == ran.id
    assert root.attributes["mulligan.forked_from.step"] == 1
    assert root.links == [(ran.spans[0].trace_id, ran.spans_of("invoke_agent shop")[0].span_id)]


async def test_the_nth_of_equal_calls_gets_the_nth_result(lab: Lab) -> None:
    """In the order of the calls of a step, whichever ends first; after the last record there is none."""
    at = replace(lab, task_queue=f"roll-{uuid.uuid4().hex[:6]}", workers=None)
    roller = Agent(name="roller", model="openai-chat:none", tools=[roll])
    async with running_worker(at.client, load_agents([roller], []), lab.telemetry, at.task_queue):
        twice = Turn(calls=[("roll", "{}", "c2"), ("roll", "{}", "c3")])
        ran = await at.run([call("roll", "{}", "c1"), twice, call("roll", "{}", "c4"), DONE], agent="roller")
        texts = [each["result"]["text"] for each in ran.calls]
        assert len(set(texts)) == 4
        for step, first in ((1, 0), (2, 1)):
            forked = await fork(at, ran, at=step)
            assert [each["result"]["text"] for each in forked.calls] == texts
            assert [each.get("recorded", False) for each in forked.calls] == [n >= first for n in range(4)]
        lab.model.script(ran.id, [call("roll", "{}", f"c{n}") for n in range(1, 6)])
        beyond = await fork(at, ran, at=1)
        assert (beyond.result["status"], beyond.result["steps"]) == ("diverged", 5)


ROLLS: list[int] = []


@tool
def roll() -> int:
    """Roll a die that never shows a number twice."""
    ROLLS.append(len(ROLLS))
    return ROLLS[-1]


async def test_an_unrecorded_call_ends_the_run_or_is_told_or_runs(lab: Lab) -> None:
    """The reason names the first such call of the step, with its arguments; calls beside it have their results."""
    ran = await lab.run([call("now"), call("search_orders", ADA), DONE], max_steps=9)
    others = Turn(calls=[("search_orders", ADA, None), ("now", "{}", None), ("click", '{"selector": "#b"}', None)])
    lab.model.script(ran.id, [call("now"), others, DONE])
    diverged = await fork(lab, ran, at=2)
    assert (diverged.result["status"], diverged.result["steps"]) == ("diverged", 2)
    reason = f"Step 2 would have called `now` with {{}}, of which the run {ran.id!r} has no record."
    assert (diverged.result["reason"], diverged.result["recovered_failures"]) == (reason, 0)
    assert [each.get("recorded", False) for each in diverged.steps[1]["tool_calls"]] == [True, False, False]
    assert diverged.requests[1:] == []
    told = await fork(lab, ran, at=2, unrecorded="error")
    assert (told.result["status"], told.result["recovered_failures"]) == ("completed", 2)
    assert "made no such call" in told.steps[1]["tool_calls"][1]["result"]["text"]
    assert RAN[diverged.id] + RAN[told.id] == []
    live = await fork(lab, ran, at=2, unrecorded="live")
    assert sorted(RAN[live.id]) == [("click", {"selector": "#b"}), ("now", {})]
    all_live = await fork(lab, ran, at=2, tools="live")
    assert sorted(name for name, _ in RAN[all_live.id]) == ["click", "now", "search_orders"]


async def test_nobody_is_asked_again(lab: Lab) -> None:
    """Approvals, with edited arguments, denials and answers are those of the run; the next request is the same."""
    refused = call("refund", '{"order": 9, "amount": {"euros": 1}}')
    handle = await lab.start(
        [call("refund", REFUND), refused, call("ask_person", '{"question": "Red?"}'), DONE], agent="desk"
    )
    edited = {"decision": "approve", "by": "Ada", "arguments": {"order": 7, "amount": {"euros": 5}}}
    for decision in (edited, {"decision": "deny", "reason": "No."}):
        [waiting] = await pending(handle)
        await handle.execute_update("decide", {"call_id": waiting["call_id"], **decision})
    [waiting] = await pending(handle)
    await handle.execute_update("answer", {"call_id": waiting["call_id"], "text": "Blue."})
    ran = await lab.look(handle)
    forked = await fork(lab, ran, at=1)
    assert RAN[forked.id] == []
    assert [request.body for request in forked.requests] == [request.body for request in ran.requests]
    assert [each["decision"] for each in forked.calls] == [each["decision"] for each in ran.calls]
    assert [each["result"] for each in forked.calls] == [each["result"] for each in ran.calls]


async def test_deferred_calls_have_their_completion_and_waits_pass_at_once(lab: Lab) -> None:
    """Nothing is started again: neither the body of a deferred tool nor a timer."""
    at = replace(lab, task_queue=f"jobs-{uuid.uuid4().hex[:6]}", workers=None)
    async with running_worker(at.client, load_agents([clerk], []), lab.telemetry, at.task_queue):
        turns = [call("order_report", '{"name": "sales"}', "c1"), call("wait_until", '{"seconds": 1}'), DONE]
        handle = await at.start(turns, agent="job_clerk")
        while "c1" not in STARTED[handle.id]:
            await asyncio.sleep(0.02)
        await handle.execute_update("complete", {"call_id": "c1", "result": {"rows": 7}})
        ran = await at.look(handle)
        forked = await fork(at, ran, at=1)
    assert [request.body for request in forked.requests] == [request.body for request in ran.requests]
    assert BODIES[forked.id] == []
    timers = [
        event
        async for event in forked.handle.fetch_history_events()
        if event.HasField("timer_started_event_attributes")
    ]
    assert timers == []


async def test_an_open_run_is_forked_before_what_it_waits_for(lab: Lab) -> None:
    """A step with calls without results is not taken over; the run itself goes on as before."""
    handle = await lab.start([call("ask_person", '{"question": "Red?"}'), call("refund", REFUND), DONE], agent="desk")
    [waiting] = await pending(handle)
    with pytest.raises(ForkError, match=r"step 1 has calls without a result, `ask_person` \(.*\), .* Fork at step 1"):
        await fork_run(lab.client, handle.id, at=2)
    await handle.execute_update("answer", {"call_id": waiting["call_id"], "text": "Blue."})
    [waiting] = await pending(handle)
    forked = await fork_run(lab.client, handle.id)
    assert (await (await forked.describe()).memo())["forked_from"]["step"] == 2
    assert (await forked.result())["status"] == "diverged"
    assert (await forked.query("progress"))["step"] == 2
    await handle.execute_update("decide", {"call_id": waiting["call_id"], "decision": "deny"})
    assert (await lab.look(handle)).result["status"] == "completed"


async def test_sub_agents_results_are_shared_and_their_runs_are_forked(lab: Lab) -> None:
    """The run of a sub-agent is a run like any other."""
    sub = f"desk-{uuid.uuid4().hex[:6]}"
    at = replace(lab, task_queue=f"front-{sub}", workers=None)
    below = Agent(name="below", model=f"openai-chat:{sub}", tools=[hum])
    above = Agent(name="above", model="openai-chat:none", tools=[below.as_tool(description="Hums.")])
    lab.model.script(sub, [call("hum"), Turn(text="hummed")])
    async with running_worker(at.client, load_agents([above], []), lab.telemetry, at.task_queue):
        ran = await at.run([call("below", '{"prompt": "Hum."}'), DONE], agent="above")
        forked = await fork(at, ran, at=1)
        assert [request.body for request in forked.requests] == [request.body for request in ran.requests]
        child = ran.calls[0]["run"]["id"]
        asked = lab.model.requests_of(sub)
        again = await fork_run(at.client, child, at=2)
        assert (await again.result())["output"] == "hummed"
        assert lab.model.requests_of(sub)[2].body == asked[1].body


@tool
def hum() -> str:
    """Hum."""
    return "mmm"


async def test_a_conversation_of_a_users_workflow_is_forked_by_its_number_or_name(lab: Lab) -> None:
    """Of each agent in it, also at a step of an earlier turn."""
    models = [f"turns-{uuid.uuid4().hex[:6]}" for _ in range(2)]
    lab.model.script(models[0], [call("now"), DONE, call("search_orders", ADA), DONE])
    lab.model.script(models[1], [call("now"), DONE])
    started = await lab.client.start_workflow(
        "TwoTurns", [f"openai-chat:{model}" for model in models], id=models[0], task_queue="agents"
    )
    await started.result()
    for model, conversation, steps in (
        (models[0], "0", (1, 4)),
        (models[0], "shop", (2, 3)),
        (models[1], "asked", (1, 2)),
    ):
        sent = lab.model.requests_of(model)
        for step in steps:
            before = len(lab.model.requests_of(model))
            forked = await fork_run(lab.client, started.id, at=step, conversation=conversation)
            assert (await forked.result())["status"] == "completed"
            assert lab.model.requests_of(model)[before].body == sent[step - 1].body
            assert RAN[forked.id] == []
    with pytest.raises(ForkError, match=r"There is no conversation 'nobody'. The conversations are: 0 \(shop\)"):
        await fork_run(lab.client, started.id, conversation="nobody")


async def test_a_fork_works_by_the_pinned_definition_and_a_rerun_by_todays(lab: Lab) -> None:
    """The worker's code has changed since."""

    def agents(instructions: str) -> Any:
        return load_agents([Agent(name="waiter", model="openai-chat:x", instructions=instructions, tools=[hum])], [])

    at = replace(lab, task_queue=f"waiter-{uuid.uuid4().hex[:6]}", workers=None)
    async with running_worker(at.client, agents("You serve tea."), lab.telemetry, at.task_queue):
        ran = await at.run([call("hum"), DONE], agent="waiter")
    async with running_worker(at.client, agents("You serve coffee."), lab.telemetry, at.task_queue):
        forked = await fork(at, ran, at=1)
        assert [request.body for request in forked.requests] == [request.body for request in ran.requests]
        again = await fork(at, ran, at=1, pinned=False)
        assert again.id.startswith(f"{ran.id}-rerun-")
        assert again.requests[0].json["messages"][0]["content"] == "You serve coffee."
        assert again.requests[0].json["messages"][1:] == ran.requests[0].json["messages"][1:]
        assert again.calls[0]["recorded"] is True


async def test_another_model_changes_nothing_that_does_not_depend_on_it(lab: Lab, tmp_path: Path) -> None:
    """A skill that has changed since the run is not read under the run's instructions, whatever the model."""
    file = tmp_path / "skills" / "refunds" / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text("---\nname: refunds\ndescription: Refund.\n---\nOld.\n")
    at = replace(lab, task_queue=f"skills-{uuid.uuid4().hex[:6]}", workers=None)
    reader = Agent(name="sk", model="openai-chat:none", tools=[hum], features=[Skills(tmp_path / "skills")])
    read, other = call("read_skill", '{"name": "refunds"}'), f"other-{uuid.uuid4().hex[:6]}"
    lab.model.script(other, [read, DONE])
    async with running_worker(at.client, load_agents([reader], []), lab.telemetry, at.task_queue):
        ran = await at.run([read, DONE], agent="sk")
        file.write_text("---\nname: refunds\ndescription: Refund.\n---\nNew.\n")
        for edits in (None, {"model": f"openai-chat:{other}"}):
            forked = await fork_run(at.client, ran.id, at=1, tools="live", edits=edits)
            [called] = (await at.look(forked)).calls
            assert "was changed after this run had begun" in called["result"]["text"], edits


async def test_a_resumed_run_and_a_fork_are_forked(lab: Lab) -> None:
    """A fork of a fork shares the steps of both."""
    ran = await lab.run([call("search_orders", ADA), call("now"), call("refuse"), DONE], max_steps=2)
    first = await fork(lab, ran, at=2, max_steps=9)
    assert first.result["status"] == "diverged"
    live = await fork(lab, ran, at=2, max_steps=9, tools="live")
    again = await lab.look(await fork_run(lab.client, live.id, at=4))
    assert [each.get("shared", False) for each in again.steps] == [True, True, True, False]
    assert lab.model.requests_of(ran.id)[-1].body == live.requests[2].body
    earlier = await lab.look(await fork_run(lab.client, live.id, at=1))
    assert (earlier.result["status"], RAN[earlier.id]) == ("completed", [])
    resumed = await lab.look(await resume_run(lab.client, ran.id, max_steps=5))
    for step in (1, 2):
        forked = await lab.look(await fork_run(lab.client, resumed.id, at=step))
        assert forked.result["steps"] == 2
        assert RAN[forked.id] == []
        memo = await (await forked.handle.describe()).memo()
        assert "resumed_from" not in memo


async def test_once_counts_the_calls_before_the_step(lab: Lab) -> None:
    """With live tools, a call that the run made before the step is not made again; those after it are not known."""
    pay = call("pay", '{"euros": 5}')
    ran = await lab.run([pay, DONE], agent="till")
    lab.model.script(ran.id, [pay, pay, DONE])
    forked = await fork(lab, ran, at=2, tools="live")
    assert forked.calls[1]["result"]["error"]["kind"] == "duplicate_call"
    first = await fork(lab, ran, at=1, tools="live")
    assert (RAN[forked.id], RAN[first.id]) == ([], [("pay", {"euros": 5})])


async def test_a_fork_that_cannot_be_is_refused_with_a_sentence(lab: Lab) -> None:
    """Nothing is started."""
    ran = await lab.run([call("search_orders", ADA, "c1"), DONE])
    new_id = f"none-{ran.id}"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"at": 9}, f"The run {ran.id!r} cannot be forked: There is no step 9: it has 2 steps."),
        ({"at": 3}, "There is no step 3: step 2 is the last one, with the model's final answer"),
        ({"at": 0}, "'at' cannot be used: Input should be greater than or equal to 1"),
        ({"edits": {"results": {"c9": 1}}}, "There is no call 'c9' with a result before the step. The newest are: c1."),
        (
            {"edits": {"results": {"c1": [{"id": "x"}]}}},
            "'c1' is not of the result type of `search_orders`: `[0].id` should",
        ),
        ({"edits": {"promt": "x"}}, "'edits.promt' is not an option of a fork; the options are: prompt, message"),
        ({"edits": {"prompt": 7}}, "'edits.prompt"),
        ({"tools": "dead"}, "'tools' cannot be used"),
        ({"edits": {"message": ""}}, "'edits.message' is empty; give a text or parts, or leave it out."),
        ({"edits": {"prompt": ""}}, "'edits.prompt' is empty"),
        ({"edits": {"model": "nonsense"}}, "'edits.model' cannot be used: the model is 'nonsense'; it must be one of"),
        ({"edits": {"model": "nobody:x"}}, "'edits.model' cannot be used: the model is 'nobody:x'; it must be one of"),
        ({"max_steps": 1}, '"max_steps" is 1, and counts the 1 steps before step 2 too'),
    ]
    for how, sentence in cases:
        with pytest.raises((ForkError, InvalidRunInputError)) as refused:
            await fork_run(lab.client, ran.id, new_id=new_id, **how)
        assert sentence in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(ResumeError, match="There is no run 'nobody'"):
        await fork_run(lab.client, "nobody")
    with pytest.raises(Exception, match="not found"):
        await lab.client.get_workflow_handle(new_id).describe()


async def test_the_same_fork_with_an_id_is_one_run(lab: Lab) -> None:
    """Another one is refused."""
    ran = await lab.run([call("now"), DONE])
    new_id = f"{ran.id}-mine"
    first, second = [await fork_run(lab.client, ran.id, at=2, new_id=new_id) for _ in range(2)]
    assert (first.id, second.id) == (new_id, new_id)
    with pytest.raises(WorkflowAlreadyStartedError):
        await fork_run(lab.client, ran.id, at=1, new_id=new_id)
    with pytest.raises(WorkflowAlreadyStartedError):
        await fork_run(lab.client, ran.id, at=2, new_id=ran.id)


async def test_the_same_fork_is_found_without_a_worker_and_after_the_run_has_continued_as_new(
    chained: Lab, long_run: Ran
) -> None:
    """A request that is sent again has the same answer, whatever has happened since."""
    ran = long_run
    new_id = f"{ran.id}-mine"
    newest = (await ran.handle.describe()).run_id
    assert newest != ran.handle.first_execution_run_id
    at = replace(chained, task_queue=f"alone-{new_id}", workers=None)
    async with running_worker(at.client, load(["tests.support.compaction_agents"]), at.telemetry, at.task_queue):
        alone = await at.run([DONE], agent="page_reader")
        own = await fork_run(at.client, alone.id, at=1, new_id=f"{new_id}-alone")
        await own.result()
    again = await fork_run(at.client, alone.id, at=1, new_id=f"{new_id}-alone")
    assert again.first_execution_run_id == own.first_execution_run_id
    runs = [None, newest, ran.handle.first_execution_run_id]
    forks = [await fork_run(chained.client, ran.id, at=15, new_id=new_id, run_id=each) for each in runs]
    assert {each.first_execution_run_id for each in forks} == {forks[0].first_execution_run_id}


async def test_an_ended_run_is_read_once_and_runs_are_read_side_by_side(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call without a record is looked for again only while the run may make it."""
    gate = asyncio.Event()
    ended = await lab.run([call("now"), DONE])
    opened = await lab.start([call("now"), Turn(text="done", wait=gate)])
    while not (await opened.query("steps", args=[0, 10]))["steps"]:
        await asyncio.sleep(0.1)
    records, reads, held = CallRecords(), Counter[str](), asyncio.Event()

    async def counted(client: Client, handle: Any, since: int, **how: Any) -> Any:
        reads[handle.id] += 1
        if how["conversation"] == "held":
            await held.wait()
        return await read_steps(client, handle, since, conversation="0")

    monkeypatch.setattr(call_records, "read_steps", counted)
    for run, expected in ((ended, 1), (opened, 2)):
        run_id = (await lab.client.get_workflow_handle(run.id).describe()).run_id
        source = RecordSource(workflow_id=run.id, run_id=run_id or "", conversation="0", step=1)
        slow = asyncio.create_task(
            records.find(lab.client, source.model_copy(update={"conversation": "held"}), "none", 0)
        )
        while not reads[run.id]:
            await asyncio.sleep(0.01)
        for _ in range(2):
            assert await records.find(lab.client, source, "none", 0) is None
        assert reads[run.id] == 1 + expected
        slow.cancel()
    gate.set()
    await opened.result()


async def test_a_fork_whose_records_are_deleted_fails_with_a_sentence(lab: Lab) -> None:
    """The run was deleted after the fork had begun."""
    ran = await lab.run([call("now"), DONE])
    gate = asyncio.Event()
    lab.model.script(ran.id, [Turn(calls=[("now", "{}", None)], wait=gate), DONE])
    forked = await fork_run(lab.client, ran.id, at=1)
    await delete(lab.client, ran)
    gate.set()
    failed = await lab.look(forked)
    assert isinstance(failed.error, InvalidRunInputError)
    assert f"those of {ran.id!r}" in failed.error.message


async def delete(client: Client, ran: Ran) -> None:
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

    run = WorkflowExecution(workflow_id=ran.id, run_id=ran.handle.first_execution_run_id or "")
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    )
    while True:
        try:
            await ran.handle.describe()
        except Exception:
            return
        await asyncio.sleep(0.05)


async def test_a_state_that_no_run_has_written_fails_the_run_with_a_sentence(lab: Lab) -> None:
    """A program may start a run as it likes: also what features are to know is checked."""
    ran = await lab.run([call("now"), DONE])
    whole = await fork_run(lab.client, ran.id, at=2)
    given = await read_input(lab.client, whole.id)
    assert given is not None
    assert given.carried.state is not None
    await whole.result()
    wrong: list[dict[str, Any]] = [{"clearing": 7}, {"clearing": [["a"]]}, {"tool_search": {"a": 1}}, {"once": 7}]
    for features in wrong:
        run_input = given.with_fields(state={**given.carried.state, "features": features})
        run_id = f"wrong-{uuid.uuid4().hex[:8]}"
        handle = await lab.client.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=lab.task_queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        error = error_of(failed.value)
        assert isinstance(error, InvalidRunInputError)
        assert '"carried.state" cannot be used: ' in error.message
