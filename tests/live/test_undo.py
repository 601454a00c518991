"""Undo: the calls of a run that has ended are taken back, the last one first, each at most once."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import re
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import connect, fork_run, resume_run
from mulligan.client.origins.branch_run import branch_run
from mulligan.client.origins.run_state import RunNotFoundError, RunOpenError, UndoOpenError, first_run_id
from mulligan.client.start_run import read_input
from mulligan.client.undo.undo import GoneOnError, Undone, read_result, read_undo, start_undo
from mulligan.client.undo.undos_of_run import UndoError
from mulligan.devserver import DevServer
from mulligan.wire.undo import UNDO_WORKFLOW, UndoOptions, UndoRun, undo_id
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.command_server import start_command
from tests.support.compaction_agents import PROMPT, reading
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Turn
from tests.support.script_runs import script
from tests.support.temporal import environment_of
from tests.support.undo_agents import lines
from tests.support.undo_fixtures import MODULE, of, undo_desk, undo_ledger  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
async def at(lab: Lab) -> AsyncIterator[Lab]:
    async with undo_desk(lab) as desk:
        yield desk


async def undo(at: Lab, run_id: str, *, although_continued: bool = False, **options: Any) -> Undone:
    return await read_result(
        at.client, await start_undo(at.client, run_id, UndoOptions(**options), although_continued=although_continued)
    )


def states(undone: Undone) -> list[tuple[str, str]]:
    return [(each.call_id, each.state) for each in undone.calls]


def undos(ledger: Path) -> list[str]:
    """The calls whose undo was called, in its order."""
    return [each["call"] for each in lines(ledger) if each["what"] in ("unbook", "mend", "effect", "call_off")]


BOOK = call("book", '{"room": "one"}', "b1")
MAIL = call("mail", '{"to": "me"}', "m1")
FRAGILE = call("fragile", '{"part": "wheel"}', "f1")


async def test_calls_are_undone_in_reverse_with_what_their_tools_have(at: Lab, ledger: Path) -> None:
    failing = call("book", '{"room": "none"}', "n1")
    twice = call("quick", '{"room": "q"}', "q1")
    ran = await at.run([BOOK, MAIL, failing, FRAGILE, twice, DONE], **of(ledger, user="ann", tenant="acme"))
    undone = await undo(at, ran.id)
    assert states(undone) == [("q1", "undone"), ("f1", "undone"), ("m1", "no_undo"), ("b1", "undone")]
    assert undos(ledger) == ["q1", "f1", "b1"]
    took, back = [each for each in lines(ledger) if each["call"] == "b1"]
    assert back["arguments"] == {"room": "one"}
    assert back["result"] == {"id": 3, "room": "one"}
    same = ("run", "call", "resources", "agent", "step")
    assert [took[name] for name in same] == [back[name] for name in same]
    assert back["resources"] == "the pool"
    changed = next(each for each in lines(ledger) if each["what"] == "mend")
    assert changed["result"] == "changed wheel"
    keys = [each["key"] for each in lines(ledger)]
    assert len({*keys}) == len(keys)


async def test_a_second_undo_takes_up_what_failed_and_what_was_not_reached(at: Lab, ledger: Path) -> None:
    last = call("book", '{"room": "last"}', "b2")
    ran = await at.run([BOOK, FRAGILE, last, DONE], **of(ledger))
    broken = ledger.with_suffix(".broken")
    broken.touch()
    first = await undo(at, ran.id)
    assert states(first) == [("b2", "undone"), ("f1", "failed"), ("b1", "not_reached")]
    assert first.calls[1].error is not None
    assert (first.calls[1].error.kind, first.calls[1].error.message) == ("tool_error", "The shop is closed.")
    further = await undo(at, ran.id, go_on=True)
    assert states(further) == [("b2", "undone"), ("f1", "failed"), ("b1", "undone")]
    broken.unlink()
    assert states(await undo(at, ran.id)) == [("b2", "undone"), ("f1", "undone"), ("b1", "undone")]
    assert undos(ledger) == ["b2", "f1", "f1", "b1", "f1"]
    tries = [each["key"] for each in lines(ledger) if each["what"] == "mend"]
    assert len(tries) == 3
    assert len({*tries}) == 1, "the undo of a call has one key"
    assert states(await undo(at, ran.id)) == states(await read_undo(at.client, ran.id))
    assert len(undos(ledger)) == 5


async def test_an_undo_is_tried_as_often_as_its_tool_says(at: Lab, ledger: Path) -> None:
    ran = await at.run([call("sturdy", '{"part": "door"}', "s1"), DONE], **of(ledger))
    ledger.with_suffix(".broken").touch()
    assert states(await undo(at, ran.id)) == [("s1", "failed")]
    assert [each["attempt"] for each in lines(ledger) if each["what"] == "mend"] == [1, 2, 3]


async def test_calls_of_sub_agents_and_scripts_are_undone_too(at: Lab, ledger: Path) -> None:
    helped = call("undo_helper", '{"prompt": "Book."}', "h1")
    ran = await at.run([BOOK, helped, FRAGILE, DONE], **of(ledger))
    undone = await undo(at, ran.id)
    below = [each.call_id for each in undone.calls if each.run != ran.id]
    assert [each.name for each in undone.calls] == ["fragile", "mail", "book", "book"] or [
        each.name for each in undone.calls
    ] == ["fragile", "book", "mail", "book"]
    assert len(below) == 2
    assert [each.state for each in undone.calls if each.name == "book"] == ["undone", "undone"]
    [child] = {each.run for each in undone.calls} - {ran.id}
    with pytest.raises(UndoError, match="is the run of a sub-agent; undo the run that has called it"):
        await undo(at, child)
    code = "await book('one')\nawait mail('me')\nawait fragile('wheel')\n'done'"
    scripted = await at.run([script(code, "s0"), DONE], **of(ledger, agent="coding_desk"))
    assert states(await undo(at, scripted.id)) == [("s0.3", "undone"), ("s0.2", "no_undo"), ("s0.1", "undone")]


async def test_only_calls_from_a_step_on(at: Lab, ledger: Path) -> None:
    helped = call("undo_helper", '{"prompt": "Book."}', "h1")
    ran = await at.run([helped, BOOK, FRAGILE, DONE], **of(ledger))
    assert states(await undo(at, ran.id, from_step=2)) == [("f1", "undone"), ("b1", "undone")]
    rest = await undo(at, ran.id)
    assert [each.state for each in rest.calls].count("undone") == 3
    assert len(undos(ledger)) == 3


async def test_calls_of_which_nobody_knows_are_undone_on_request(at: Lab, ledger: Path) -> None:
    hung = call("hang", '{"room": "x"}', "x1")
    ran = await at.run([BOOK, hung, DONE], **of(ledger))
    assert ran.calls[1]["result"]["error"]["kind"] == "tool_timeout"
    undone = await undo(at, ran.id)
    assert states(undone) == [("x1", "not_reached"), ("b1", "undone")]
    assert undone.calls[0].error is not None
    assert undone.calls[0].error.kind == "tool_timeout"
    assert states(await undo(at, ran.id, lost=True)) == [("x1", "undone"), ("b1", "undone")]
    assert [each["result"] for each in lines(ledger) if each["what"] == "unbook"] == [{"id": 3, "room": "one"}, None]


async def test_a_call_that_was_cut_off_with_its_run_counts_as_lost(at: Lab, ledger: Path) -> None:
    handle = await at.start([BOOK, call("hang", '{"room": "x"}', "x1"), DONE], **of(ledger))
    while not any(each["what"] == "hang" for each in lines(ledger)):
        await asyncio.sleep(0.05)
    with pytest.raises(RunOpenError, match="is open; stop it first"):
        await undo(at, handle.id)
    await handle.terminate()
    assert states(await undo(at, handle.id)) == [("x1", "not_reached"), ("b1", "undone")]
    assert states(await undo(at, handle.id, lost=True)) == [("x1", "undone"), ("b1", "undone")]


async def test_a_deferred_call_is_undone_with_the_result_that_came(at: Lab, ledger: Path) -> None:
    handle = await at.start([call("order", '{"room": "o"}', "o1"), DONE], **of(ledger))
    while ((await handle.query("progress"))["waiting_for"] or {}).get("kind") != "callback":
        await asyncio.sleep(0.05)
    await handle.execute_update("complete", {"call_id": "o1", "result": {"id": 7, "room": "o"}})
    await handle.result()
    assert states(await undo(at, handle.id)) == [("o1", "undone")]
    assert lines(ledger)[-1]["result"] == {"id": 7, "room": "o"}


async def test_a_result_that_no_longer_validates_is_reported(at: Lab, ledger: Path) -> None:
    ran = await at.run([call("book_many", '{"rooms": 50}', "b1"), DONE], **of(ledger))
    undone = await undo(at, ran.id)
    assert states(undone) == [("b1", "failed")]
    assert undone.calls[0].error is not None
    assert "was recorded (max_result_chars); it was not undone" in undone.calls[0].error.message
    assert undos(ledger) == []


async def test_tools_of_agents_before_a_handoff_are_undone(at: Lab, ledger: Path) -> None:
    over = call("transfer_to_second_desk", "{}", "t1")
    ran = await at.run([BOOK, over, FRAGILE, DONE], **of(ledger, agent="first_desk"))
    undone = await undo(at, ran.id)
    assert states(undone) == [("f1", "undone"), ("b1", "undone")]
    assert [each.agent for each in undone.calls] == ["second_desk", "first_desk"]


async def test_what_another_run_has_executed_is_not_this_runs_to_undo(at: Lab, ledger: Path) -> None:
    ran = await at.run([BOOK, FRAGILE, DONE], **of(ledger))
    recorded = await fork_run(at.client, ran.id, at=2)
    at.model.script(recorded.id, [])
    await asyncio.wait([asyncio.ensure_future(recorded.result())], timeout=20)
    assert (await read_undo(at.client, recorded.id)).calls == []
    at.model.script("more", [BOOK, FRAGILE, DONE, call("book", '{"room": "two"}', "b2"), DONE])
    resumed = await resume_run(at.client, ran.id, "And now?", model="openai-chat:more")
    await resumed.result()
    with pytest.raises(GoneOnError, match=f"was continued as '{ran.id}-resumed'") as refused:
        await undo(at, ran.id)
    assert refused.value.workflow_id == resumed.id
    assert states(await undo(at, resumed.id)) == [("b2", "undone")]
    assert states(await undo(at, ran.id)) == [("f1", "undone"), ("b1", "undone")], "nothing goes on from it any more"


ONCE = call("book_once", '{"room": "one"}', "b1")
AGAIN = call("book_once", '{"room": "one"}', "b2")


def booked(ledger: Path) -> list[str]:
    return [each["call"] for each in lines(ledger) if each["what"] == "book_once"]


def told(at: Lab, model: str) -> str:
    """What the model was sent in the newest request under its name."""
    return str(at.model.requests_of(model)[-1].body)


async def test_an_undone_call_may_be_made_again_in_a_run_that_goes_on(at: Lab, ledger: Path) -> None:
    """`once` does not exclude it, and the model reads that it was undone: in a continuation, and in a fork with live tools."""
    ran = await at.run([ONCE, call("book_once", '{"room": "two"}', "k1"), DONE], **of(ledger))
    await undo(at, ran.id, from_step=2)
    await undo(at, ran.id)
    kept = await at.run([ONCE, DONE], **of(ledger))
    for run, turns, again in ((ran, 3, ["b2"]), (kept, 2, [])):
        before = len(booked(ledger))
        at.model.script(f"more-{run.id}", [DONE] * turns + [AGAIN, DONE])
        resumed = await resume_run(at.client, run.id, "Once more.", model=f"openai-chat:more-{run.id}")
        await resumed.result()
        assert booked(ledger)[before:] == again
        assert ("undone since" in told(at, f"more-{run.id}")) == bool(again)
        at.model.script(f"fork-{run.id}", [DONE, AGAIN, DONE])
        model = {"model": f"openai-chat:fork-{run.id}"}
        fork = await fork_run(at.client, run.id, at=2, tools="live", edits=model)
        await fork.result()
        assert booked(ledger)[before:] == again * 2
        said = told(at, f"fork-{run.id}")
        assert ("`book_once` (b1)" in said, "`book_once` (k1)" in said) == (bool(again), False)


async def test_no_run_goes_on_from_a_run_that_is_being_undone(at: Lab, ledger: Path) -> None:
    ran = await at.run([call("long_book", '{"room": "x"}', "l1"), DONE], **of(ledger))
    handle = await start_undo(at.client, ran.id, UndoOptions())
    refused = re.escape(f"The run {ran.id!r} is being undone by {handle.id!r}; wait until that has ended.")
    with pytest.raises(UndoOpenError, match=refused):
        await resume_run(at.client, ran.id, "More.")
    for tools in ("live", "recorded"):
        with pytest.raises(UndoOpenError, match=refused):
            await fork_run(at.client, ran.id, at=1, tools=tools)
    run_input = await read_input(at.client, ran.id)
    assert run_input is not None
    with pytest.raises(UndoOpenError, match=refused):
        await branch_run(at.client, ran.id, run_input, {"prompt": "Else."}, f"{ran.id}-branch")
    ledger.with_suffix(".go").touch()
    assert states(await read_result(at.client, handle)) == [("l1", "undone")]
    at.model.script("after", [DONE] * 3)
    await (await resume_run(at.client, ran.id, "More.", model="openai-chat:after")).result()


async def test_what_is_undone_between_a_check_and_a_start_is_seen_when_the_run_opens(
    at: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that would go on from it fails before its first model call, and the same request starts another one."""
    for go_on, module in ((resume_run, "resume_run"), (fork_run, "fork_run")):
        ran = await at.run([ONCE, DONE], **of(ledger))
        begin_run = importlib.import_module(f"mulligan.client.{module}").begin_run
        more: dict[str, Any] = {"prompt": "Once more."} if module == "resume_run" else {"at": 2, "tools": "live"}

        async def late(*args: Any, ran: Any = ran, begin_run: Any = begin_run, **given: Any) -> Any:
            await undo(at, ran.id, although_continued=True)
            return await begin_run(*args, **given)

        monkeypatch.setattr(f"mulligan.client.{module}.begin_run", late)
        begun = await go_on(at.client, ran.id, **more)
        with pytest.raises(WorkflowFailureError) as failure:
            await begun.result()
        assert f"The run {ran.id!r}, or one before it, was undone while this one" in str(failure.value.cause)
        monkeypatch.undo()
        at.model.script(ran.id, [ONCE, DONE, DONE, AGAIN, DONE])
        await (await go_on(at.client, ran.id, **more)).result()
        assert "undone since" in told(at, ran.id)


