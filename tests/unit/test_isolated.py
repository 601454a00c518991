"""Child processes: what they run ends when its time is over, whatever it does, and takes no more than it may."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mulligan import DeclarationError, tool
from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.render_result import UnusableResult
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.tool import reference_of
from tests.support import isolated_functions as functions


def name_of(function: Any) -> str:
    name = reference_of(function)
    assert name is not None
    return name


MUCH = 60.0
"""Seconds: more than any of the functions takes that ends."""


@pytest.fixture(scope="module")
async def children() -> AsyncIterator[ChildProcesses]:
    children = ChildProcesses(most=2)
    yield children
    await children.close()


async def test_a_result_is_rendered_as_the_model_will_read_it(children: ChildProcesses) -> None:
    assert await children.run(name_of(functions.add), (1,), {"two": 2}, limit=MUCH) == "3"
    assert await children.run(name_of(functions.add_later), (1, 2), limit=MUCH) == "3"


async def test_each_call_has_a_process_of_its_own_in_which_nothing_of_another_call_is_left(
    children: ChildProcesses,
) -> None:
    counts = [await children.run(name_of(functions.count_calls), limit=MUCH) for _ in range(3)]
    assert counts == ["1", "1", "1"]
    ids = {await children.run(name_of(functions.process_id), limit=MUCH) for _ in range(3)}
    assert len(ids) == 3
    assert str(os.getpid()) not in ids


async def test_a_module_that_leaves_threads_is_imported_by_each_call(children: ChildProcesses) -> None:
    """A fork would have none of the threads, but the locks that they had."""
    assert await children.run(name_of(functions.imported_here), limit=MUCH) == "false"
    for _ in range(2):
        assert await children.run("tests.support.thread_at_import:imported_here", limit=MUCH) == "true"


async def test_a_module_that_cannot_be_imported_is_an_error_of_the_call(children: ChildProcesses) -> None:
    for _ in range(2):
        with pytest.raises(LookupError, match="not without a key"):
            await children.run("tests.support.fails_at_import:anything", limit=MUCH)


RESPONSES = [
    *(b"", b"{", b"[]", b"{}", b"[" * 100_000, b"\xff"),
    *(b'{"text": 5}', b'{"parts": 5}', b'{"raised": 5}', b'{"died": {}}', b'{"raised": [], "message": 1}'),
    b'{"raised": ["a:\\u0000", "sys:exit", "", "a.b:c.d"], "message": "own"}',
]


@pytest.mark.parametrize("response", RESPONSES)
async def test_a_response_may_be_anything(children: ChildProcesses, response: bytes) -> None:
    """The call's process may write what it likes, and the worker takes it for no more than a failure of that call."""
    with pytest.raises(Exception, match=r"not a response|^own$|valid list"):
        await children.run_tool(name_of(functions.writes_response), (response,), limit=MUCH)


async def test_a_call_cannot_answer_for_the_next_one(children: ChildProcesses) -> None:
    assert await children.run(name_of(functions.answers_twice), limit=MUCH) == "first"
    assert await children.run(name_of(functions.add), (1, 2), limit=MUCH) == "3"


@pytest.mark.parametrize("function", [functions.backtracks, functions.sorts_in_c], ids=lambda it: it.__name__)
async def test_code_that_never_returns_to_python_is_ended_at_its_limit(
    children: ChildProcesses, function: object
) -> None:
    with pytest.raises(TookTooLong):
        await children.run(name_of(function), limit=0.5)
    assert await children.run(name_of(functions.add), (1, 2), limit=MUCH) == "3"


@pytest.mark.parametrize("function", [functions.takes_memory, functions.takes_memory_in_c], ids=lambda it: it.__name__)
async def test_a_call_gets_no_more_memory_than_its_limit(children: ChildProcesses, function: object) -> None:
    with pytest.raises(ProcessDied, match="512 MB"):
        await children.run(name_of(function), limit=MUCH)


