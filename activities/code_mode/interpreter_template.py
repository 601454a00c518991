"""The process that has imported the interpreter, and forks one for each script: that takes milliseconds, and shares memory.

It is started by interpreter_process.py. For each script it gets two sockets of the worker's: one for the interpreter, and
`life`, whose other end the worker closes when the script is over. It then kills the interpreter's process with all that it
has started, also if the worker itself has ended.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import traceback
from contextlib import suppress
from typing import NoReturn

from mulligan.activities.code_mode.interpreter_child import serve_script
from mulligan.activities.tool_running.process_tree import adopt_orphans

READY = b"R"
NICENESS = 5
"""Scripts compute less urgently than their worker, which has heartbeats to send."""


def main(descriptor: int) -> None:
    """Fork interpreters until the worker ends. `descriptor`: of a socket to it."""
    os.nice(NICENESS)
    adopt_orphans()  # of an interpreter: so that they are reaped
    control = socket.socket(fileno=descriptor)
    interpreters: dict[socket.socket, int] = {}
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(control, selectors.EVENT_READ)
            control.sendall(READY)
            while True:
                for key, _ in selector.select():
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is not control:
                        selector.unregister(ready)
                        _kill(interpreters.pop(ready))
                        ready.close()
                    elif (sockets := _received(control)) is None:
                        return
                    elif _begun(control, interpreters, *sockets):
                        selector.register(sockets[1], selectors.EVENT_READ)
    finally:
        for process in interpreters.values():
            _kill(process)


def _received(control: socket.socket) -> list[socket.socket] | None:
    """The two sockets of an interpreter that is to be forked. None: the worker has ended."""
    message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
    for each in descriptors:
        os.set_inheritable(each, False)  # Monty's process must not keep them open
    return [socket.socket(fileno=each) for each in descriptors] if message else None


def _begun(
    control: socket.socket, interpreters: dict[socket.socket, int], connection: socket.socket, life: socket.socket
) -> bool:
    """Fork an interpreter; returns whether there is one. If the system has no process for it, its sockets are closed."""
    try:
        process = os.fork()
    except OSError:
        connection.close()
        life.close()
        return False
    if process == 0:
        for inherited in (control, life, *interpreters):
            inherited.close()
        _serve(connection)
    with suppress(OSError):
        os.setpgid(process, process)
    connection.close()
    interpreters[life] = process
    return True


def _serve(connection: socket.socket) -> NoReturn:
    try:
        os.setpgid(0, 0)
        serve_script(connection)
    except BaseException:  # noqa: BLE001 - such as that Monty cannot be started: the worker learns only that this has ended
        traceback.print_exc()
    finally:
        os._exit(0)


def _kill(process: int) -> None:
    """Kill an interpreter and all that it has started. Its id is its own until it is waited for."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)
        while True:  # Monty's process, which has become a child of this one
            os.waitpid(-process, 0)
