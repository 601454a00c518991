"""Isolated calls end with all that they have started, however they end, and disturb no other call."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from mulligan.activities.tool_running import isolated
from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.process_tree import processes_below
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from tests.support import outliving_calls as functions
from tests.support.outliving_calls import ENDINGS, WAYS, processes_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the call's process group ends with it")

MODULE = functions.__name__
MUCH = 100.0
"""Seconds: more than any of the calls takes that ends."""
SILENT = {"kills_its_parent", "kills_template", "closes_descriptors", "writes_to_descriptors"}
"""Ways after which the worker cannot get the call's own answer."""


@pytest.fixture(scope="module")
async def children() -> AsyncIterator[ChildProcesses]:
    children = ChildProcesses(most=3, memory_bytes=200_000_000)
    yield children
    await children.close()


def new_mark() -> str:
    return f"call-{uuid4().hex[:8]}"


def is_expected(outcome: str | BaseException, mark: str, way: str, ending: str) -> bool:
    if isinstance(outcome, ProcessDied) and (way in SILENT or ending == "takes_memory"):
        return True
    match ending:
        case "returns":
            return outcome == mark
        case "raises":
            return isinstance(outcome, LookupError) and str(outcome) == mark
        case "hangs":
            return isinstance(outcome, TookTooLong)
    return False


async def faults_of_a_call(children: ChildProcesses, way: str, ending: str, folder: Path) -> list[object]:
    """What is wrong after a call that would be outlived: its outcome, what is left of it, and the next call's answer."""
    mark, other = new_mark(), new_mark()
    call = children.run(
        f"{MODULE}:call", (mark, way, ending, str(folder / mark)), limit=0.5 if ending == "hangs" else MUCH
    )
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    left = processes_of(mark)
    answer = await children.run(f"{MODULE}:echo", (other,), limit=MUCH)
    is_right = is_expected(outcome, mark, way, ending) and not left and answer == other
    return [] if is_right else [(way, ending, outcome, left, answer == other)]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_nothing_is_left_of_a_call_when_it_has_ended(
    children: ChildProcesses, ending: str, tmp_path: Path
) -> None:
    """All ways to outlive a call, several at once, each followed by a call that has to get its own answer."""
    ways = WAYS.keys() - {"kills_template"}
    all_faults = await asyncio.gather(*(faults_of_a_call(children, way, ending, tmp_path) for way in ways))
    assert [fault for faults in all_faults for fault in faults] == []


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_call_that_kills_its_template_ends_too(children: ChildProcesses, ending: str, tmp_path: Path) -> None:
    assert await faults_of_a_call(children, "kills_template", ending, tmp_path) == []


async def test_a_call_that_stops_its_supervisor_ends_too(
    children: ChildProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "PATIENCE_SECONDS", 0.5)
    mark = new_mark()
    with pytest.raises(TookTooLong):
        await children.run(f"{MODULE}:stop_supervisor", (mark,), limit=0.5)
    assert processes_of(mark) == []
    assert await children.run(f"{MODULE}:echo", ("next",), limit=MUCH) == "next"


async def test_a_template_that_a_call_has_stopped_is_replaced(
    children: ChildProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "PATIENCE_SECONDS", 0.5)
    mark = new_mark()
    with suppress(TookTooLong, ProcessDied):
        await children.run(f"{MODULE}:stop_template", (mark,), limit=MUCH)
    assert processes_of(mark) == []
    for text in ("next", "after it"):
        assert await children.run(f"{MODULE}:echo", (text,), limit=MUCH) == text


async def test_running_calls_end_when_the_worker_closes(tmp_path: Path) -> None:
    children, marks = ChildProcesses(most=len(WAYS)), {new_mark(): way for way in WAYS.keys() - SILENT}
    calls = [
        asyncio.create_task(children.run(f"{MODULE}:call", (mark, way, "hangs", str(tmp_path / mark)), limit=MUCH))
        for mark, way in marks.items()
    ]
    await until_all_exist(tmp_path, marks)
    await children.close()
    assert {way: left for mark, way in marks.items() if (left := processes_of(mark))} == {}
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ProcessDied}


async def until_all_exist(folder: Path, marks: dict[str, str]) -> None:
    while not all((folder / mark).exists() for mark in marks):
        await asyncio.sleep(0.02)


async def test_running_calls_end_when_the_worker_is_killed(tmp_path: Path) -> None:
    marks = {new_mark(): way for way in WAYS.keys() - SILENT}
    arguments = [(mark, way, "hangs", str(tmp_path / mark)) for mark, way in marks.items()]
    program = f"""
import asyncio
import signal
from mulligan.activities.tool_running.isolated import ChildProcesses
async def main():
    children = ChildProcesses(most=100)
    await asyncio.gather(*(children.run({MODULE + ":call"!r}, each, limit={MUCH}) for each in {arguments!r}))
asyncio.run(main())
"""
    folder = tmp_path / "temporary"
    folder.mkdir()
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env={"TMPDIR": str(folder), "PYTHONPATH": ":".join(sys.path)}
    )
    await until_all_exist(tmp_path, marks)
    (template,) = [process for process in processes_below(worker.pid) if parent_of(process) == worker.pid]
    worker.kill()
    await worker.wait()
    while any(processes_of(mark) for mark in marks) or parent_of(template) is not None or any(folder.iterdir()):
        await asyncio.sleep(0.02)
    assert worker.returncode == -signal.SIGKILL


def parent_of(process: int) -> int | None:
    """The id of a process's parent; None if the process has ended."""
    try:
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)


async def test_a_call_that_is_cancelled_ends(children: ChildProcesses, tmp_path: Path) -> None:
    mark = new_mark()
    arguments = (mark, "new_session", "hangs", str(tmp_path / mark))
    call = asyncio.create_task(children.run(f"{MODULE}:call", arguments, limit=MUCH))
    await until_all_exist(tmp_path, {mark: ""})
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert processes_of(mark) == []


@pytest.mark.parametrize(
    "take",
    [
        functions.share_memory,
        functions.share_files_of_memory,
        functions.share_named_memory,
        functions.take_in_forks,
        functions.take_in_orphans,
        functions.take_in_programs,
    ],
    ids=lambda take: take.__name__,
)
async def test_all_memory_of_all_processes_of_a_call_counts(children: ChildProcesses, take: object) -> None:
    with pytest.raises(ProcessDied, match="200 MB"):
        await children.run(f"{MODULE}:{getattr(take, '__name__', '')}", (400,), limit=MUCH)


async def test_a_call_has_no_more_processes_than_it_may(children: ChildProcesses) -> None:
    with pytest.raises(ProcessDied, match="more than the 64 processes"):
        await children.run(f"{MODULE}:start_many", (70,), limit=MUCH)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files. pytest itself cannot remove folders that are nested as deeply as those of a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    subprocess.run(["rm", "-rf", "--", str(tmp_path)], check=True)


@pytest.mark.parametrize("folders", [0, 1, 2_000])
async def test_temporary_files_are_removed_with_their_call(folders: int, temporary: Path) -> None:
    children = ChildProcesses()
    top = Path(await children.run(f"{MODULE}:write_files", (folders, False), limit=MUCH))
    assert top.is_relative_to(temporary)
    assert not top.exists()
    with pytest.raises(TookTooLong):
        await children.run(f"{MODULE}:write_files", (folders, True), limit=0.5)
    assert list(top.parent.iterdir()) == []
    await children.close()
    assert list(temporary.iterdir()) == []
