"""The process from which a supervisor forks its worker processes: it has imported everything, and started nothing.

A start of Python and its imports take seconds of CPU time, a fork some milliseconds. A fork has only the thread that called
it, and shares what is open: so nothing is forked from a process where importing has started threads or processes, opened
files or connections, or registered what is to be done at the end (each fork would do it, such as removing a folder that
others use). Random numbers of Python and numpy begin anew in each fork; those of a user's own `random.Random` do not.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn, TypedDict

from mulligan.activities.tool_running.process_tree import children_of

FORK_SERVER_VARIABLE = "MULLIGAN_FORK_SERVER_FD"
"""The number of the inherited socket, which keeps the bounds of messages."""
MAX_MESSAGE_BYTES = 65_536
GO = b"G"
"""What a forked process waits for before it begins: the supervisor knows it then."""
THREAD_END_SECONDS = 1.0
TITLE = b"mulligan: processes are forked from this one"
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 47, 48
"""Fields of `/proc/self/stat`, from 0 (proc(5): `arg_start`, `arg_end`)."""
_INSTALLED = tuple(
    os.path.join(path, "")
    for name, path in sysconfig.get_paths().items()
    if name in {"purelib", "platlib", "stdlib", "platstdlib"}
)


class ForkRequest(TypedDict):
    """A message of the supervisor. With it come the worker's end of its connection, and a pipe for `GO`.

    `environment`: what the environment of the new process has beside the fork server's.
    """

    environment: dict[str, str]
    descriptor_variable: str
    """The variable for the number of the connection."""


class ForkAnswer(TypedDict, total=False):
    """A message of the fork server: one when it has imported, and then one for each request.

    `refused`: nothing can be forked, ever; the server ends. `changed`: a module's file has changed since it was imported;
    the server ends. `failed`: there is no memory or no process id.
    """

    state: Literal["ready", "refused", "forked", "changed", "failed"]
    reason: str
    """Of `refused` and `failed`."""
    pid: int


def is_fork_server() -> bool:
    """Whether a supervisor has started this process to fork others from it."""
    return FORK_SERVER_VARIABLE in os.environ


def serve_forks(modules: Sequence[str], *, with_shipped: bool, agents: str | None) -> None:
    """Import what a worker needs, then fork for each request; it returns in each forked process, and never in this one.

    The arguments are those of `mulligan.worker.process.main`.
    """
    control = socket.socket(fileno=int(os.environ.pop(FORK_SERVER_VARIABLE)))
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before, title, began = _descriptors(), _set_title(TITLE), time.time_ns()
    try:
        at_end = _import_worker()
        _import(modules, with_shipped=with_shipped, agents=agents)
    except BaseException:  # noqa: BLE001 - a worker process that is started without a fork reports it
        _end(1)
    if reason := _why_not(before, at_end):
        _answer(control, {"state": "refused", "reason": reason})
        _end(0)
    versions = _versions()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    _answer(control, {"state": "ready"})
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 2)
        if not message:
            _end(0)
        now = time.time_ns()  # a later change is that of another clock
        if _versions() != versions or any(began <= changed <= now for changed, _ in versions.values()):
            _answer(control, {"state": "changed"})
            _end(0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # a fork would have a copy of what is in their buffers
        connection, go = descriptors
        try:
            pid = _fork(go)
        except OSError as error:
            _answer(control, {"state": "failed", "reason": str(error)})
        else:
            if pid == 0:
                control.close()
                _begin(title, json.loads(message), connection)
                return
            _answer(control, {"state": "forked", "pid": pid})
        os.close(connection)
        os.close(go)


def _import_worker() -> int:
    """Import a worker's whole code; returns how many functions Python calls at its end."""
    from importlib import import_module

    from mulligan.features import OWN
    from mulligan.worker import process  # noqa: F401

    for name in (name for each in OWN for name in each.modules):
        import_module(name)
    return atexit._ncallbacks()


