"""A supervisor's end of its fork server: the process from which it forks its worker processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from mulligan.activities.tool_running.process_tree import adopt_orphans, children_of
from mulligan.worker.fork_server import FORK_SERVER_VARIABLE, GO, MAX_MESSAGE_BYTES, ForkAnswer, ForkRequest
from mulligan.worker.logs import say

SECONDS_TO_FORK = 5.0
"""A fork takes some milliseconds: a server that has not answered by then is killed, and the next fork starts another."""
SECONDS_TO_IMPORT = 90.0
"""A server that has not imported by then is killed, as something that a module does at its import may never end: processes
are started as programs then."""
SECONDS_WITHOUT_FORKS = 600.0
"""For so long, before a server is started again: all processes of the supervisor wait for one that hangs."""
STARTS = 3
"""How often the server is started for one fork: code may change again while it is imported."""
SECONDS_TO_END = 0.5
"""A server whose connection is closed ends, unless it hangs."""
UNKNOWN_CODE = 255
"""The exit code of a process whose end this one could not see, as asyncio has it."""


class ChildProcess(Protocol):
    """A process that this one waits for, as asyncio has it."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative signal; None while it runs."""

    async def wait(self) -> int:
        """Wait until it has ended; returns `returncode`."""

    def send_signal(self, signal: int, /) -> None:
        """Send a signal, if it still runs."""


class ForkedProcess:
    """A child process that this one has not started itself.

    Raises:
        OSError: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    async def wait(self) -> int:
        """Wait until it has ended; returns the exit code, or the negative signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int, /) -> None:
        """Send a signal, if it still runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.returncode = UNKNOWN_CODE
        with suppress(ChildProcessError):  # somebody else has waited for it
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        os.close(self._descriptor)
        self._ended.set()


class ForkServer:
    """Starts the fork server, forks from it, and starts it again where it has ended or the code has changed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._forks = sys.platform == "linux"
        self._is_closed = False
        self._not_before = 0.0
        """When it may be started again after it hung, by the monotonic clock."""
        self._strangers: set[int] = set()

    async def fork(
        self, environment: Mapping[str, str], variable: str, connection: socket.socket
    ) -> ChildProcess | None:
        """Fork a worker process.

        Args:
            environment: What its environment has beside this one's.
            variable: The variable for the number of `connection` in the new process.
            connection: A socket that the new process inherits.

        Returns:
            None if it has to be started as a program, with another connection: where importing fails, or leaves what a fork
            must not have.
        """
        async with self._lock:
            request: ForkRequest = {"environment": dict(environment), "descriptor_variable": variable}
            for _ in range(STARTS):
                if not self._forks or self._is_closed:
                    return None
                if self._has_ended():
                    await self._end()
                if self._control is None and not await self._start():
                    return None
                if self._is_closed:
                    return None
                state, forked = await self._fork(request, connection)
                if state == "forked":
                    return forked
                await self._end()
                if state != "changed":
                    return None
        return None

    async def _fork(self, request: ForkRequest, connection: socket.socket) -> tuple[str, ChildProcess | None]:
        """The state of the answer, and the process. It begins only when it is known here, or else ends: of a fork whose
        answer does not arrive, nothing is left.
        """
        waits, go = os.pipe()
        try:
            answer = await self._ask(request, [connection.fileno(), waits])
            forked = None
            if answer.get("state") == "forked":
                with suppress(OSError):  # it has ended already
                    forked = ForkedProcess(answer["pid"])
                    os.write(go, GO)
            return answer.get("state", ""), forked
        finally:
            os.close(waits)
            os.close(go)

    async def close(self) -> None:
        """End the fork server; the processes that were forked go on."""
        self._is_closed = True
        self._kill()
        async with self._lock:
            await self._end()

    async def start_again(self) -> None:
        """Start it if it has ended: a process that is forked next need not wait for its imports."""
        if self._lock.locked():
            return
        async with self._lock:
            if self._has_ended() and self._forks and not self._is_closed:
                await self._end()
                await self._start()

    def reap(self, known: set[int]) -> None:
        """Wait for orphans that have ended: this process adopts what dead worker processes had started.

        `known`: the ids of its other children.
        """
        strangers = children_of(os.getpid()) - known - {self._process.pid if self._process else 0}
        for pid in (
            strangers & self._strangers
        ):  # one that is seen for the first time may just be started by this process
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._strangers = strangers

    async def _start(self) -> bool:
        """Start it, and wait until it has imported; returns whether it can fork."""
        if time.monotonic() < self._not_before:
            return False
        adopt_orphans()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            environment = {**os.environ, FORK_SERVER_VARIABLE: str(theirs.fileno())}
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, *sys.orig_argv[1:], env=environment, pass_fds=[theirs.fileno()]
                )
            except OSError:
                ours.close()
                return False
        self._control = ours
        if self._is_closed:  # meanwhile
            self._kill()
        answer: ForkAnswer = {}
        try:
            async with asyncio.timeout(SECONDS_TO_IMPORT):
                answer = await self._receive()
        except TimeoutError:
            self._not_before = time.monotonic() + SECONDS_WITHOUT_FORKS
            say(
                f"Importing has not ended within {SECONDS_TO_IMPORT:g} s in the process from which worker processes are "
                f"forked. It is killed, and for {SECONDS_WITHOUT_FORKS / 60:g} minutes they are started, which takes "
                "longer. See what the loaded modules wait for as they are imported."
            )
        if answer.get("state") == "ready":
            return True
        if answer.get("state") == "refused":
            self._forks = False
            say(f"Worker processes are started, not forked, which takes longer: {answer['reason']}.")
        await self._end()
        return False

    async def _ask(self, request: ForkRequest, descriptors: Sequence[int]) -> ForkAnswer:
        assert self._control is not None
        try:
            async with asyncio.timeout(SECONDS_TO_FORK):
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                return await self._receive()
        except (OSError, TimeoutError):
            return {}

    async def _receive(self) -> ForkAnswer:
        """The next message; an empty one if the server has ended."""
        assert self._control is not None
        with suppress(OSError):
            if message := await asyncio.get_running_loop().sock_recv(self._control, MAX_MESSAGE_BYTES):
                answer: ForkAnswer = json.loads(message)
                return answer
        return {}

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with suppress(TimeoutError):  # most often it ends by itself now
                await asyncio.wait_for(self._process.wait(), SECONDS_TO_END)
            self._kill()
            with suppress(TimeoutError):  # one that waits for a disk cannot be killed either
                await asyncio.wait_for(self._process.wait(), SECONDS_TO_FORK)
            self._process = None

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)