async def test_an_exception_keeps_its_name_its_message_and_its_base_classes(children: ChildProcesses) -> None:
    with pytest.raises(functions.OwnError) as own:
        await children.run(name_of(functions.raises_own), limit=MUCH)
    assert (type(own.value).__name__, str(own.value)) == ("OwnError", "own words")
    with pytest.raises(OSError, match="no such file") as known:
        await children.run(name_of(functions.raises_known), limit=MUCH)
    assert type(known.value).__name__ == "FileNotFoundError"
    with pytest.raises(Exception, match="over") as says_exit:
        await children.run(name_of(functions.says_exit), limit=MUCH)
    assert type(says_exit.value).__name__ == "SystemExit"
    with pytest.raises(Exception, match="final words") as final:
        await children.run(name_of(functions.raises_what_has_no_subclasses), limit=MUCH)
    assert type(final.value).__name__ == "Final"
    with pytest.raises(UnusableResult, match="refers to itself"):
        await children.run(name_of(functions.circular), limit=MUCH)


@pytest.mark.parametrize(
    ("function", "how"), [(functions.exits, "exited with code 3"), (functions.crashes, "killed by SIGSEGV")]
)
async def test_a_process_that_ends_is_an_error_that_says_how(
    children: ChildProcesses, function: object, how: str
) -> None:
    with pytest.raises(ProcessDied, match=how):
        await children.run(name_of(function), limit=MUCH)
    assert await children.run(name_of(functions.add), (1, 2), limit=MUCH) == "3"


async def test_output_of_an_isolated_tool_is_not_in_its_result(children: ChildProcesses) -> None:
    assert await children.run(name_of(functions.prints), limit=MUCH) == "ok"


async def test_a_long_result_is_cut_in_the_child(children: ChildProcesses) -> None:
    text = await children.run(name_of(functions.long_text), (10_000_000,), limit=MUCH, max_chars=1_000)
    assert len(text) <= 1_200


async def test_the_size_of_files_written_by_an_isolated_tool_is_limited(
    children: ChildProcesses, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="large"):
        await children.run(name_of(functions.writes_a_large_file), (str(tmp_path / "f"),), limit=MUCH)


async def test_no_more_isolated_calls_run_at_once_than_the_limit(tmp_path: Path) -> None:
    """Each call writes a file, and removes it at its end: none finds another one's."""
    children = ChildProcesses(most=1)
    try:
        calls = (children.run(name_of(functions.is_alone), (str(tmp_path),), limit=MUCH) for _ in range(5))
        assert await asyncio.gather(*calls) == ["true"] * 5
    finally:
        await children.close()


def test_an_isolated_tool_that_no_other_process_can_find_is_refused() -> None:
    def inner() -> None: ...

    for function in (inner, lambda: None):
        with pytest.raises(DeclarationError, match="top level of a module"):
            tool(name="inner", isolated=True)(function)


def test_an_isolated_tool_with_a_context_is_refused() -> None:
    with pytest.raises(DeclarationError, match="without a ToolContext"):
        tool(isolated=True)(functions.takes_a_context)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"isolated_env": ["NAME"]}, "isolated_env is an option of isolated tools: add isolated=True"),
        ({"isolated": True, "isolated_env": "NAME"}, "isolated_env must be a list of names"),
        ({"isolated": True, "isolated_env": ["A B"]}, "isolated_env must be a list of names"),
        ({"isolated": True, "isolated_env": ["--A"]}, "isolated_env must be a list of names"),
        ({"isolated": True, "isolated_env": ["A=1"]}, "isolated_env must be a list of names"),
        ({"isolated": True, "isolated_env": [""]}, "isolated_env must be a list of names"),
        ({"isolated": True, "isolated_env": [5]}, "isolated_env must be a list of names"),
        ({"isolated": True, "isolated_env": None}, "isolated_env must be a list of names"),
    ],
)
def test_an_environment_that_no_call_can_have_is_refused(options: Any, fault: str) -> None:
    with pytest.raises(DeclarationError, match=fault):
        tool(**options)(functions.add)
    assert tool(isolated=True, isolated_env=["NAME", "-OTHER"])(functions.add).isolated_env == ("NAME", "-OTHER")