def _import(modules: Sequence[str], *, with_shipped: bool, agents: str | None) -> None:
    from mulligan.activities.models.available_providers import import_sdks
    from mulligan.client.settings import settings
    from mulligan.observe import otlp
    from mulligan.worker.agent_folder import names_in_folder
    from mulligan.worker.loading import load, modules_to_load

    chosen = settings()
    named = modules_to_load(chosen.load, modules, with_shipped=with_shipped)
    loaded = load(named, file_names=names_in_folder(agents))
    import_sdks(model for agent in loaded.registry.agents.values() for model in agent.models)
    if otlp.is_configured():
        otlp.import_span_exporter()


def _threads() -> int:
    """How many there are, without those that are about to end: one that has ended is listed for a moment."""
    until = time.monotonic() + THREAD_END_SECONDS
    fewest = len(os.listdir("/proc/self/task"))
    while fewest > 1 and time.monotonic() < until:
        time.sleep(0.01)
        fewest = min(fewest, len(os.listdir("/proc/self/task")))
    return fewest


def _why_not(before: set[str], at_end: int) -> str:
    """What importing has left that a fork must not have; "" for nothing.

    `before`, `at_end`: the descriptors, and the number of functions for the end, without the loaded modules.
    """
    if (threads := _threads()) > 1:
        return f"importing has started {threads - 1} thread{'s' if threads > 2 else ''}, which a fork would not have"
    if children_of(os.getpid()):
        return "importing has started a process, whose end a fork would not see"
    opened = sorted(_target(each) for each in _descriptors() - before)
    if opened:
        return f"importing has opened {', '.join(opened[:3])}, which forks would share"
    if atexit._ncallbacks() > at_end:
        return "importing has registered what is to be done at the end of a process, and each fork would do it"
    return ""


def _descriptors() -> set[str]:
    names = os.listdir("/proc/self/fd")
    return {name for name in names if os.path.lexists(f"/proc/self/fd/{name}")}  # without that of the listing


def _target(descriptor: str) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _versions() -> dict[str, tuple[int, int]]:
    """The time of the last change and the size of each imported module's file, without those of installed packages."""
    versions = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and not path.startswith(_INSTALLED):
            try:
                status = os.stat(path)
                versions[path] = status.st_mtime_ns, status.st_size
            except OSError:
                versions[path] = 0, 0
    return versions


def _fork(go: int) -> int:
    """Fork a process whose parent is the supervisor: the one in between ends, and the supervisor adopts orphans.

    Returns:
        Its id; 0 in the new process, when the supervisor knows it.

    Raises:
        OSError: there is no memory, or no process id.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        between = -1
        try:
            between = os.fork()
            if between == 0:
                _fork_in_between(writing)
        finally:
            os.close(writing)
        if between > 0:
            os.waitpid(between, 0)
            if pid := stream.read():
                return int(pid)
            raise OSError("no process could be forked")
    if os.read(go, 1) != GO:  # the supervisor has ended, or has not had the answer
        os._exit(0)
    os.close(go)
    return 0


def _fork_in_between(writing: int) -> None:
    """Fork once more, and end; it returns in the new process when that has happened."""
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os.write(writing, str(pid).encode())
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)


def _begin(title: bytes, request: ForkRequest, connection: int) -> None:
    """Make a forked process the worker process of a request, and undo what concerns the fork server only."""
    os.environ |= request["environment"] | {request["descriptor_variable"]: str(connection)}
    _set_title(title)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _set_title(title: bytes) -> bytes:
    """Overwrite the command line that `ps` shows; returns the one before. A longer title is cut."""
    # The name of the program, in parentheses, may have spaces.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = (int(fields[number - 2]) for number in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    before = ctypes.string_at(begin, end - begin)
    ctypes.memmove(begin, title[: len(before)].ljust(len(before), b"\0"), len(before))
    return before


def _answer(control: socket.socket, answer: ForkAnswer) -> None:
    try:
        control.send(json.dumps(answer).encode())
    except OSError:  # the supervisor has ended
        _end(0)


def _end(code: int) -> NoReturn:
    """End, and do what modules have registered for then."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
