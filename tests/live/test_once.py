"""`@tool(once=…)`: a call that equals one that has succeeded is not executed, through whatever happens to the run."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import connect, fork_run, resume_run
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_continue_while_waiting import replay_chain, runs_of, write
from tests.promise.test_people import pending
from tests.support.compaction_agents import is_summing_up
from tests.support.lab import DONE, Lab, call
from tests.support.once_agents import RELEASED, executions
from tests.support.once_runs import books, decide, kinds, started
from tests.support.openai_turn import Turn, Usage
from tests.support.worker_process import worker_process

MODULE = "tests.support.once_agents"
PAY = '{"amount": 5}'


@pytest.fixture(scope="module")
async def bank(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"bank-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load([MODULE]), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


async def history_types(handle: Any) -> list[str]:
    names = []
    async for event in handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        names.append(scheduled.activity_type.name if scheduled.activity_type.name else str(event.event_type))
    return names


async def test_equal_calls_of_a_step_and_of_later_steps_are_executed_once(bank: Lab, ledger: Path) -> None:
    """Equal are name and valid arguments, as JSON values. The model reads the result; each excluded call has one span."""
    same = ['{"amount": 5}', '{"to": "shop", "amount": 5.0}', '{"amount": "5"}']
    step = Turn(calls=[("pay", each, f"a{n}") for n, each in enumerate(same)] + [("pay", '{"amount": 6}', "b")])
    ran = await bank.run(
        [step, call("pay", "{'amount': 5,}", "c"), call("note", '{"text": "x"}'), DONE], **books(ledger)
    )
    assert [each["arguments"]["amount"] for each in executions(ledger) if each["tool"] == "pay"] == [5.0, 6.0]
    assert kinds(ran) == [None, "duplicate_call", "duplicate_call", None, "duplicate_call", None]
    assert [each["attempts"] for each in ran.calls] == [1, 0, 0, 1, 0, 1]
    first = ran.calls[0]["result"]["text"]
    for each in (ran.calls[1], ran.calls[2], ran.calls[4]):
        assert each["result"]["text"] == (
            "You made this call of `pay` before, with the same arguments, and it succeeded. It was not run again.\n"
            f"Its result was:\n{first}"
        )
    assert (ran.result["recovered_failures"], ran.result["tool_calls"]) == (3, 6)
    failed = [span for span in ran.spans_of("ai.toolCall") if span.status == "ERROR"]
    assert sorted(span.attributes["gen_ai.tool.call.id"] for span in failed) == ["a1", "a2", "c"]
    assert {(s.attributes["error.type"], s.attributes["mulligan.recovered"]) for s in failed} == {
        ("duplicate_call", True)
    }
    assert len(ran.spans_of("ai.toolCall")) == 6
    # The result of an excluded call is in the worker's memory: no model call had to query the run for it.
    assert [each.refusal for each in ran.requests] == [None] * 4


async def test_calls_that_are_not_excluded_add_nothing_to_the_history(bank: Lab, ledger: Path) -> None:
    turns = [Turn(calls=[("pay", PAY, "a"), ("pay", '{"amount": 6}', "b")]), DONE]
    ran = await bank.run(turns, **books(ledger))
    names = await history_types(ran.handle)
    assert [name for name in names if not name.isdigit()] == [
        "open_run",
        "call_model",
        "call_tool",
        "call_tool",
        "call_model",
    ]
    inputs = [
        event.activity_task_scheduled_event_attributes.input.payloads[0].data
        async for event in ran.handle.fetch_history_events()
        if event.activity_task_scheduled_event_attributes.activity_type.name == "call_tool"
    ]
    assert all("first_key" not in json.loads(each) for each in inputs)


@pytest.mark.parametrize("lost", ["pay_quickly", "pay"])
async def test_the_repeat_of_a_call_that_may_have_done_its_work_has_its_key(
    lab: Lab, temporal: DevServer, ledger: Path, lost: str
) -> None:
    """After a timeout, and after kill -9 of the worker: also where the repeat fails and is repeated."""
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    outcomes = ("hang" if lost == "pay_quickly" else "kill", "error", "ok")
    turns = [Turn(calls=[(lost, PAY, "a"), (lost, PAY, "b")]), call(lost, PAY, "c"), call(lost, PAY, "d"), DONE]
    handle = await at.start(turns, **books(ledger, *outcomes))
    if lost == "pay":
        async with worker_process(MODULE, queue, temporal) as first:
            assert await first.wait() == -9
    async with worker_process(MODULE, queue, temporal):
        ran = await at.look(handle)
    kind = "tool_timeout" if lost == "pay_quickly" else "tool_lost"
    assert kinds(ran) == [kind, "tool_error", None, "duplicate_call"]
    done = executions(ledger)
    assert [each["outcome"] for each in done] == list(outcomes)
    assert len({each["key"] for each in done}) == 1


async def test_a_worker_killed_between_a_call_and_its_repeat_changes_nothing(
    lab: Lab, temporal: DevServer, ledger: Path
) -> None:
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    killing = call("note", '{"text": "die"}', "k")
    handle = await at.start([call("pay", PAY, "a"), killing, call("pay", PAY, "b"), DONE], **books(ledger, "ok"))
    async with worker_process(MODULE, queue, temporal) as first:
        await started(ledger, 2)
        first.kill()
        await first.wait()
    async with worker_process(MODULE, queue, temporal):
        ran = await at.look(handle)
    assert kinds(ran)[2] == "duplicate_call"
    assert sum(each["tool"] == "pay" for each in executions(ledger)) == 1


async def test_it_holds_for_sets_and_decimals_in_a_worker_with_another_hash_seed_and_so_do_forks(
    lab: Lab, temporal: DevServer, ledger: Path
) -> None:
    queue = f"hashed-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    items = [f"item {number}" for number in range(9)]
    ways = [{"items": items}, {"items": items[::-1], "weight": "1.0"}, {"weight": 1, "items": [*items, items[0]]}]
    first, second, third = [call("pack", json.dumps(way), f"p{number}") for number, way in enumerate(ways)]
    handle = await at.start(
        [first, call("refund", '{"order": 1}', "r"), second, DONE], **{**books(ledger), "agent": "packer"}
    )
    async with worker_process(MODULE, queue, temporal, PYTHONHASHSEED="1") as process:
        await pending(handle)
        process.kill()
        await process.wait()
    async with worker_process(MODULE, queue, temporal, PYTHONHASHSEED="2"):
        await decide(handle, "r", "deny")
        ran = await at.look(handle)
    assert kinds(ran)[2] == "duplicate_call"
    assert [each["arguments"]["items"] for each in ran.calls if each["name"] == "pack"] == [sorted(items)] * 2
    async with worker_process(MODULE, queue, temporal, PYTHONHASHSEED="3"):
        lab.model.script(ran.id, [third, DONE])
        forked = await at.look(await fork_run(lab.client, ran.id, at=1))
    assert [each["recorded"] for each in forked.calls] == [True]
    assert sum(each["tool"] == "pack" for each in executions(ledger)) == 1


async def test_a_person_is_asked_once_for_equal_calls_that_are_approved(bank: Lab, ledger: Path) -> None:
    twice = Turn(
        calls=[("refund", '{"order": 7}', "a"), ("refund", '{"order": 7}', "b"), ("refund", '{"order": 8}', "c")]
    )
    handle = await bank.start([twice, call("refund", '{"order": 7}', "d"), DONE], **books(ledger))
    assert [each["call_id"] for each in await pending(handle, 2)] == ["a", "c"]
    await decide(handle, "a", "approve")
    await started(ledger)
    await decide(handle, "c", "approve")
    ran = await bank.look(handle)
    assert kinds(ran) == [None, "duplicate_call", None, "duplicate_call"]
    assert ["decision" in each for each in ran.calls] == [True, False, True, False]
    assert [each["arguments"]["order"] for each in executions(ledger)] == [7, 8]
    for name in ("agent.request", "agent.decision"):
        assert sorted(span.attributes["gen_ai.tool.call.id"] for span in ran.spans_of(name)) == ["a", "c"]
    events = (await handle.query("events", args=[0, 1000]))["events"]
    assert sum(event["type"] == "waiting" for event in events) == 2


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_a_call_that_waits_for_an_equal_one_ends_with_the_run(bank: Lab, ledger: Path, end: str) -> None:
    twice = Turn(calls=[("pay", PAY, "a"), ("pay", PAY, "b")])
    handle = await bank.start([twice, DONE], **books(ledger, "wait_error", "ok"))
    await started(ledger)
    if end == "stop":
        await handle.execute_update("stop", {"reason": "enough"})
        while (await handle.query("steps"))["steps"][0]["tool_calls"][1]["result"] is None:
            await asyncio.sleep(0.02)
        RELEASED.add(handle.id)
        ran = await bank.look(handle)
        assert (ran.result["status"], kinds(ran)) == ("stopped", ["tool_error", "denied"])
        assert "the run was stopped first" in ran.calls[1]["result"]["text"]
        assert ran.result["recovered_failures"] == 1
    else:
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        RELEASED.add(handle.id)
    assert [each["outcome"] for each in executions(ledger)] == ["wait_error"]


async def test_a_run_stopped_while_an_equal_call_waits_for_approval_runs_neither(bank: Lab, ledger: Path) -> None:
    twice = Turn(calls=[("refund", '{"order": 7}', "a"), ("refund", '{"order": 7}', "b")])
    handle = await bank.start([twice, DONE], **books(ledger))
    await pending(handle)
    await handle.execute_update("stop", {"reason": "enough"})
    ran = await bank.look(handle)
    assert (ran.result["status"], kinds(ran), ran.result["recovered_failures"]) == ("stopped", ["denied", "denied"], 0)
    assert executions(ledger) == []


async def test_waiting_calls_do_not_take_the_place_of_others(
    bank: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one call may be scheduled at once: the calls after two equal ones begin nevertheless."""
    monkeypatch.setattr(limits, "COMMANDS_BYTES", 1)
    calls = [("pay", PAY, f"p{n}") for n in range(3)] + [("note", f'{{"text": "{n}"}}', f"n{n}") for n in range(3)]
    handle = await bank.start([Turn(calls=[("build", '{"name": "x"}', "a"), ("build", '{"name": "x"}', "b"), *calls]), DONE],
                              **books(ledger))  # fmt: skip
    await started(ledger, 5)
    await handle.execute_update("complete", {"call_id": "a", "result": "built"})
    ran = await bank.look(handle)
    assert kinds(ran) == [None, "duplicate_call", None, "duplicate_call", "duplicate_call", None, None, None]