@pytest.mark.parametrize("between", ["resumed", "forked"])
async def test_undos_of_all_runs_before_are_seen(
    at: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """A resumed run learns of the undos of the run before it, and of the run that this one continues or was forked from."""
    first = await at.run([call("long_book", '{"room": "x"}', "l1"), ONCE, DONE], **of(ledger))
    at.model.script("between", [DONE] * 6)
    model = "openai-chat:between"
    if between == "resumed":
        second = await resume_run(at.client, first.id, "More.", model=model)
    else:
        second = await fork_run(at.client, first.id, at=3, edits={"model": model})
    await second.result()
    begin_run = importlib.import_module("mulligan.client.origins.resume_run").begin_run

    async def late(*args: Any, **given: Any) -> Any:
        await undo(at, first.id, although_continued=True, from_step=2)
        return await begin_run(*args, **given)

    monkeypatch.setattr("mulligan.client.origins.resume_run.begin_run", late)
    with pytest.raises(WorkflowFailureError) as failure:
        await (await resume_run(at.client, second.id, "Once more.", model=model)).result()
    assert f"The run {second.id!r}, or one before it, was undone" in str(failure.value.cause)
    monkeypatch.undo()
    handle = await start_undo(at.client, first.id, UndoOptions(), although_continued=True)
    with pytest.raises(UndoOpenError, match=re.escape(f"The run {first.id!r} is being undone by {handle.id!r}")):
        await fork_run(at.client, second.id, at=1)
    ledger.with_suffix(".go").touch()
    await read_result(at.client, handle)
    await (await resume_run(at.client, second.id, "Once more.", model=model)).result()
    assert "`book_once` (b1)" in told(at, "between")


async def test_an_undo_looks_again_whether_another_run_goes_on(at: Lab, ledger: Path) -> None:
    """A continuation may begin between the check of whoever starts the undo, and its beginning."""
    ran = await at.run([BOOK, DONE], **of(ledger))
    at.model.script("between", [DONE] * 3)
    await (await resume_run(at.client, ran.id, "More.", model="openai-chat:between")).result()
    first = first_run_id(await ran.handle.describe())
    request = UndoRun(workflow_id=ran.id, run_id=first, first_run_id=first, number=1)
    new_id, queue = undo_id(ran.id, first, 1), at.task_queue
    late = await read_result(
        at.client, await at.client.start_workflow(UNDO_WORKFLOW, request, id=new_id, task_queue=queue)
    )
    assert f"was continued as '{ran.id}-resumed'" in str(late.error)
    assert undos(ledger) == []


async def test_a_failed_call_whose_first_attempt_was_lost_counts_as_lost(at: Lab, ledger: Path) -> None:
    ran = await at.run([call("twice", '{"room": "t"}', "t1"), DONE], **of(ledger))
    assert [(each["result"]["error"]["kind"], each["attempts"]) for each in ran.calls] == [("tool_error", 2)]
    assert states(await undo(at, ran.id)) == [("t1", "not_reached")]
    assert states(await undo(at, ran.id, lost=True)) == [("t1", "undone")]


async def test_a_text_that_was_cut_is_no_result(at: Lab, ledger: Path) -> None:
    ran = await at.run([call("tell", '{"room": "one"}', "t1"), DONE], **of(ledger))
    undone = await undo(at, ran.id)
    assert [each.error.kind for each in undone.calls if each.error is not None] == ["invalid_result"]
    assert undos(ledger) == []


async def test_a_run_with_more_calls_than_one_undo_takes(
    at: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what no undo has settled counts."""
    monkeypatch.setattr("mulligan.client.undo.undo.MOST_CALLS", 2)
    ran = await at.run([BOOK, MAIL, FRAGILE, DONE], **of(ledger))
    assert "has executed 3 calls that no undo has settled yet" in str((await undo(at, ran.id)).error)
    assert states(await undo(at, ran.id, from_step=2)) == [("f1", "undone"), ("m1", "no_undo")]
    assert states(await undo(at, ran.id)) == [("b1", "undone")]
    assert undos(ledger) == ["f1", "b1"]


async def test_what_a_terminated_undo_was_calling_is_called_again_only_with_lost(at: Lab, ledger: Path) -> None:
    ran = await at.run([BOOK, call("long_book", '{"room": "x"}', "l1"), DONE], **of(ledger))
    handle = await start_undo(at.client, ran.id, UndoOptions())
    while lines(ledger)[-1]["what"] != "begin":
        await asyncio.sleep(0.05)
    await handle.terminate()
    listed = (await read_undo(at.client, ran.id)).to_json()
    assert (listed["status"], listed["error"]["kind"]) == ("failed", "terminated")
    undone = await undo(at, ran.id)
    assert states(undone) == [("l1", "failed"), ("b1", "undone")]
    assert undone.calls[0].error is not None
    assert undone.calls[0].error.kind == "undo_cut_off"
    assert [each["what"] for each in lines(ledger)].count("begin") == 1
    ledger.with_suffix(".go").touch()
    assert states(await undo(at, ran.id, lost=True)) == [("l1", "undone"), ("b1", "undone")]


async def test_what_cannot_be_undone_is_refused(at: Lab) -> None:
    with pytest.raises(RunNotFoundError, match="There is no run 'nobody'"):
        await undo(at, "nobody")
    handle = await at.client.start_workflow("TwoAgents", id=f"own-{uuid.uuid4().hex[:6]}", task_queue="nobody")
    await handle.terminate()
    with pytest.raises(UndoError, match="is a workflow of type TwoAgents; only runs of AgentWorkflow"):
        await undo(at, handle.id)


async def test_a_tool_that_is_gone_is_reported_and_undone_when_it_is_back(lab: Lab, ledger: Path) -> None:
    other = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"gone-{uuid.uuid4().hex[:6]}")
    loaded = load([MODULE])
    async with running_worker(other.client, loaded, lab.telemetry, other.task_queue):
        ran = await other.run([BOOK, FRAGILE, DONE], **of(ledger))
    less = load([MODULE])
    desk = less.registry.agents["desk"]
    whole = desk.tools
    object.__setattr__(desk, "tools", [each for each in desk.listed_tools if each.name != "fragile"])
    try:
        async with running_worker(other.client, less, lab.telemetry, other.task_queue):
            undone = await undo(other, ran.id)
            assert states(undone) == [("f1", "failed"), ("b1", "not_reached")]
            assert undone.calls[0].error is not None
            assert undone.calls[0].error.kind == "tool_gone"
    finally:
        object.__setattr__(desk, "tools", whole)
    async with running_worker(other.client, load([MODULE]), lab.telemetry, other.task_queue):
        assert states(await undo(other, ran.id)) == [("f1", "undone"), ("b1", "undone")]


async def test_each_undo_has_a_span_in_the_trace_of_its_run(at: Lab, ledger: Path) -> None:
    ran = await at.run([BOOK, FRAGILE, DONE], **of(ledger))
    ledger.with_suffix(".broken").touch()
    await undo(at, ran.id, go_on=True)
    at.telemetry.flush()
    spans = [each for each in at.otlp.spans(trace_id=ran.result["trace_id"]) if each.name == "agent.undo"]
    assert sorted((each.attributes["gen_ai.tool.call.id"], each.status) for each in spans) == [
        ("b1", "UNSET"),
        ("f1", "ERROR"),
    ]
    assert {each.parent_span_id for each in spans} == {each.parent_span_id for each in ran.spans_of("ai.toolCall")}


async def test_an_undo_of_results_that_fill_several_pages(
    at: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the query; calls of several workflow runs: test_calls_of_all_workflow_runs_of_a_compacted_chain."""
    monkeypatch.setattr(limits, "PAGE_BYTES", 20_000)
    rooms = [f"{n}-" + "r" * 3_000 for n in range(20)]
    turns = [Turn(calls=[("book", json.dumps({"room": room}), f"b{n}")]) for n, room in enumerate(rooms)]
    ran: Ran = await at.run([*turns, DONE], **of(ledger))
    assert states(await undo(at, ran.id)) == [(f"b{n}", "undone") for n in reversed(range(20))]
    taken = [each for each in lines(ledger) if each["what"] == "unbook"]
    assert [each["arguments"]["room"] for each in taken] == [*reversed(rooms)]


async def test_a_tool_of_another_task_queue_is_undone_there(at: Lab, ledger: Path) -> None:
    far = load(["tests.support.undo_far_tools"])
    async with running_worker(at.client, far, at.telemetry, "undo-far"):
        ran = await at.run([call("far_book", '{"room": "far"}', "r1"), DONE], **of(ledger, agent="far_desk"))
        assert states(await undo(at, ran.id)) == [("r1", "undone")]
    took, back = lines(ledger)
    assert (took["what"], back["what"], back["result"]) == ("far_book", "unbook", {"id": 9, "room": "far"})


async def test_calls_of_all_workflow_runs_of_a_compacted_chain(lab: Lab, chain_server: DevServer) -> None:
    """The newest workflow run has only the last of them."""
    client = await connect(chain_server.address)
    there = Lab(client, lab.model, lab.otlp, lab.telemetry, f"undo-{uuid.uuid4().hex[:6]}")
    loaded = load(["tests.support.compaction_agents"])
    async with running_worker(client, loaded, lab.telemetry, there.task_queue):
        ran = await there.run(reading(16), agent="page_reader", prompt=PROMPT)
        listed = await undo(there, ran.id)
    assert [(each.step, each.state) for each in listed.calls] == [(n, "no_undo") for n in range(16, 0, -1)]
    assert len({each.run_id for each in listed.calls}) > 1


KILLS = int(os.environ.get("UNDO_KILLS", "6"))
"""Workers that are killed; 200 for the longer form."""
RUNS = 8
"""Runs that are undone side by side. An undo ends, however many workers die: there are as many rounds as kills need."""


async def kill_workers(ledger: Path, start: Callable[[], Awaitable[Any]]) -> None:
    """Kill, again and again, a process that has just begun an undo, or has just done its work, and start another one."""
    chance, seen, killed = random.Random(7), len(lines(ledger)), 0
    while killed < KILLS:
        events = lines(ledger)
        fresh, seen = [each for each in events[seen:] if each["what"] in ("begin", "effect")], len(events)
        if fresh and chance.random() < 0.7:
            await asyncio.sleep(chance.choice([0, 0, 0.02, 0.06]))
            with suppress(ProcessLookupError):  # it was killed for the line before
                os.kill(fresh[-1]["pid"], signal.SIGKILL)
                killed += 1
                await start()
        await asyncio.sleep(0.01)


@pytest.mark.timeout(60 + 15 * KILLS)
async def test_workers_that_are_killed_during_undos(lab: Lab, temporal: DevServer, ledger: Path) -> None:
    """No effect is undone twice, and each call is undone or reported, at whatever point workers die."""
    queue = f"kill-{uuid.uuid4().hex[:6]}"
    environment = {**os.environ, **environment_of(temporal), "MULLIGAN_GRACE_SECONDS": "1"}
    workers: list[Any] = []

    async def start() -> None:
        workers.append(await start_command("worker", "--load", MODULE, "--task-queue", queue, env=environment))

    await asyncio.gather(*(start() for _ in range(3)))
    try:
        given = {"agent": "placer", "prompt": "Go.", "metadata": {"ledger": str(ledger)}}
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        killing = asyncio.create_task(kill_workers(ledger, start))
        ids: list[str] = []
        first: list[Undone] = []
        while not killing.done():
            new = [f"{queue}-{len(ids) + n}" for n in range(RUNS)]
            handles = [
                await at.client.start_workflow("AgentWorkflow", given, id=each, task_queue=queue) for each in new
            ]
            await asyncio.gather(*(each.result() for each in handles))
            first += await asyncio.gather(*(undo(at, each, go_on=True) for each in new))
            ids += new
        await killing
        effects = Counter((each["run"], each["call"]) for each in lines(ledger) if each["what"] == "effect")
        calls = {(each.run, each.call_id): each.state for undone in first for each in undone.calls}
        assert len(calls) == 4 * len(ids)
        assert [call for call, count in effects.items() if count > 1] == [], "undone twice"
        unreported = [call for call, state in calls.items() if state == "undone" and call not in effects]
        assert unreported == [], "not undone, and not reported"
        failed = [call for call, state in calls.items() if state != "undone"]
        deaths = len(workers) - 3
        assert failed, f"of {deaths} workers that were killed, none has lost an undo"
        second = [await undo(at, each, go_on=True) for each in ids]
        assert {each.state for undone in second for each in undone.calls} == {"undone"}
        begun = Counter((each["run"], each["call"]) for each in lines(ledger) if each["what"] == "begin")
        assert {call for call, count in begun.items() if count > 1} <= {*failed}, "repeated what was undone"
        keys = {(each["run"], each["call"]): each["key"] for each in lines(ledger) if each["what"] == "begin"}
        assert all(each["key"] == keys[each["run"], each["call"]] for each in lines(ledger) if each["what"] == "effect")
        print(f"{deaths} kills, {len(calls)} calls, {len(failed)} reported as failed, {len(effects)} effects")
    finally:
        for each in workers:
            if each.returncode is None:
                each.kill()
        await asyncio.gather(*(each.wait() for each in workers))
