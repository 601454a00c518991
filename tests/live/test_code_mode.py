"""Code mode: scripts of models, whose calls are tool calls of their own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import fork_run
from mulligan.activities.code_mode import run_script
from mulligan.devserver import DevServer
from mulligan.wire.code_mode import RUN_SCRIPT
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_continue_while_waiting import replay_chain, runs_of, write
from tests.promise.test_people import pending
from tests.support.code_agents import executions
from tests.support.lab import DONE, Lab, Ran
from tests.support.openai_turn import Turn
from tests.support.script_runs import run, script, text_of
from tests.support.worker_process import worker_process

MODULE = "tests.support.code_agents"


@pytest.fixture(scope="module")
async def lab_with_code(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"code-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load([MODULE]), lab.telemetry, at.task_queue):
        yield at


async def test_each_call_of_a_script_is_a_tool_call(lab_with_code: Lab, ledger: Path) -> None:
    code = "total = 0.0\nfor n in range(1, 4):\n    order = await get_order(n)\n    total += order['total']\nprint('sum')\ntotal"
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran) == "sum\n60.0"
    [outer] = ran.calls
    assert [(each["id"], each["name"], each["arguments"]) for each in outer["calls"]] == [
        (f"s0.{n}", "get_order", {"id": n}) for n in (1, 2, 3)
    ]
    assert outer["calls"][0]["result"]["text"] == '{"id": 1, "total": 10.0}'
    assert [each["call_id"] for each in executions(ledger)] == ["s0.1", "s0.2", "s0.3"]
    assert len({each["key"] for each in executions(ledger)}) == 3
    assert (ran.result["tool_calls"], ran.result["recovered_failures"], ran.result["steps"]) == (4, 0, 2)
    [outer_span] = [each for each in ran.spans_of("ai.toolCall") if each.attributes["gen_ai.tool.name"] == "run_code"]
    inner = [each for each in ran.spans_of("ai.toolCall") if each is not outer_span]
    assert [each.parent_span_id for each in inner] == [outer_span.span_id] * 3
    tools = [each["function"]["name"] for each in json.loads(ran.requests[0].body)["tools"]]
    assert tools == ["run_code"]


async def test_gather_runs_calls_side_by_side(lab_with_code: Lab, ledger: Path) -> None:
    """Results arrive in any order, and each goes to the call that it belongs to."""
    code = "import asyncio\nawait asyncio.gather(slow(0.6), slow(0.3), slow(0.0), note('x'))"
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran) == '[0.6, 0.3, 0.0, "noted x"]'
    assert [each["call_id"] for each in executions(ledger)][-2:] == ["s0.2", "s0.1"]
    assert [each["id"] for each in ran.calls[0]["calls"]] == ["s0.1", "s0.2", "s0.3", "s0.4"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


HARM = {
    "an endless loop": ("while True: pass", "tool_timeout", "ran too long"),
    "a script of 1 MB": ("x = 1\n" * 170_000, "invalid_arguments", "so it was not run"),
}
"""More of them, without a server: tests/unit/test_code_mode_runs.py."""


@pytest.mark.parametrize("case", HARM, ids=str)
async def test_a_script_that_does_harm_ends_with_a_text(lab_with_code: Lab, case: str) -> None:
    code, kind, says = HARM[case]
    ran = await run(lab_with_code, code, "1 + 1")
    assert (ran.calls[0]["result"]["error"]["kind"], says in text_of(ran)) == (kind, True), text_of(ran)
    assert text_of(ran, 1) == "2"


# A person, a stop, a cancellation


async def test_a_script_waits_for_a_person(lab_with_code: Lab, ledger: Path) -> None:
    """Also over continue-as-new, with the results of its other calls; an edit counts."""
    code = "import asyncio\norder = await get_order(7)\nprint(await asyncio.gather(refund(7), note('x')))"
    handle = await lab_with_code.start([script(code), DONE], agent="coder", metadata={"ledger": str(ledger)})
    [waiting] = await pending(handle)
    assert (waiting["call_id"], waiting["tool"]) == ("s.2", "refund")
    assert (await handle.query("progress"))["status"] in ("waiting", "running")
    edited = {"call_id": "s.2", "decision": "approve", "arguments": {"order": 8}, "by": "Ada"}
    await handle.execute_update("decide", edited)
    ran = await lab_with_code.look(handle)
    assert text_of(ran) == "['refunded 8', 'noted x']\n"
    refunded = ran.calls[0]["calls"][1]
    assert (refunded["decision"]["by"], refunded["arguments"], refunded["raw_arguments"]) == (
        "Ada", {"order": 8}, '{"order": 7}',
    )  # fmt: skip
    assert len(executions(ledger)) == 3


async def test_a_script_continues_as_new_while_it_waits(
    lab_with_code: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    code = "a = await get_order(1)\nb = await refund(2)\nc = await get_order(3)\nprint(a['id'], b, c['id'])"
    handle = await lab_with_code.start([script(code), DONE], agent="coder", metadata={"ledger": str(ledger)})
    await pending(handle)
    await write(handle, [f"message {n}" for n in range(40)])
    assert await runs_of(lab_with_code, handle) > 1
    await handle.execute_update("decide", {"call_id": "s.2", "decision": "approve"})
    ran = await lab_with_code.look(handle)
    assert text_of(ran) == "1 refunded 2 3\n"
    assert [each["call_id"] for each in executions(ledger)] == ["s.1", "s.2", "s.3"]
    assert ran.result["tool_calls"] == 4
    await replay_chain(lab_with_code, handle)


async def test_a_long_script_continues_as_new_between_two_calls(
    lab_with_code: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    code = "total = 0\nfor n in range(20):\n    total += (await get_order(n))['id']\ntotal"
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran) == "190"
    assert [each["call_id"] for each in executions(ledger)] == [f"s0.{n}" for n in range(1, 21)]
    assert await runs_of(lab_with_code, ran.handle) > 2
    assert (ran.result["tool_calls"], ran.result["steps"]) == (21, 2)
    await replay_chain(lab_with_code, ran.handle)


async def test_a_stop_ends_a_script_at_its_call(lab_with_code: Lab, ledger: Path) -> None:
    code = "await get_order(1)\ntry:\n    await refund(2)\nexcept ToolError:\n    pass\nawait note('after')"
    handle = await lab_with_code.start([script(code), DONE], agent="coder", metadata={"ledger": str(ledger)})
    await pending(handle)
    await handle.execute_update("stop", {"reason": "Enough."})
    ran = await lab_with_code.look(handle)
    assert (ran.result["status"], ran.result["recovered_failures"]) == ("stopped", 0)
    assert [each["tool"] for each in executions(ledger)] == ["get_order"]
    assert "Enough." in text_of(ran)
    ended = [each for each in ran.spans_of("ai.toolCall") if each.attributes["gen_ai.tool.call.id"] == "s"]
    assert [each.status for each in ended] == ["ERROR"]


async def test_a_cancellation_ends_a_script(lab_with_code: Lab, ledger: Path) -> None:
    handle = await lab_with_code.start(
        [script("await slow(60.0)"), DONE], agent="coder", metadata={"ledger": str(ledger)}
    )
    while not (await handle.query("progress"))["running"]:
        await asyncio.sleep(0.02)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert executions(ledger) == []


# Crashes


@pytest.mark.parametrize("at", [1, 3, 5])
async def test_a_worker_killed_at_a_call_repeats_none(lab: Lab, temporal: DevServer, ledger: Path, at: int) -> None:
    """The call at which it dies is lost, and the script is told so; all others are executed once, and the script goes on."""
    code = (
        "import asyncio\nfor n in range(1, 6):\n    try:\n        order = await get_order(n)\n        print(order['id'])\n"
        "    except ToolError as error:\n        print('lost')"
    )
    queue = f"killed-{uuid.uuid4().hex[:6]}"
    there = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    metadata = {"ledger": str(ledger), "kill_at": str(at)}
    handle = await there.start([script(code), DONE], agent="coder", metadata=metadata)
    async with worker_process(MODULE, queue, temporal) as first:
        assert await first.wait() == -9
    async with worker_process(MODULE, queue, temporal):
        ran = await there.look(handle)
    assert text_of(ran).split() == ["lost" if n == at else str(n) for n in range(1, 6)]
    assert [each["call_id"] for each in executions(ledger)] == [f"s.{n}" for n in range(1, 6)]


async def test_a_script_whose_workers_are_lost_ends_and_its_run_goes_on(lab: Lab, temporal: DevServer) -> None:
    queue = f"dying-{uuid.uuid4().hex[:6]}"
    there = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    handle = await there.start([script("1"), DONE], agent="coder")
    for _ in range(run_script.LOST_STARTS):
        async with worker_process("tests.support.dying_scripts", queue, temporal) as lost:
            assert await lost.wait() == -9
    async with worker_process("tests.support.dying_scripts", queue, temporal):
        ran = await there.look(handle)
    assert ran.result["status"] == "completed"
    assert ran.calls[0]["result"]["error"]["kind"] == "tool_exception"
    assert "3 times, the worker that ran it died or stopped answering" in text_of(ran)


# Many scripts


def many(codes: Iterable[str]) -> Turn:
    """A turn in which the model writes several scripts."""
    return Turn(calls=[("run_code", json.dumps({"code": code}), f"s{n}") for n, code in enumerate(codes)])


async def test_two_scripts_of_a_run_run_at_once(lab_with_code: Lab) -> None:
    ran = await lab_with_code.run([many(f"(await get_order({n}))['id']" for n in range(6)), DONE], agent="coder")
    assert [text_of(ran, n) for n in range(6)] == [str(n) for n in range(6)]
    open_parts, most = set(), 0
    async for event in ran.handle.fetch_history_events():
        scheduled, ended = (
            event.activity_task_scheduled_event_attributes,
            event.activity_task_completed_event_attributes,
        )
        if scheduled.activity_type.name == RUN_SCRIPT:
            open_parts.add(event.event_id)
        open_parts.discard(ended.scheduled_event_id)
        most = max(most, len(open_parts))
    assert most == 2
    await replay_chain(lab_with_code, ran.handle)


async def test_a_stop_ends_the_scripts_that_wait_for_their_turn(lab_with_code: Lab) -> None:
    handle = await lab_with_code.start([many(["while True:\n    pass"] * 8), DONE], agent="coder")
    while not (await handle.query("progress"))["running"]:
        await asyncio.sleep(0.02)
    await handle.execute_update("stop", {"reason": "Enough."})
    ran = await lab_with_code.look(handle)
    assert ran.result["status"] == "stopped"
    kinds = [each["result"]["error"]["kind"] for each in ran.calls]
    assert set(kinds) == {"tool_timeout", "denied"}
    await replay_chain(lab_with_code, handle)


# Forks


async def test_a_fork_has_the_recorded_results_of_a_scripts_calls(lab_with_code: Lab, ledger: Path) -> None:
    code = "print((await get_order(1))['total'])\nprint(await pay(3))"
    ran = await run(lab_with_code, code, ledger=ledger)
    forked = await lab_with_code.look(await fork_run(lab_with_code.client, ran.id, at=1))
    assert text_of(forked) == text_of(ran)
    assert [each["recorded"] for each in forked.calls[0]["calls"]] == [True, True]
    assert len(executions(ledger)) == 2


async def size_of(at: Lab, ran: Ran) -> int:
    description = await at.client.get_workflow_handle(ran.id).describe()
    return description.raw_description.workflow_execution_info.history_size_bytes


# A script that is run again


async def test_the_example_of_the_page(lab: Lab) -> None:
    """docs/code-mode.md."""
    page: dict[str, Any] = {}
    text = (Path(__file__).parents[2] / "docs/code-mode.md").read_text()
    exec(compile(text.partition("```python\n")[2].partition("```")[0], "docs/code-mode.md", "exec", 0, True), page)
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"page-{uuid.uuid4().hex[:6]}")
    async with running_worker(
        at.client, load_agents([page["support"]], [page["writer"]]), lab.telemetry, at.task_queue
    ):
        ran = await at.look(
            await at.client.start_workflow(
                "AgentWorkflow",
                {"agent": "support", "prompt": "Go."},
                id=f"page-{uuid.uuid4().hex}",
                task_queue=at.task_queue,
            )
        )
    assert (text_of(ran), ran.result["output"]) == ("60.0\n", "All orders together are 60.")
