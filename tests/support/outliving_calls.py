"""Calls that start something which would outlive them, or that disturb what ends them; and how such a call itself ends.

A process that belongs to a call has the call's mark as its name or in its command line (`processes_of`).
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_PTRACE_TRACEME = 0
_C: Any = ctypes.CDLL(None)


def processes_of(mark: str) -> list[int]:
    """The ids of processes that run or are stopped, and have the mark."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            marked = (folder / "comm").read_text().strip() == mark or mark.encode() in (folder / "cmdline").read_bytes()
            if marked and state not in "ZX":
                ids.append(int(folder.name))
    return ids


def call(mark: str, way: str, ending: str, ready: str) -> str:
    """Start what would outlive this call, write the file `ready`, and end."""
    _C.prctl(_PR_SET_NAME, mark.encode(), 0, 0, 0)
    WAYS[way](mark)
    Path(ready).touch()
    return ENDINGS[ending](mark)


def echo(text: str) -> str:
    return text


def write_files(folders: int, hangs: bool) -> str:
    """Write files in the folder for temporary ones, at the bottom of folders in each other; the folder's name."""
    top = tempfile.gettempdir()
    assert os.environ["TMPDIR"] == top
    os.chdir(top)
    for _ in range(folders):
        os.mkdir("folder")
        os.chdir("folder")
    Path("file").write_text("some text")
    if hangs:
        _sleep()
    return top


def _sleep() -> None:
    while True:
        time.sleep(600)


def _forked(run: Callable[[], object]) -> int:
    """A child process that runs a function until it is killed."""
    process = os.fork()
    if process == 0:
        try:
            run()
            _sleep()
        finally:
            os._exit(0)
    return process


def _thread(_: str) -> None:
    threading.Thread(target=_sleep).start()


def _daemon_thread(_: str) -> None:
    threading.Thread(target=_sleep, daemon=True).start()


def _fork(_: str) -> None:
    _forked(lambda: None)


def _double_fork(_: str) -> None:
    def middle() -> None:
        os.setsid()
        _forked(lambda: None)
        os._exit(0)

    os.waitpid(_forked(middle), 0)


def _program(mark: str) -> list[str]:
    return [sys.executable, "-S", "-c", "import time; time.sleep(600)", mark]


def _new_session(mark: str) -> None:
    subprocess.Popen(_program(mark), start_new_session=True)


def _spawn(mark: str) -> None:
    os.posix_spawn(sys.executable, _program(mark), os.environ, setpgroup=0)


def _ignores_signals(_: str) -> None:
    def ignore() -> None:
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)

    _forked(ignore)


def _stopped(_: str) -> None:
    os.waitpid(_forked(lambda: os.kill(os.getpid(), signal.SIGSTOP)), os.WUNTRACED)


def _traced(_: str) -> None:
    def trace() -> None:
        _C.ptrace(_PTRACE_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)

    os.waitpid(_forked(trace), 0)


def _forks_on(_: str) -> None:
    """Each process of a chain starts the next one in a session of its own, and ends."""

    def chain() -> None:
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()

    _forked(chain)


def _wakes_others(_: str) -> None:
    """A process that lets stopped processes of the call go on, for ever."""
    others = [os.getpid(), _forked(lambda: None)]

    def wake() -> None:
        while True:
            for other in others:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGCONT)

    _forked(wake)


def _adopts(_: str) -> None:
    """A process that its descendants get as their parent, in place of the supervisor."""

    def adopt() -> None:
        os.setsid()
        _C.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _double_fork("")

    _forked(adopt)


def _kills_its_parent(mark: str) -> None:
    _C.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    _new_session(mark)
    os.kill(os.getppid(), signal.SIGKILL)


def _stops_its_parent(mark: str) -> None:
    _new_session(mark)
    os.kill(os.getppid(), signal.SIGSTOP)


def kills_template(mark: str) -> None:
    """Kill the parent's parent."""
    _new_session(mark)
    os.kill(_grandparent(), signal.SIGKILL)


def _grandparent() -> int:
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def _closes_descriptors(_: str) -> None:
    _forked(lambda: None)  # it has the descriptors still
    os.closerange(3, 256)


def _writes_to_descriptors(_: str) -> None:
    for descriptor in range(3, 256):
        with suppress(OSError):
            os.write(descriptor, b"\0" * 7 + b'\x10{"text": "forge')


WAYS: dict[str, Callable[[str], None]] = {
    way.__name__.strip("_"): way
    for way in (
        *(_thread, _daemon_thread, _fork, _double_fork, _new_session, _spawn, _ignores_signals, _stopped, _traced),
        *(_forks_on, _wakes_others, _adopts, _kills_its_parent, _closes_descriptors, _writes_to_descriptors),
        kills_template,
    )
}


def _returns(mark: str) -> str:
    return mark


def _raises(mark: str) -> str:
    raise LookupError(mark)


def _hangs(_: str) -> str:
    _sleep()
    return ""


def _takes_memory(_: str) -> str:
    share_memory(400)
    _sleep()
    return ""


ENDINGS: dict[str, Callable[[str], str]] = {
    ending.__name__.strip("_"): ending for ending in (_returns, _raises, _hangs, _takes_memory)
}


def stop_template(mark: str) -> None:
    """Stop the template, so that nobody says that the call has ended."""
    _new_session(mark)
    os.kill(_grandparent(), signal.SIGSTOP)


def stop_supervisor(mark: str) -> None:
    """Stop the call's supervisor, so that nothing ends the call but its template."""
    _stops_its_parent(mark)
    _sleep()


def share_memory(megabytes: int) -> mmap.mmap:
    """Take shared anonymous memory, as the functions below do in other ways."""
    memory = mmap.mmap(-1, megabytes * 1_000_000)
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
    return memory


def share_files_of_memory(megabytes: int) -> None:
    """Take memory that has file descriptors, each with less than the limit of a file."""
    memories = []
    for _ in range(megabytes // 100):
        descriptor = os.memfd_create("file")
        os.ftruncate(descriptor, 100_000_000)
        memories.append(mmap.mmap(descriptor, 100_000_000))
    for memory in memories:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    _sleep()


def share_named_memory(megabytes: int) -> None:
    """Take shared memory of the standard library, in parts that are below the limit of a file."""
    parts = [shared_memory.SharedMemory(create=True, size=100_000_000) for _ in range(megabytes // 100)]
    for part in parts:
        part.unlink()
    for part in parts:
        assert part.buf is not None
        for at in range(0, part.size, mmap.PAGESIZE):
            part.buf[at] = 1
    _sleep()


def take_in_forks(megabytes: int) -> None:
    """Take memory in forked processes, each with less than the limit."""
    for _ in range(megabytes // 100):
        multiprocessing.get_context("fork").Process(target=_take, args=(100,)).start()
    _sleep()


def take_in_orphans(megabytes: int) -> None:
    """Take memory in processes whose parents have ended, each with less than the limit."""

    def middle() -> None:
        _forked(lambda: _take(100))
        os._exit(0)

    for _ in range(megabytes // 100):
        os.waitpid(_forked(middle), 0)
    _sleep()


def take_in_programs(megabytes: int) -> None:
    """Take memory in programs of sessions of their own, each with less than the limit."""
    program = "import time; taken = b'1' * 100_000_000; time.sleep(600)"
    for _ in range(megabytes // 100):
        subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
    _sleep()


def _take(megabytes: int) -> None:
    taken = b"1" * (megabytes * 1_000_000)
    _sleep()
    del taken


def start_many(count: int) -> None:
    """Start processes that take next to no memory of their own."""
    for _ in range(count):
        _forked(lambda: None)
    _sleep()
