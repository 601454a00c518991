"""Code mode: scripts of models, whose calls are tool calls of their own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import fork_run
from mulligan.activities.code_mode import run_script
from mulligan.activities.code_mode.open_scripts import OpenScripts
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.devserver import DevServer
from mulligan.trace_view.history import chain
from mulligan.trace_view.history_spans import spans_of
from mulligan.wire.code_mode import RunScript, ScriptPage
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.conftest import DONE, Lab, Ran, call
from tests.live.test_continue_while_waiting import replay_chain, runs_of, write
from tests.live.test_people import pending
from tests.support.code_agents import executions
from tests.support.openai_turn import Turn
from tests.support.worker_process import worker_process

MODULE = "tests.support.code_agents"


@pytest.fixture(scope="module")
async def lab_with_code(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"code-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load([MODULE]), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def script(code: str, call_id: str = "s") -> Turn:
    """A turn in which the model writes a script."""
    return call("run_code", json.dumps({"code": code}), call_id)


async def run(at: Lab, *scripts: str, agent: str = "coder", ledger: Path | None = None, **more: Any) -> Ran:
    """Run an agent that writes these scripts, one in each step."""
    turns = [script(each, f"s{n}") for n, each in enumerate(scripts)]
    metadata = {"ledger": str(ledger)} if ledger else {}
    return await at.run([*turns, DONE], agent=agent, metadata=metadata, **more)


def text_of(ran: Ran, number: int = 0) -> str:
    text: str = ran.calls[number]["result"]["text"]
    return text


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
    assert [(each.span_id, each.parent_id) for each in await rebuilt(lab_with_code, ran)] == unordered(
        (each.span_id, each.parent_span_id) for each in ran.spans_of("ai.toolCall")
    )


def unordered(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(pairs)


async def rebuilt(at: Lab, ran: Ran) -> list[Any]:
    """The spans of calls, as they are read from history."""
    spans = [each for each in spans_of(await chain(at.client, ran.id)) if each.name == "ai.toolCall"]
    return sorted(spans, key=lambda each: (each.span_id, each.parent_id))


async def test_a_failed_call_raises_and_is_a_recovered_failure(lab_with_code: Lab, ledger: Path) -> None:
    """Caught or not, each has one ERROR span; a script that fails is one more, and the model reads the line."""
    caught = "try:\n    await get_order(99)\nexcept ToolError as error:\n    print('caught:', error)"
    ran = await run(lab_with_code, caught, "print('before')\nawait get_order(99)", ledger=ledger)
    assert text_of(ran) == "caught: There is no order 99.\n"
    assert ran.calls[1]["result"]["error"]["kind"] == "tool_exception"
    assert text_of(ran, 1) == (
        "The script failed at line 2.\nline 2: await get_order(99)\nToolError: There is no order 99.\nIt had printed:\nbefore"
    )
    assert ran.result["recovered_failures"] == 3
    failed = [each for each in ran.spans_of("ai.toolCall") if each.status == "ERROR"]
    assert sorted(each.attributes["gen_ai.tool.call.id"] for each in failed) == ["s0.1", "s1", "s1.1"]
    assert all(each.attributes["mulligan.recovered"] for each in failed)


async def test_arguments_go_through_fixers_and_an_invalid_call_raises(lab_with_code: Lab, ledger: Path) -> None:
    ran = await run(
        lab_with_code, "order = await get_order(-3)\norder['id']", "await get_order(id=1, x=2)",
        "try:\n    await pay(amount=10**400)\nexcept ToolError as error:\n    print(error)", ledger=ledger,
    )  # fmt: skip
    assert text_of(ran) == "3"
    assert [each["by"] for each in ran.calls[0]["calls"][0]["repairs"]] == ["fix"]
    assert ran.calls[1]["result"]["error"]["kind"] == "invalid_code"
    assert ran.result["repairs"] == 1


CODE_FAULTS = {
    "a wrong type": ("order = await get_order('x')", "line 1, column 25"),
    "a key that is not there": ("order = await get_order(1)\norder['sum']", "line 2, column 7"),
    "a call that is not awaited": ("get_order(1)", "not awaited"),
    "no Python": ("total = (", "line 1"),
    "an empty script": (" \n", "empty"),
    "a forbidden import": ("import socket", "socket"),
    "a unicode trick": ("\u202ex = 1", "line 1"),
    "an unknown name": ("await refunds(1)", "refunds"),
    "a script of 60 KB": ("x = 1\n" * 10_000, "50,000"),
    "a script of 1 MB": ("x = 1\n" * 170_000, "so it was not run"),
    "nesting": ("(" * 5_000, "nested"),
    "no code at all": (None, "code"),
}


@pytest.mark.parametrize("case", CODE_FAULTS, ids=str)
async def test_code_that_cannot_run_is_refused(lab_with_code: Lab, case: str) -> None:
    code, says = CODE_FAULTS[case]
    turn = script(code) if code is not None else call("run_code", "{}", "s")
    ran = await lab_with_code.run([turn, DONE], agent="coder")
    [result] = [each["result"] for each in ran.calls]
    is_code = code is not None and case != "a script of 1 MB"
    assert result["error"]["kind"] == ("invalid_code" if is_code else "invalid_arguments")
    assert says in result["text"]
    if code and len(code) < 100:
        assert case == "an empty script" or code.splitlines()[-1] in result["text"]
    assert ran.result["recovered_failures"] == 1


RUN_FAULTS = {
    "an endless loop": ("while True: pass", "tool_timeout", "ran too long"),
    "recursion": ("def f(n: int) -> int:\n    return f(n + 1)\nf(1)", "tool_exception", "RecursionError"),
    "1 GB of text": ("x = 'a' * 1_000_000_000", "tool_exception", "memory"),
    "endless output": ("for n in range(100_000):\n    print('a' * 1_000)", "tool_exception", "printed"),
    "endless calls": ("while True:\n    await note('a')", "tool_exception", "200"),
    "10,000 calls side by side": (
        "import asyncio\nawait asyncio.gather(*[note(str(n)) for n in range(10_000)])", "tool_exception", "200",
    ),
    "NaN from a tool": ("await nothing()", "tool_exception", "NaN"),
    "infinity as an argument": ("import json\nawait slow(json.loads('[1e999]')[0])", "tool_exception", "no number"),
    "a file": ("import pathlib\npathlib.Path('/etc/passwd').read_text()", "tool_exception", "Permission"),
    "a number too large to write": ("10**5_000", "tool_exception", "too large"),
    "a list that is 10^10 values": (
        "x = ['a']\nfor n in range(10):\n    x = [x] * 10\nx", "tool_exception", "1,000,000",
    ),
    "an exit": ("raise SystemExit(1)", "tool_exception", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", RUN_FAULTS, ids=str)
async def test_a_script_that_does_harm_ends_with_a_text(lab_with_code: Lab, case: str) -> None:
    code, kind, says = RUN_FAULTS[case]
    ran = await run(lab_with_code, code, "1 + 1")
    assert (ran.calls[0]["result"]["error"]["kind"], says in text_of(ran)) == (kind, True), text_of(ran)
    assert text_of(ran, 1) == "2"


async def test_a_code_fence_is_no_mistake(lab_with_code: Lab) -> None:
    ran = await run(lab_with_code, "```python\n1 + 1\n```")
    assert text_of(ran) == "2"


async def test_a_repeated_mistake_is_escalated(lab_with_code: Lab) -> None:
    ran = await run(lab_with_code, *["get_order(1)"] * 6)
    assert "You made this same call before" in text_of(ran, 1)
    assert ran.result["status"] == "max_repeats"


async def test_gather_runs_calls_side_by_side(lab_with_code: Lab, ledger: Path) -> None:
    """Results arrive in any order, and each goes to the call that it belongs to."""
    code = "import asyncio\nawait asyncio.gather(slow(0.6), slow(0.3), slow(0.0), note('x'))"
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran) == '[0.6, 0.3, 0.0, "noted x"]'
    assert [each["call_id"] for each in executions(ledger)][-2:] == ["s0.2", "s0.1"]
    assert [each["id"] for each in ran.calls[0]["calls"]] == ["s0.1", "s0.2", "s0.3", "s0.4"]


async def test_other_limits_of_tools_hold(lab_with_code: Lab, ledger: Path) -> None:
    code = (
        "await pay(5)\ntry:\n    await pay(5)\nexcept ToolError as error:\n    print(str(error)[:30])\n"
        "try:\n    await hang()\nexcept ToolError as error:\n    print(error)"
    )
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran).startswith("You made this call of `pay` be\n`hang` did not finish within 1 s")
    assert [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls[0]["calls"]] == [
        None, "duplicate_call", "tool_timeout",
    ]  # fmt: skip
    assert [each["tool"] for each in executions(ledger)] == ["pay", "hang"]


async def test_only_the_listed_tools_are_functions(lab_with_code: Lab) -> None:
    ran = await lab_with_code.run(
        [
            Turn(calls=[("note", '{"text": "a"}', "n"), ("get_order", '{"id": 1}', "g")]),
            script("await note('x')", "s"), script("for n in range(9):\n    await get_order(n)", "t"), DONE,
        ],
        agent="strict_coder",
    )  # fmt: skip
    assert [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls] == [
        None, "unknown_tool", "invalid_code", "tool_exception",
    ]  # fmt: skip
    assert sorted(each["function"]["name"] for each in json.loads(ran.requests[0].body)["tools"]) == [
        "note",
        "run_code",
    ]
    assert len(ran.calls[3]["calls"]) == 5


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


async def test_a_denial_raises(lab_with_code: Lab, ledger: Path) -> None:
    code = "try:\n    await refund(7)\nexcept ToolError as error:\n    print(error)"
    handle = await lab_with_code.start([script(code), DONE], agent="coder", metadata={"ledger": str(ledger)})
    await pending(handle)
    await handle.execute_update("decide", {"call_id": "s.1", "decision": "deny", "reason": "Too late.", "by": "Ada"})
    ran = await lab_with_code.look(handle)
    assert text_of(ran) == "`refund` was not run: Ada denied it: Too late.\n"
    assert executions(ledger) == []


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


@pytest.mark.parametrize("at", range(1, 6))
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


# Forks


async def test_a_fork_has_the_recorded_results_of_a_scripts_calls(lab_with_code: Lab, ledger: Path) -> None:
    code = "print((await get_order(1))['total'])\nprint(await pay(3))"
    ran = await run(lab_with_code, code, ledger=ledger)
    forked = await lab_with_code.look(await fork_run(lab_with_code.client, ran.id, at=1))
    assert text_of(forked) == text_of(ran)
    assert [each["recorded"] for each in forked.calls[0]["calls"]] == [True, True]
    assert len(executions(ledger)) == 2


async def test_events_name_the_calls_of_a_script(lab_with_code: Lab, ledger: Path) -> None:
    ran = await run(lab_with_code, "await get_order(-1)\nawait note('x')", ledger=ledger)
    events = (await ran.handle.query("events", args=[0, 1000]))["events"]
    of_calls = [(each["type"], each["call_id"]) for each in events if "call_id" in each]
    assert of_calls == [
        ("tool_call_started", "s0"),
        ("tool_call_repaired", "s0.1"), ("tool_call_started", "s0.1"), ("tool_call_settled", "s0.1"),
        ("tool_call_started", "s0.2"), ("tool_call_settled", "s0.2"),
        ("tool_call_settled", "s0"),
    ]  # fmt: skip


async def test_a_call_costs_at_most_twice_the_history_of_an_ordinary_one(lab_with_code: Lab) -> None:
    """Also with large values: the result of a call is in history once more, for the script."""
    for text in ("x", "x" * 3_000):
        sizes = []
        for calls in (2, 12):
            repeated = await run(lab_with_code, f"for n in range({calls}):\n    await note('{text}')")
            sizes.append(await size_of(lab_with_code, repeated))
        plain = []
        for calls in (2, 12):
            turns = [Turn(calls=[("note", json.dumps({"text": text}), f"n{n}")]) for n in range(calls)]
            plain.append(await size_of(lab_with_code, await lab_with_code.run([*turns, DONE], agent="strict_coder")))
        a_call, a_step = (sizes[1] - sizes[0]) / 10, (plain[1] - plain[0]) / 10
        assert a_call < 2 * a_step


async def size_of(at: Lab, ran: Ran) -> int:
    description = await at.client.get_workflow_handle(ran.id).describe()
    return description.raw_description.workflow_execution_info.history_size_bytes


# A script that is run again


async def test_a_script_that_is_run_again_at_each_part_goes_on(
    lab_with_code: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a worker that has nothing of it: side by side, with failures, in the recorded order, with large results."""
    monkeypatch.setattr(OpenScripts, "take", lambda *_: None)
    code = (
        "import asyncio\nasync def one(n: int) -> float:\n    await slow((3 - n) / 5)\n    return (await get_order(n))['total']\n"
        "print(await asyncio.gather(*[one(n) for n in range(3)]))\ntry:\n    await get_order(99)\nexcept ToolError:\n"
        "    print('failed')\nprint(len(await note('x' * 90_000)))"
    )
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran) == "[0.0, 10.0, 20.0]\nfailed\n90006\n"
    assert len(executions(ledger)) == 8 == len({each["call_id"] for each in executions(ledger)})


