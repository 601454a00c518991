"""The connection of a worker process to the supervisor that has started it (`mulligan worker --processes N`).

It is a socket pair that the worker inherits. The worker sends what its supervisor needs to report its attempts as lost, if
it dies; writes are made at once, as a message that waits in a process that is killed is lost. The end of the connection
means that the supervisor has died: the worker then hands over and drains (process.py), so that no process is left behind.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import IntEnum
from itertools import count
from typing import Any, Literal

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from mulligan.activities.run_data.query_workflow import send_open_queries_again

FD_VARIABLE = "MULLIGAN_SUPERVISOR_FD"
"""The number of the inherited socket. The worker removes it from its environment: what it starts is not supervised."""
FIRST_VARIABLE = "MULLIGAN_SUPERVISOR_FIRST"
"""Set for the first process of a supervisor: only this one prints warnings and what it serves."""
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""What is kept for a supervisor that reads too slowly, or is frozen. Beyond that, messages are dropped."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
SECONDS_TO_FLUSH = 0.05
"""How long the end of an attempt may wait for the next message, to be sent with it."""
RUN_AGAIN_AFTER = 5.0
"""Seconds after which a run's activity is reported again. The supervisor looks at runs that were active this recently."""
RunPart = Literal["task", "replay", "query"]
"""What a worker does with a run: handle a workflow task, do again what was done before, or answer a query."""
_HEADER = struct.Struct("!IBQ")
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger("mulligan.worker")
_attempt: ContextVar[int] = ContextVar("mulligan_supervised_attempt", default=0)


def is_supervised() -> bool:
    """Whether a supervisor has started this process."""
    return FD_VARIABLE in os.environ


class Kind(IntEnum):
    """What a frame is. Bodies are JSON objects, or empty."""

    HELLO = 1
    """The worker is connected to Temporal. Body: `identity`, of its polls."""
    STARTED = 2
    """An attempt has started. Body: `token` (base64; "" for a local activity), `workflow`, `run`, `activity`, `attempt`."""
    FINISHED = 3
    """An attempt has ended in the worker; the server may not know it yet."""
    ASYNC = 4
    """An attempt has ended, but another program will complete it: it is not lost with this process."""
    RUN = 5
    """The worker handles a run. Body: `workflow`, `run`; `task`: true if it is a workflow task, and not a replay or a query.
    Once in RUN_AGAIN_AFTER seconds for each run, and for the first workflow task after a replay."""
    STATE = 6
    """Sent regularly. Body: `unready`, a reason or ""; `retires`: whether the worker drains, and ends by itself then."""
    SPAN = 7
    """A span has ended. The number is that of its attempt; 0 for a span outside of an attempt."""
    ACKNOWLEDGED = 8
    """From the supervisor: the span of this number is exported, or never will be."""
    PROCESS_DIED = 9
    """From the supervisor: another process has died, and the server knows it. It may have had queries of this one."""


