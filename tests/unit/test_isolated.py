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
from mulligan.activities.tool_running.tool_runtime import TookTooLong
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


async def test_a_child_serves_one_call_after_the_other(children: ChildProcesses) -> None:
    ids = {await children.run(name_of(functions.process_id), limit=MUCH) for _ in range(3)}
    assert len(ids) == 1
    assert ids != {str(os.getpid())}


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


async def test_processes_started_by_an_isolated_tool_end_with_it(children: ChildProcesses, tmp_path: Path) -> None:
    file = tmp_path / "id"
    with pytest.raises(TookTooLong):
        await children.run(name_of(functions.starts_a_process), (str(file),), limit=5)
    process_id = int(file.read_text())
    for _ in range(100):
        if not _runs(process_id):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the grandchild still runs")


def _runs(process_id: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def test_the_size_of_files_written_by_an_isolated_tool_is_limited(
    children: ChildProcesses, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="large"):
        await children.run(name_of(functions.writes_a_large_file), (str(tmp_path / "f"),), limit=MUCH)


async def test_no_more_isolated_calls_run_at_once_than_the_limit() -> None:
    children = ChildProcesses(most=1)
    try:
        ids = await asyncio.gather(*(children.run(name_of(functions.process_id), limit=MUCH) for _ in range(3)))
        assert len(set(ids)) == 1
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
