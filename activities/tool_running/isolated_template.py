"""The prepared process of isolated calls: it has imported their tool's module, and forks a supervisor for each call.

A fork takes about a millisecond, where starting Python and importing Mulligan takes a second. The template runs none of the
module's functions and sees neither arguments nor results: it hands the call's socket to the supervisor.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from mulligan.activities.tool_running.isolated_supervisor import end_children, remove_folder, supervise
from mulligan.activities.tool_running.process_tree import adopt_orphans, children_of, end_tree, hide

READY = b"R"
"""A template sends this byte when it can fork."""
IMPORT_SECONDS = 30
STRAY_SECONDS = 0.005
"""Between two looks for processes that a killed supervisor has left."""


def main(control: int, folder: str, module: str | None) -> None:
    """Serve calls until the worker closes its end of `control` or ends.

    Args:
        control: The number of a socket. Each byte that arrives is a call, with two sockets: the call's own, and a socket
            that the template closes when none of the call's processes is left. If the worker closes its end, the call is
            ended.
        folder: For temporary files. It is removed at the end.
        module: The module to import first. If that fails, or leaves threads, which a fork would not have, the template ends
            without a word. None: calls import their modules themselves.
    """
    hide()
    adopt_orphans()
    os.dup2(2, 1)  # a worker's output is not for what its tools print
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if module is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(IMPORT_SECONDS)  # it ends an import that hangs, also if the worker has ended
        try:
            importlib.import_module(module)
        except BaseException:  # noqa: BLE001 - calls import it themselves then, and report what it raises
            os._exit(1)
        signal.alarm(0)
    if threading.active_count() > 1 or len(_threads()) > 1:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # a fork would have a copy of what is in their buffers
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    template = _Template(socket.socket(fileno=control), folder)
    template.serve()
    end_children()
    remove_folder(folder)


def _threads() -> list[str]:
    with suppress(FileNotFoundError):  # not Linux
        return os.listdir("/proc/self/task")
    return []


@dataclass(frozen=True)
class _Supervisor:
    """`link`: its other end closes when the supervisor ends. `end`: closed when none of the call's processes is left."""

    link: socket.socket
    end: socket.socket


@dataclass
class _Template:
    control: socket.socket
    folder: str
    calls: int = 0
    supervisors: dict[int, _Supervisor] = field(default_factory=dict)
    """Those that run, by their process ids."""
    of_module: set[int] = field(default_factory=lambda: children_of(os.getpid()))
    """Processes that the module has started when it was imported."""
    ends: list[socket.socket] = field(default_factory=list)
    """Of calls whose supervisors have ended, but maybe not all that they had started."""

    def serve(self) -> None:
        self.control.sendall(READY)
        while True:
            sockets = [each for pair in self.supervisors.values() for each in (pair.link, pair.end)]
            ready = wait([self.control, *sockets], STRAY_SECONDS if self.ends else None)
            if self.control in ready and not self._fork():
                return
            for process, supervisor in list(self.supervisors.items()):
                if supervisor.link in ready or supervisor.end in ready:
                    self._end(process)
            self._end_strays()

    def _fork(self) -> bool:
        """Start the supervisor of a call; False if there is no call, as the worker has closed its end."""
        byte, descriptors, _, _ = socket.recv_fds(self.control, 1, 2)
        if not byte:
            return False
        call, end = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        link, theirs = socket.socketpair()
        self.calls += 1
        try:
            process = os.fork()
        except OSError:  # no memory or no process id: the call gets no response
            self.ends.append(end)
        else:
            if process == 0:
                others = [each for pair in self.supervisors.values() for each in (pair.link, pair.end)]
                folder = os.path.join(self.folder, str(self.calls))
                supervise(call, theirs, folder, [*others, *self.ends, link, end, self.control])
            self.supervisors[process] = _Supervisor(link, end)
        call.close()
        theirs.close()
        return True

    def _end(self, process: int) -> None:
        """End a supervisor, if it has not ended yet. Its children are the template's then."""
        supervisor = self.supervisors.pop(process)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        supervisor.link.close()
        self.ends.append(supervisor.end)

    def _end_strays(self) -> None:
        """End what ended supervisors have left, and say so to the worker when nothing is left of it."""
        strays = children_of(os.getpid()) - self.supervisors.keys() - self.of_module
        end_tree(strays)
        for stray in strays:
            with suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        if not strays:
            while self.ends:
                self.ends.pop().close()
