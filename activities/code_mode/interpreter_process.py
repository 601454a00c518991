"""`InterpreterProcess`: the process of one script's interpreter, as its worker sees it."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from mulligan.activities.code_mode.interpreter_child import LENGTH_BYTES, send_message
from mulligan.activities.code_mode.interpreter_template import READY, main

IMPORT_SECONDS = 60.0
"""For a template's start: Python, and the import of Monty."""
END_SECONDS = 5.0
"""Until a template that does not end its interpreters and itself is killed."""
MOST_BYTES = 64_000_000
"""Of one message of an interpreter: printed text, a value and arguments at their limits have less."""
PASSED_ON = frozenset({"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "MONTY_BIN"})
"""The environment variables that the processes get: they need no secret."""


class InterpreterLost(Exception):
    """The process has ended, or was killed, before it answered."""

    def __init__(self) -> None:
        super().__init__("The interpreter's process has ended, or was not started.")


@dataclass
class InterpreterProcess:
    """A process that can be ended at any time, from any thread. Its other methods block."""

    _connection: socket.socket
    _life: socket.socket
    _template: _Template
    _is_ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(cls) -> InterpreterProcess:
        """A new process. The first one takes the time to import the interpreter.

        Raises:
            InterpreterLost: it cannot be started.
        """
        global _template
        with _template_lock:
            for _ in range(2):
                if _template is None or not _template.is_of_this_process:
                    _template = _Template.started()
                with suppress(OSError):
                    return cls(*_template.begin(), _template)
                _template.end()
                _template = None
        raise InterpreterLost

    def give_up(self) -> None:
        """End the process that was to fork this one, as it does not: a new one forks the next."""
        global _template
        with _template_lock:
            if _template is self._template:
                _template.end()
                _template = None

    def ask(self, message: bytes, seconds: float) -> bytes:
        """Send a message; returns the answer.

        Raises:
            TimeoutError: it did not come within these seconds. The process is then ended.
            InterpreterLost: the process has ended.
        """
        until = time.monotonic() + seconds
        try:
            self._connection.settimeout(max(0.001, seconds))
            send_message(self._connection, message)
            length = int.from_bytes(self._read(LENGTH_BYTES, until), "big")
            if length > MOST_BYTES:
                raise InterpreterLost
            return self._read(length, until)
        except TimeoutError:
            self.end()
            raise
        except OSError:
            raise InterpreterLost from None

    def _read(self, length: int, until: float) -> bytes:
        received = bytearray()
        while len(received) < length:
            self._connection.settimeout(max(0.001, until - time.monotonic()))
            piece = self._connection.recv(min(1 << 20, length - len(received)))
            if not piece:
                raise InterpreterLost
            received += piece
        return bytes(received)

    def end(self) -> None:
        """End the process, and all that it has started, unless this is a process that the owner has forked."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
        for each in (self._life, self._connection):
            if self._template.is_of_this_process:
                with suppress(
                    OSError
                ):  # closing is not enough: forked processes have it too, and a thread may read from it
                    each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __del__(self) -> None:
        """End the process of a script that nobody keeps any more: those that wait when their worker ends."""
        self.end()


@dataclass(frozen=True)
class _Template:
    """The process that forks interpreters (interpreter_template.py). It ends with this one."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    owner: int = field(default_factory=os.getpid)

    @classmethod
    def started(cls) -> _Template:
        ours, theirs = socket.socketpair()
        # -c and not -m, which would put the current folder first on its path: it gets this process's path.
        path = [each for each in sys.path if isinstance(each, str)]  # Python passes over others, such as a Path
        program = f"import sys; sys.path[:] = {path!r}; from {main.__module__} import main; main({theirs.fileno()})"
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - this program, of this installation
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name in PASSED_ON},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            ours.settimeout(IMPORT_SECONDS)
            is_ready = ours.recv(len(READY)) == READY
        except OSError:
            is_ready = False
        template = cls(process, ours)
        if not is_ready:
            template.end()
            raise InterpreterLost
        atexit.register(template.end)
        return template

    @property
    def is_of_this_process(self) -> bool:
        return self.owner == os.getpid()

    def end(self) -> None:
        """End it, and all interpreters, unless this is a process that the owner has forked."""
        self.control.close()
        if self.is_of_this_process:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
            self.process.kill()
            self.process.wait()

    def begin(self) -> tuple[socket.socket, socket.socket]:
        """The sockets of a new interpreter: to it, and the one that says how long it lives.

        Raises:
            OSError: the template has ended.
        """
        (connection, theirs), (life, its_life) = socket.socketpair(), socket.socketpair()
        with theirs, its_life:
            try:
                socket.send_fds(self.control, [b"S"], [theirs.fileno(), its_life.fileno()])
            except OSError:
                connection.close()
                life.close()
                raise
        return connection, life


_template: _Template | None = None
_template_lock = threading.Lock()
