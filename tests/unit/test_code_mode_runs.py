"""Code mode without a server: what scripts may do, what models read of them, and scripts that are run again."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mulligan.activities.code_mode import run_script
from mulligan.activities.code_mode.open_scripts import OpenScripts
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.wire.code_mode import RunScript, ScriptPage
from mulligan.worker.loading import load
from tests.promise.test_people import pending
from tests.support.code_agents import executions
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.script_runs import run, script, text_of


@pytest.fixture(scope="module")
async def at(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.code_agents"])) as there:
        yield there


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


async def test_a_failed_call_raises_and_is_a_recovered_failure(at: MemoryLab, ledger: Path) -> None:
    """Caught or not, each has one ERROR span; a script that fails is one more, and the model reads the line."""
    caught = "try:\n    await get_order(99)\nexcept ToolError as error:\n    print('caught:', error)"
    ran = await run(at, caught, "print('before')\nawait get_order(99)", ledger=ledger)
    assert text_of(ran) == "caught: There is no order 99.\n"
    assert ran.calls[1]["result"]["error"]["kind"] == "tool_exception"
    assert text_of(ran, 1) == (
        "The script failed at line 2.\nline 2: await get_order(99)\nToolError: There is no order 99.\nIt had printed:\nbefore"
    )
    assert ran.result["recovered_failures"] == 3
    failed = [each for each in ran.spans_of("ai.toolCall") if each.status == "ERROR"]
    assert sorted(each.attributes["gen_ai.tool.call.id"] for each in failed) == ["s0.1", "s1", "s1.1"]
    assert all(each.attributes["mulligan.recovered"] for each in failed)


async def test_arguments_go_through_fixers_and_an_invalid_call_raises(at: MemoryLab, ledger: Path) -> None:
    ran = await run(
        at, "order = await get_order(-3)\norder['id']", "await get_order(id=1, x=2)",
        "try:\n    await pay(amount=10**400)\nexcept ToolError as error:\n    print(error)", ledger=ledger,
    )  # fmt: skip
    assert text_of(ran) == "3"
    assert [each["by"] for each in ran.calls[0]["calls"][0]["repairs"]] == ["fix"]
    assert ran.calls[1]["result"]["error"]["kind"] == "invalid_code"
    assert ran.result["repairs"] == 1


async def test_an_invalid_call_of_a_script_has_one_error_span(at: MemoryLab, ledger: Path) -> None:
    """Whose value only the script knew: no check of its types saw it."""
    wrong = "import json\ntry:\n    await pay(amount=json.loads('\"x\"'))\nexcept ToolError:\n    print('caught')"
    ran = await run(at, wrong, ledger=ledger)
    assert (text_of(ran), ran.result["recovered_failures"]) == ("caught\n", 1)
    assert executions(ledger) == []
    spans = ran.spans_of("ai.toolCall")
    [failed] = [each for each in spans if each.attributes["gen_ai.tool.call.id"] == "s0.1"]
    assert (failed.status, failed.attributes["mulligan.recovered"]) == ("ERROR", True)
    assert [each.status for each in spans if each is not failed] == ["UNSET"]


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
async def test_code_that_cannot_run_is_refused(at: MemoryLab, case: str) -> None:
    code, says = CODE_FAULTS[case]
    turn = script(code) if code is not None else call("run_code", "{}", "s")
    ran = await at.run([turn, DONE], agent="coder")
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
async def test_a_script_that_does_harm_ends_with_a_text(at: MemoryLab, case: str) -> None:
    code, kind, says = RUN_FAULTS[case]
    agent = "coder" if kind == "tool_timeout" else "patient_coder"
    ran = await run(at, code, "1 + 1", agent=agent)
    assert (ran.calls[0]["result"]["error"]["kind"], says in text_of(ran)) == (kind, True), text_of(ran)
    assert text_of(ran, 1) == "2"


async def test_a_code_fence_is_no_mistake(at: MemoryLab) -> None:
    ran = await run(at, "```python\n1 + 1\n```")
    assert text_of(ran) == "2"


async def test_a_repeated_mistake_is_escalated(at: MemoryLab) -> None:
    ran = await run(at, *["get_order(1)"] * 6)
    assert "You made this same call before" in text_of(ran, 1)
    assert ran.result["status"] == "max_repeats"


async def test_other_limits_of_tools_hold(at: MemoryLab, ledger: Path) -> None:
    code = (
        "await pay(5)\ntry:\n    await pay(5)\nexcept ToolError as error:\n    print(str(error)[:30])\n"
        "try:\n    await hang()\nexcept ToolError as error:\n    print(error)"
    )
    ran = await run(at, code, ledger=ledger)
    assert text_of(ran).startswith("You made this call of `pay` be\n`hang` did not finish within 1 s")
    assert [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls[0]["calls"]] == [
        None, "duplicate_call", "tool_timeout",
    ]  # fmt: skip
    assert [each["tool"] for each in executions(ledger)] == ["pay", "hang"]


async def test_only_the_listed_tools_are_functions(at: MemoryLab) -> None:
    ran = await at.run(
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


async def test_a_denial_raises(at: MemoryLab, ledger: Path) -> None:
    code = "try:\n    await refund(7)\nexcept ToolError as error:\n    print(error)"
    handle = await at.start([script(code), DONE], agent="coder", metadata={"ledger": str(ledger)})
    await pending(handle)
    await handle.execute_update("decide", {"call_id": "s.1", "decision": "deny", "reason": "Too late.", "by": "Ada"})
    ran = await at.look(handle)
    assert text_of(ran) == "`refund` was not run: Ada denied it: Too late.\n"
    assert executions(ledger) == []


async def test_events_name_the_calls_of_a_script(at: MemoryLab, ledger: Path) -> None:
    ran = await run(at, "await get_order(-1)\nawait note('x')", ledger=ledger)
    events = (await ran.handle.query("events", args=[0, 1000]))["events"]
    of_calls = [(each["type"], each["call_id"]) for each in events if "call_id" in each]
    assert of_calls == [
        ("tool_call_started", "s0"),
        ("tool_call_repaired", "s0.1"), ("tool_call_started", "s0.1"), ("tool_call_settled", "s0.1"),
        ("tool_call_started", "s0.2"), ("tool_call_settled", "s0.2"),
        ("tool_call_settled", "s0"),
    ]  # fmt: skip


async def test_a_script_that_is_run_again_at_each_part_goes_on(
    at: MemoryLab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a worker that has nothing of it: side by side, with failures, in the recorded order, with large results."""
    monkeypatch.setattr(OpenScripts, "take", lambda *_: None)
    code = (
        "import asyncio\nasync def one(n: int) -> float:\n    await slow((3 - n) / 5)\n    return (await get_order(n))['total']\n"
        "print(await asyncio.gather(*[one(n) for n in range(3)]))\ntry:\n    await get_order(99)\nexcept ToolError:\n"
        "    print('failed')\nprint(len(await note('x' * 90_000)))"
    )
    ran = await run(at, code, ledger=ledger)
    assert text_of(ran) == "[0.0, 10.0, 20.0]\nfailed\n90006\n"
    assert len(executions(ledger)) == 8 == len({each["call_id"] for each in executions(ledger)})


async def test_a_script_that_makes_other_calls_when_it_is_run_again_ends(
    at: MemoryLab, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model reads what has been done; nothing is done twice."""
    monkeypatch.setattr(OpenScripts, "take", lambda *_: None)
    monkeypatch.setattr(ScriptSession, "open", partial(_with_chance, ScriptSession.open))
    code = "import random\nawait note('first')\nawait note(str(random.random()))\nawait note('third')"
    ran = await run(at, code, ledger=ledger)
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
    at: MemoryLab, ledger: Path, monkeypatch: pytest.MonkeyPatch, tamper: Callable[[ScriptPage], None]
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
    ran = await run(at, code, "1 + 1", ledger=ledger)
    assert ran.calls[0]["result"]["error"]["kind"] == "tool_exception"
    assert "could not be continued" in text_of(ran)
    assert '2. note({"text": "70.0"}): noted 70.0' in text_of(ran)
    assert [each["call_id"] for each in executions(ledger)] == ["s0.1", "s0.2"]
    assert text_of(ran, 1) == "2"