async def test_a_script_that_makes_other_calls_when_it_is_run_again_ends(
    lab_with_code: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model reads what has been done; nothing is done twice."""
    monkeypatch.setattr(OpenScripts, "take", lambda *_: None)
    monkeypatch.setattr(ScriptSession, "open", partial(_with_chance, ScriptSession.open))
    code = "import random\nawait note('first')\nawait note(str(random.random()))\nawait note('third')"
    ran = await run(lab_with_code, code, ledger=ledger)
    assert ran.calls[0]["result"]["error"]["kind"] == "tool_exception"
    assert "could not be continued" in text_of(ran)
    assert '1. note({"text": "first"}): noted first' in text_of(ran)
    assert [each["call_id"] for each in executions(ledger)] == ["s0.1", "s0.2"]


def _with_chance(open_session: Any, *args: Any, seed: str, **options: Any) -> ScriptSession:
    del seed
    session: ScriptSession = open_session(*args, seed=uuid.uuid4().hex, **options)
    return session


def _with_another_text(page: ScriptPage) -> None:
    page.calls[0].text = '{"id": 8, "total": 80.0}'


def _with_another_call(page: ScriptPage) -> None:
    page.calls[0].arguments = '{"id": 8}'


def _with_a_result_of_no_call(page: ScriptPage) -> None:
    page.delivered = [7 for _ in page.delivered]


def _without_a_result(page: ScriptPage) -> None:
    page.calls[0].text = None


@pytest.mark.parametrize(
    "tamper", [_with_another_text, _with_another_call, _with_a_result_of_no_call, _without_a_result]
)
async def test_recorded_results_that_were_tampered_with_end_the_script_with_a_text(
    lab_with_code: Lab, ledger: Path, monkeypatch: pytest.MonkeyPatch, tamper: Callable[[ScriptPage], None]
) -> None:
    """The run goes on, the model reads what had been done, and nothing is done twice."""
    read = run_script._read_page

    async def tampered(request: RunScript) -> ScriptPage:
        page = await read(request)
        if len(page.delivered) == 2:
            tamper(page)
        return page

    monkeypatch.setattr(OpenScripts, "take", lambda *_: None)
    monkeypatch.setattr(run_script, "_read_page", tampered)
    code = "order = await get_order(7)\nawait note(str(order['total']))\nawait note('third')"
    ran = await run(lab_with_code, code, "1 + 1", ledger=ledger)
    assert ran.calls[0]["result"]["error"]["kind"] == "tool_exception"
    assert "could not be continued" in text_of(ran)
    assert '2. note({"text": "70.0"}): noted 70.0' in text_of(ran)
    assert [each["call_id"] for each in executions(ledger)] == ["s0.1", "s0.2"]
    assert text_of(ran, 1) == "2"


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