async def test_equal_deferred_calls_start_one_job(bank: Lab, ledger: Path) -> None:
    twice = Turn(calls=[("build", '{"name": "x"}', "a"), ("build", '{"name": "x"}', "b")])
    handle = await bank.start([twice, call("build", '{"name": "x"}', "c"), DONE], **books(ledger))
    while (await handle.query("progress"))["waiting_for"] is None or not executions(ledger):
        await asyncio.sleep(0.02)
    await handle.execute_update("complete", {"call_id": "a", "result": {"rows": 7}})
    ran = await bank.look(handle)
    assert kinds(ran) == [None, "duplicate_call", "duplicate_call"]
    assert ran.calls[2]["result"]["text"].endswith('Its result was:\n{"rows": 7}')
    assert len(executions(ledger)) == 1


async def test_equal_calls_of_a_sub_agent_start_one_run(bank: Lab, ledger: Path) -> None:
    twice = Turn(calls=[("helper", '{"prompt": "Help!"}', "a"), ("helper", '{"prompt": "Help!"}', "b")])
    ran = await bank.run([twice, DONE], **books(ledger))
    assert (kinds(ran), ran.result["sub_runs"]) == ([None, "duplicate_call"], 1)


async def test_it_holds_in_a_chain_that_continues_as_new_and_after_a_compaction(
    bank: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning of the result is carried where the conversation no longer has it."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    notes = [call("note", json.dumps({"text": f"{n} " + "word " * 300})) for n in range(14)]
    turns = iter([call("pay", PAY, "first"), *notes, call("pay", PAY, "again"), DONE])

    def answer(body: Any, nth: int) -> Turn:
        usage = Usage(input_tokens=len(json.dumps(body["messages"])) // 4, output_tokens=10)
        if is_summing_up(body):
            return Turn(text="Notes were written.", usage=usage)
        return replace(next(turns), usage=usage)

    ran = await bank.run(answer, **(books(ledger) | {"agent": "compacting"}))
    assert (await size_of_chain(bank.client, ran.id)).runs > 1
    assert not any(message.get("tool_call_id") == "first" for message in ran.requests[-1].json["messages"])
    messages = await ran.handle.query("messages", args=[0, 1000])
    again = [each for each in ran.requests[-1].json["messages"] if each["role"] == "tool"][-1]["content"]
    assert "it succeeded. It was not run again.\nIts result was:\npay " in again
    assert messages["total"] == 2 * 16 + 2
    assert sum(each["tool"] == "pay" for each in executions(ledger)) == 1


async def test_continue_as_new_while_equal_calls_wait_for_a_person(
    bank: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the step waits, for a person or for another call; afterwards nobody is asked twice."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    step = Turn(
        calls=[("pay", PAY, "p"), ("pay", PAY, "q"), *[("refund", '{"order": 7}', each) for each in "abc"],
               ("ship", '{"order": 1}', "s"), ("ship", '{"order": 1}', "t"), ("ship", '{"order": 2}', "u")]
    )  # fmt: skip
    handle = await bank.start([step, call("pay", PAY, "r"), DONE], **books(ledger))
    assert [each["call_id"] for each in await pending(handle, 3)] == ["a", "s", "u"]
    await decide(handle, "s", "approve", arguments={"order": 2})
    await started(ledger, 2)
    await write(handle, [f"message {n}" for n in range(40)])
    assert await runs_of(bank, handle) > 1
    assert [each["call_id"] for each in await pending(handle, 2)] == ["a", "u"]
    await decide(handle, "a", "approve")
    # It equals the call whose arguments were edited, which has started and waits for its result.
    await decide(handle, "u", "approve")
    await handle.execute_update("complete", {"call_id": "s", "result": "shipped"})
    ran = await bank.look(handle)
    twice = "duplicate_call"
    assert kinds(ran) == [None, twice, None, twice, twice, None, twice, twice, twice]
    assert [(each["tool"], each["arguments"].get("order")) for each in executions(ledger)] == [
        ("pay", None),
        ("ship", 2),
        ("refund", 7),
    ]
    await replay_chain(bank, handle)


async def test_an_approved_call_runs_if_the_equal_one_that_it_waited_for_is_denied(
    bank: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the run continues as new between the approval and the denial."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    step = Turn(calls=[("refund", '{"order": 7}', "a"), ("refund", '{"order": 8}', "b")])
    handle = await bank.start([step, DONE], **books(ledger))
    await pending(handle, 2)
    await decide(handle, "b", "approve", arguments={"order": 7})
    await write(handle, [f"message {n}" for n in range(40)])
    assert await runs_of(bank, handle) > 1
    await decide(handle, "a", "deny")
    ran = await bank.look(handle)
    assert kinds(ran) == ["denied", None]
    assert [each["arguments"]["order"] for each in executions(ledger)] == [7]
    await replay_chain(bank, handle)


async def test_a_denial_holds_for_the_equal_calls_of_its_step(
    bank: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the run continues as new after it, and an approved call that was edited to be equal has failed."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    step = Turn(calls=[("ship", f'{{"order": {order}}}', each) for order, each in ((7, "a"), (8, "b"), (7, "c"))])
    handle = await bank.start([step, DONE], **books(ledger))
    await pending(handle, 2)
    await decide(handle, "b", "approve", arguments={"order": 7})
    await decide(handle, "a", "deny")
    await started(ledger)
    await write(handle, [f"message {n}" for n in range(40)])
    assert await runs_of(bank, handle) > 1
    await handle.execute_update("complete", {"call_id": "b", "error": "out of stock"})
    ran = await bank.look(handle)
    assert kinds(ran) == ["denied", "tool_error", "duplicate_call"]
    await replay_chain(bank, handle)


async def test_a_run_that_resumes_one_that_did_not_complete_knows_its_calls(bank: Lab, ledger: Path) -> None:
    """A new message to a completed run begins with no calls; `once="conversation"` knows them still."""
    pays = [call("pay", PAY, "a"), call("greet", '{"name": "Ada"}', "g")]
    ran = await bank.run(pays, max_steps=2, **books(ledger))
    assert ran.result["status"] == "max_steps"
    later = [call("pay", PAY, "b"), DONE, call("pay", PAY, "c"), call("greet", '{"name": "Ada"}', "h"), DONE]
    bank.model.script(ran.id, [*pays, *later])
    resumed = await bank.look(await resume_run(bank.client, ran.id, max_steps=9))
    assert kinds(resumed) == ["duplicate_call"]
    assert "receipt 1" in resumed.calls[0]["result"]["text"]
    memo = await (await resumed.handle.describe()).memo()
    assert set(memo["resumed_from"]) == {"id", "run_id", "request"}
    again = await bank.look(await resume_run(bank.client, resumed.id, "Once more."))
    assert kinds(again) == [None, "duplicate_call"]
    assert [each["tool"] for each in executions(ledger)] == ["pay", "greet", "pay"]


@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_the_repeat_of_an_interrupted_call_in_a_resumed_run_has_its_key(
    bank: Lab, ledger: Path, end: str
) -> None:
    """Also where the run that resumes it ends as well, before a worker began it."""
    twice = Turn(calls=[("pay", PAY, "a"), ("pay", PAY, "b"), ("pay", '{"amount": 6}', "c")])
    handle = await bank.start([twice, DONE], **books(ledger, "wait", "ok"))
    await started(ledger, 2)
    await (handle.terminate() if end == "terminate" else handle.cancel())
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    RELEASED.add(handle.id)
    unserved = await resume_run(bank.client, handle.id, task_queue="nobody")
    await unserved.terminate()
    bank.model.script(handle.id, [twice, Turn(calls=[("pay", PAY, "d"), ("pay", PAY, "e")]), DONE])
    new = await bank.look(await resume_run(bank.client, unserved.id, task_queue=bank.task_queue))
    assert kinds(new)[-2:] == [None, "duplicate_call"]
    first, other, repeat = executions(ledger)
    assert first["arguments"] != other["arguments"]
    assert {each["key"]: each["arguments"] for each in (first, other)}[repeat["key"]] == repeat["arguments"]


async def test_turns_of_a_durable_agent(bank: Lab, ledger: Path) -> None:
    """A turn after a completed one begins with no calls, a turn after another one knows them."""
    run_id = f"turns-{uuid.uuid4().hex[:8]}"
    # This workflow sends no metadata, so the tools raise: `helper` has an effect that can be counted without them.
    ask = [call("helper", '{"prompt": "Help!"}', each) for each in "abcd"]
    bank.model.script(run_id, [ask[0], ask[1], DONE, ask[2], DONE])
    handle = await bank.client.start_workflow(
        "SeveralTurns",
        args=[f"openai-chat:{run_id}", ["1", "2", "3"], [1, None, None]],
        id=run_id,
        task_queue=bank.task_queue,
    )
    assert await handle.result() == ["max_steps", "completed", "completed"]
    messages = (await handle.query("messages", args=[0, 1000]))["messages"]
    results = [each["error"] and each["error"]["kind"] for each in messages if each["role"] == "tool"]
    assert results == [None, "duplicate_call", None]
    assert ledger.exists() is False


async def test_a_fork_in_an_earlier_turn_knows_the_calls_of_that_turn(bank: Lab) -> None:
    """Not those of the turns before, which have ended."""
    run_id = f"turns-{uuid.uuid4().hex[:8]}"
    first, again, other = (call("helper", '{"prompt": "Help!"}', each) for each in "abc")
    bank.model.script(run_id, [first, DONE, DONE, DONE])
    started = await bank.client.start_workflow(
        "SeveralTurns",
        args=[f"openai-chat:{run_id}", ["1", "2", "3"], [None] * 3],
        id=run_id,
        task_queue=bank.task_queue,
    )
    await started.result()
    for step, expected in ((2, [None, "duplicate_call"]), (3, [None, None])):
        bank.model.script(run_id, [first, again if step == 2 else DONE, other if step == 3 else DONE, DONE])
        assert kinds(await bank.look(await fork_run(bank.client, run_id, at=step, tools="live"))) == expected


async def test_a_continued_chain_on_a_server_of_its_own(lab: Lab, chain_server: DevServer, ledger: Path) -> None:
    """The server suggests to continue as new: the calls of all runs of the chain count."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"chain-{uuid.uuid4().hex[:6]}")
    doubled = [
        Turn(calls=[("pay", f'{{"amount": {n % 6}}}', f"{n}a"), ("pay", f'{{"amount": {n % 6}}}', f"{n}b")])
        for n in range(18)
    ]
    async with running_worker(client, load([MODULE]), lab.telemetry, at.task_queue):
        ran = await at.run([*doubled, DONE], **books(ledger))
        assert (await size_of_chain(client, ran.id)).runs > 2
    assert sorted(each["arguments"]["amount"] for each in executions(ledger)) == [0, 1, 2, 3, 4, 5]
    assert ran.result["recovered_failures"] == 30
