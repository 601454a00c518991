"""Random scripts in their interpreter: what their worker gets of them is bounded, and each ends with a result or a failure."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from mulligan.activities.code_mode import interpreter_process, interpreter_template, script_session
from mulligan.activities.code_mode.interpreter import ALL_ARGUMENTS_CHARS, OUTPUT_CHARS
from mulligan.activities.code_mode.interpreter_child import TOO_LARGE
from mulligan.activities.code_mode.interpreter_process import InterpreterLost, InterpreterProcess
from mulligan.activities.code_mode.script_error import ScriptError
from mulligan.activities.code_mode.script_function import ScriptFunction
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.activities.tool_running.process_tree import processes_below
from tests.fuzz.script_values import run_hostile_script, scripts

MOST_BYTES = 4 * (2 * OUTPUT_CHARS + ALL_ARGUMENTS_CHARS)
"""Of a script that prints, returns and calls as much as it may."""
received: list[int] = []
_ask = InterpreterProcess.ask


def _measured(process: InterpreterProcess, message: bytes, seconds: float) -> bytes:
    answer = _ask(process, message, seconds)
    received.append(len(answer))
    return answer


@pytest.fixture(autouse=True, scope="module")
def measured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterProcess, "ask", _measured)
        yield


def run(code: str, *, timeout: float = 60, stubs: str | None = None) -> ScriptSession | ScriptError:
    """Run a script until it waits or has ended; returns how it has failed, if it has."""
    functions = {"f": ScriptFunction("f", ["x"])}
    received.clear()
    session = ScriptSession.open(None, functions, max_calls=100, timeout=timeout, seed="s", stubs=stubs)
    try:
        session.start(code)
    except ScriptError as error:
        return error
    finally:
        session.close()
    return session


@settings(max_examples=12, deadline=None, suppress_health_check=[*HealthCheck])
@given(scripts())
def test_any_script_ends_with_a_result_or_a_failure_and_its_worker_gets_little_of_it(code: str) -> None:
    received.clear()
    run_hostile_script(code)
    assert sum(received) <= MOST_BYTES


SLOW_TO_READ = {
    "a tuple whose hash takes hours": "x = (1,)\nfor n in range(60):\n    x = (x, x)\n{x}",
    "a key whose hash takes hours": "x = (1,)\nfor n in range(60):\n    x = (x, x)\nawait f({x: 1})",
    "calls without end that are refused": "x = [0] * 249_000\nwhile True:\n    try:\n        await f(x)\n    except TypeError:\n        pass",
    "a multiplication that is not interrupted": "x = 3\nfor n in range(40):\n    x = x * x",
}  # fmt: skip


@pytest.mark.parametrize("case", SLOW_TO_READ)
def test_the_time_of_the_host_is_the_scripts(case: str) -> None:
    ended = run(SLOW_TO_READ[case], timeout=1)
    assert isinstance(ended, ScriptError)
    assert ended.kind == "tool_timeout"


def test_checking_types_is_the_scripts_time() -> None:
    branches = "".join(f"if random.random() > 0.5:\n    x = (x, {n})\n" for n in range(300))
    ended = run(f"import random\nx = 0\n{branches}y: int = x", timeout=1, stubs="")
    assert isinstance(ended, ScriptError)
    assert ended.kind == "tool_timeout"


TOO_MUCH = [
    "raise ValueError('a' * 100_000_000)",
    "'a' * 100_000_000",
    "b'a' * 100_000_000",
    "['a' * 1_000 + str(n) for n in range(90_000)]",
    "await f('a' * 100_000_000)",
    "print('a' * 100_000_000)",
    "while True:\n    print('a' * 1_000)",
]


@pytest.mark.parametrize("code", TOO_MUCH)
def test_what_is_too_large_does_not_reach_the_worker(code: str) -> None:
    ended = run(code)
    assert isinstance(ended, ScriptError)
    assert ended.kind == "tool_exception"
    assert sum(received) <= 4 * OUTPUT_CHARS


def test_large_integers_are_measured_as_they_are_written() -> None:
    assert "1,000,000 characters" in str(run("[10**1200] * 499_000"))
    assert "1,000,000 characters" in str(run("({1}, [10**1200] * 499_000)"))


def test_all_arguments_of_a_script_together_are_bounded() -> None:
    ended = run("import asyncio\nx = 'a' * 400_000\nawait asyncio.gather(*(f(x) for n in range(90)))")
    assert "10,000,000 characters" in str(ended)


def test_nothing_runs_on_after_a_script() -> None:
    without_template()  # and without the scripts that other tests of this process have left waiting
    run("1")  # the template has begun
    template = interpreter_process._template
    assert template is not None
    _wait_for(0, template.process.pid)
    sessions = [ScriptSession.open(None, {}, max_calls=1, timeout=60, seed="s", stubs=None) for _ in range(3)]
    threads = [threading.Thread(target=lambda each=each: ended(each), daemon=True) for each in sessions[:2]]
    for thread in threads:
        thread.start()
    _wait_for(6, template.process.pid)  # each has its interpreter and Monty's process
    for each in sessions:
        each.close()
    for thread in threads:
        thread.join()
    _wait_for(0, template.process.pid)


def _wait_for(count: int, template: int) -> None:
    until = time.monotonic() + 50
    while len(below := processes_below(template)) != count:
        assert time.monotonic() < until, f"{len(below)} processes where {count} are expected: {_states(below)}"
        time.sleep(0.01)


def _states(processes: list[int]) -> list[str]:
    return [Path(f"/proc/{each}/stat").read_text() for each in processes if Path(f"/proc/{each}").exists()]


def ended(session: ScriptSession) -> None:
    with pytest.raises(ScriptError):
        session.start("while True:\n    pass")


def test_a_template_that_was_killed_is_replaced() -> None:
    run("1")
    template = interpreter_process._template
    assert template is not None
    template.process.kill()
    template.process.wait()
    after = run("1")
    assert isinstance(after, ScriptSession)
    assert after.value == "1"


def test_a_waiting_script_that_holds_much_leaves_the_memory() -> None:
    functions = {"f": ScriptFunction("f", ["x"])}
    session = ScriptSession.open(None, functions, max_calls=1, timeout=60, seed="s", stubs=None)
    session.start("x = 'a' * 100_000_000\nawait f(1)")
    assert 100_000_000 < session.memory < 300_000_000
    session.close()


def test_arguments_of_calls_count_as_memory_of_a_waiting_script() -> None:
    functions = {"f": ScriptFunction("f", ["x"])}
    session = ScriptSession.open(None, functions, max_calls=9, timeout=60, seed="s", stubs=None)
    session.start("import asyncio\nx = '\U0001f600' * 499_000\nawait asyncio.gather(*(f(x) for n in range(9)))")
    assert session.memory > 9 * 4 * 499_000
    session.close()


def without_template() -> None:
    """The next script is the first one."""
    if interpreter_process._template is not None:
        interpreter_process._template.end()
        interpreter_process._template = None


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
def test_a_process_that_the_worker_forks_keeps_no_script_alive() -> None:
    session = ScriptSession.open(None, {}, max_calls=1, timeout=60, seed="s", stubs=None)
    template = interpreter_process._template
    assert template is not None
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    forked.start()  # as a tool may do
    try:
        session.close()
        until = time.monotonic() + 30
        while processes_below(template.process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        assert not processes_below(template.process.pid)
    finally:
        forked.kill()
        forked.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
def test_a_process_that_the_worker_forks_ends_no_script_of_the_workers() -> None:
    session = ScriptSession.open(None, {}, max_calls=1, timeout=60, seed="s", stubs=None)
    forked = multiprocessing.get_context("fork").Process(target=session.close)
    forked.start()
    forked.join()
    session.start("1")
    assert session.value == "1"
    session.close()


def test_a_template_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    run("1")
    template = interpreter_process._template
    assert template is not None
    monkeypatch.setattr(script_session, "OPEN_SECONDS", 1.0)
    monkeypatch.setattr(interpreter_process, "END_SECONDS", 0.1)
    os.kill(template.process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        run("1")
    monkeypatch.undo()
    assert isinstance(run("1"), ScriptSession)


def test_where_no_process_can_be_forked_the_other_scripts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (worker, theirs), (life, its_life) = socket.socketpair(), socket.socketpair()

    def fork() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", fork)
    with worker, life:
        assert not interpreter_template._begun(worker, {}, theirs, its_life)
        assert (worker.recv(1), life.recv(1)) == (b"", b"")


def test_why_an_interpreter_did_not_start_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_template()
    monkeypatch.setenv("MONTY_BIN", "/no/such/program")
    with pytest.raises(InterpreterLost):
        run("1")
    without_template()
    assert "/no/such/program" in capfd.readouterr().err


def test_a_search_path_with_other_objects_than_texts_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    without_template()
    monkeypatch.setattr(sys, "path", [Path("/tmp"), *sys.path])
    assert isinstance(run("1"), ScriptSession)


def test_types_that_the_interpreter_cannot_read_are_not_checked() -> None:
    union = " | ".join(f"list[T{n}]" for n in range(300))
    ended = run("await f(1)", stubs=f"async def f(x: {union}) -> int: ...\n")
    assert isinstance(ended, ScriptSession)
    assert len(ended.calls) == 1


def test_a_model_is_told_that_what_a_script_raises_was_too_large() -> None:
    assert str(run("raise ValueError('a' * 80_000_000)")) == TOO_LARGE