def frame(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """A message: its kind, a number (of the attempt, where nothing else is stated) and a body."""
    return _HEADER.pack(len(body), kind, number) + body


class Frames:
    """Takes bytes as they arrive, and returns the complete messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The messages that are complete now: kind, number and body.

        Raises:
            ValueError: a message is larger than any that is sent.
        """
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            size, kind, number = _HEADER.unpack_from(self._buffer, at)
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a message of {size} bytes")
            end = at + _HEADER.size + size
            if len(self._buffer) < end:
                break
            yield kind, number, bytes(self._buffer[at + _HEADER.size : end])
            at = end
        del self._buffer[:at]


class SupervisorLink(Interceptor):
    """The worker's end of the connection; also the interceptor that reports each activity. `send` is thread-safe."""

    def __init__(self, connection: socket.socket, *, is_first: bool) -> None:
        self.is_first = is_first
        """Whether this process prints for all processes of the supervisor what they have in common."""
        self.on_acknowledged: Callable[[int], None] = lambda _: None
        """Called for each span that the supervisor has exported, on the event loop."""
        self.on_lost: list[Callable[[], None]] = []
        """Called when the supervisor has died, on the event loop."""
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._flushes, self._waits = False, False
        """Whether a flush is scheduled, and whether the supervisor does not read at the moment."""
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = count(1)
        self._runs: dict[str, tuple[float, bool]] = {}
        """When each run was reported last, and whether it is known that this worker handled its last workflow task."""
        self.is_lost = False

    @staticmethod
    def from_environment() -> SupervisorLink | None:
        """The link of a process that a supervisor has started; None in any other."""
        value, is_first = os.environ.pop(FD_VARIABLE, ""), bool(os.environ.pop(FIRST_VARIABLE, ""))
        if not value:
            return None
        # While it imports, it does not read the link.
        signal_at_end_of_parent(signal.SIGTERM)
        connection = socket.socket(fileno=int(value))
        connection.set_inheritable(False)
        connection.setblocking(False)
        return SupervisorLink(connection, is_first=is_first)

    def open(self) -> None:
        """Begin to read, on the running event loop. The end of the connection then says that the supervisor has died."""
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._loop.add_reader(self._connection, self._read)
        signal_at_end_of_parent(0)

    def close(self) -> None:
        """Send what is left, and close."""
        if self._loop is not None:
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
        with self._lock:
            self._loop = None
            if self._unsent:
                self._connection.settimeout(5)
                try:
                    self._connection.sendall(self._unsent)
                except OSError:
                    logger.warning("The supervisor did not read the last messages of this worker.")
            self._connection.close()
            self.is_lost = True

    def send(self, kind: Kind, number: int = 0, body: dict[str, Any] | None = None) -> None:
        """Send a message now; if the supervisor does not read, keep it."""
        message = frame(kind, number, json.dumps(body).encode() if body else b"")
        with self._lock:
            if self.is_lost:
                return
            if len(self._unsent) + len(message) > MAX_UNSENT_BYTES:
                self._dropped += 1
                if self._dropped == 1:
                    logger.warning("The supervisor does not read; messages to it are dropped.")
                return
            self._unsent += message
            if kind == Kind.FINISHED and self._loop is not None:
                # If this one is lost, the server refuses to fail an attempt that it has the result of.
                if not self._flushes:
                    self._flushes = True
                    self._loop.call_later(SECONDS_TO_FLUSH, self._flush)
            elif not self._waits:
                self._write_or_wait()

    def send_run(self, workflow_id: str, run_id: str, *, doing: RunPart) -> None:
        """Report that this worker handles the run, unless it did so lately.

        The first workflow task after a replay is always reported: another worker has had the run since the last report.
        """
        now, (sent_at, is_current) = time.monotonic(), self._runs.get(run_id, (-RUN_AGAIN_AFTER, False))
        is_task = doing == "task"
        if doing == "replay":
            is_current = False
        if now - sent_at < RUN_AGAIN_AFTER and (is_current or not is_task):
            self._runs[run_id] = sent_at, is_current
            return
        if len(self._runs) > 10_000:
            self._runs.clear()
        self._runs[run_id] = now, is_task
        self.send(Kind.RUN, body={"workflow": workflow_id, "run": run_id, "task": is_task})

    @property
    def attempt(self) -> int:
        """The number of the attempt that this code runs in; 0 outside of attempts."""
        return _attempt.get()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's name
        """Report the activity while it runs."""
        return _ReportedActivity(next, self, self._numbers)

    def _write(self) -> None:
        while self._unsent:
            try:
                del self._unsent[: self._connection.send(self._unsent)]
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the supervisor has died; `_read` sees it too
                return

    def _write_or_wait(self) -> None:
        self._write()
        if self._unsent and self._loop is not None:
            self._waits = True
            self._loop.call_soon_threadsafe(self._wait_until_writable)

    def _flush(self) -> None:
        with self._lock:
            self._flushes = False
            if self._unsent and not self._waits:
                self._write_or_wait()

    def _wait_until_writable(self) -> None:
        if self._loop is not None:
            self._loop.add_writer(self._connection, self._write_more)

    def _write_more(self) -> None:
        with self._lock:
            self._write()
            if not self._unsent and self._loop is not None:
                self._waits = False
                self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            for kind, number, _ in self._frames.add(data):
                if kind == Kind.ACKNOWLEDGED:
                    self.on_acknowledged(number)
                elif kind == Kind.PROCESS_DIED:
                    send_open_queries_again()
            return
        assert self._loop is not None
        self._loop.remove_reader(self._connection)
        with self._lock:
            self.is_lost = True
            self._unsent.clear()
        for call in self.on_lost:
            call()


class _ReportedActivity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, link: SupervisorLink, numbers: Iterator[int]) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._link = link
        self._numbers = numbers

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        info, number, ended = activity.info(), next(self._numbers), Kind.FINISHED
        token = "" if info.is_local else base64.b64encode(info.task_token).decode()
        body = {
            "token": token,
            "workflow": info.workflow_id,
            "run": info.workflow_run_id,
            "activity": info.activity_id,
            "attempt": info.attempt,
        }
        self._link.send(Kind.STARTED, number, body)
        # Never reset: the activity has a context of its own.
        _attempt.set(number)
        try:
            return await self.next.execute_activity(input)
        except BaseException as error:
            # The SDK has no public class for `activity.raise_complete_async()`.
            if type(error).__name__ == "_CompleteAsyncError":
                ended = Kind.ASYNC
            raise
        finally:
            self._link.send(ended, number)


def signal_at_end_of_parent(number: int) -> None:
    """Ask Linux to send a signal to this process when its parent dies; 0 for none."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
