"""One worker process, as its supervisor sees it: the process, and what it has in flight."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulligan.activities.tool_running.process_tree import processes_below
from mulligan.observe import otlp
from mulligan.supervisor.forked_processes import ChildProcess, ForkServer
from mulligan.supervisor.workflow_tasks import Run, TokenFormat
from mulligan.worker.supervisor_link import FD_VARIABLE, FIRST_VARIABLE, Frames, Kind, frame

MAX_RUNS = 4_000
"""How many runs that a process has handled are remembered; more than its cache has."""
MAX_ASYNC = 100_000
SECONDS_TO_BE_ACCEPTED = 2.0
"""After its end in the process, the server may not know an attempt's result for this long."""
SECONDS_BETWEEN_READS, WITH_SPANS = 0.2, 0.02
"""Messages that are read together cost a fraction of as many wake-ups. A run that opens waits for the export of its span."""
_INSTANCE = "service.instance.id="


@dataclass(frozen=True)
class Attempt:
    """One attempt of an activity that a process has begun."""

    number: int
    """Of the process's own count."""
    token: str
    """The task token in base64; "" for a local activity."""
    run: Run
    activity_id: str
    attempt: int

    @staticmethod
    def parse(number: int, body: bytes) -> Attempt:
        """Read an attempt from the body of the message `STARTED`."""
        data = json.loads(body)
        run = Run(data["workflow"], data["run"])
        return Attempt(number, data["token"], run, data["activity"], data["attempt"])


class WorkerProcess(asyncio.Protocol):
    """A process and the messages that it sends.

    Messages that come with each attempt are kept as they are, and only read if the process dies: the supervisor's work for
    a step must be small.

    Args:
        index: its place, from 1.
        on_span: called with each span that it sends: the process, the number of the attempt, the body.
        on_finished: called when an attempt has ended: the process and the attempt's number.
    """

    def __init__(
        self,
        index: int,
        on_span: Callable[[WorkerProcess, int, dict[str, Any]], None],
        on_finished: Callable[[WorkerProcess, int], None],
    ) -> None:
        self.index = index
        self.identity = ""
        """The identity of its polls; "" until it is connected to Temporal."""
        self.is_forked = False
        self.unready = "starting"
        self.notes: list[str] = []
        """What is wrong while it serves."""
        self.heard_at = time.monotonic()
        """When its last message arrived, or it was started."""
        self._work, self._worked_at = "", self.heard_at
        self.runs: OrderedDict[Run, float] = OrderedDict()
        """The runs that it has handled, with the time of its last report of each."""
        self.tasks: dict[Run, float] = {}
        """The runs whose workflow tasks it has handled, with the time of its last report of such a task."""
        self.is_ready = asyncio.Event()
        self.retires = asyncio.Event()
        """Set when it has served, cannot go on, and drains."""
        self.ended = asyncio.Event()
        self.attempts: dict[int, bytes] = {}
        """The attempts that run in it: `STARTED` messages by number."""
        self.finished: deque[tuple[float, int, bytes]] = deque()
        """Those that have ended lately."""
        self.completed_elsewhere: set[tuple[Run, str, int]] = set()
        """Attempts that another program will complete: run, activity id, attempt."""
        self.token_format: TokenFormat | None = None  # what the server's tokens have in common, if it is known
        self._knows_tokens = False
        self._on_span = on_span
        self._on_finished = on_finished
        self._frames = Frames()
        self._connection: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._process: ChildProcess | None = None
        self._disconnected = asyncio.Event()
        self._has_ended = False
        self._seconds_between_reads = WITH_SPANS if otlp.is_configured() else SECONDS_BETWEEN_READS
        self._handlers: dict[int, Callable[[int, bytes], None]] = {
            Kind.STARTED: self._started,
            Kind.FINISHED: self._has_finished,
            Kind.ASYNC: self._async,
            Kind.RUN: self._run,
            Kind.SPAN: self._span,
            Kind.STATE: self._state,
            Kind.HELLO: self._hello,
        }

    async def start(self, forks: ForkServer, *, is_first: bool) -> None:
        """Fork it, or else start the command of this process once more; it is connected by an inherited socket.

        Raises:
            OSError: it could not be started.
        """
        environment = self._environment(is_first=is_first)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await forks.fork(environment, FD_VARIABLE, theirs)
        self.is_forked = self._process is not None
        if self._process is None:
            ours.close()
            ours, theirs = socket.socketpair()
            with theirs:
                descriptor = theirs.fileno()
                try:
                    self._process = await asyncio.create_subprocess_exec(
                        sys.executable, *sys.orig_argv[1:],
                        env={**os.environ, **environment, FD_VARIABLE: str(descriptor)}, pass_fds=[descriptor],
                    )  # fmt: skip
                except OSError:
                    ours.close()
                    raise
        await self.connect(ours)

    def _environment(self, *, is_first: bool) -> dict[str, str]:
        """What its environment has beside this one's."""
        environment = {FIRST_VARIABLE: "1"} if is_first else {}
        if attributes := os.environ.get("OTEL_RESOURCE_ATTRIBUTES"):
            # Each process exports its own metrics: two processes of one instance would overwrite each other's.
            parts = [f"{part}-{self.index}" if part.startswith(_INSTANCE) else part for part in attributes.split(",")]
            environment["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(parts)
        return environment

    async def connect(self, connection: socket.socket) -> None:
        """Read the messages of the process from this connection."""
        self._connection = connection
        self.heard_at = time.monotonic()  # it may have waited for the fork server
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connection)

    @property
    def is_started(self) -> bool:
        """Whether it has a process id."""
        return self._process is not None

    def worked_at(self, now: float) -> float:
        """When it, or a process below it, was last seen to use a processor, at calls of this method; `now` where that is
        not known.
        """
        work = " ".join(map(_processor_time, (self.pid, *processes_below(self.pid))))
        if work != self._work or not work:
            self._work, self._worked_at = work, now
        return self._worked_at

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    async def wait(self) -> int:
        """Wait until it has ended and all its messages are read; returns the exit code, or the negative signal."""
        assert self._process is not None
        code = await self._process.wait()
        self._has_ended = True
        self._read_on()
        # A process that it has started may have inherited the socket, though none should.
        try:
            await asyncio.wait_for(self._disconnected.wait(), 1)
        except TimeoutError:
            self.close()
        self.unready = "ended"
        self.ended.set()
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def acknowledge(self, span_number: int) -> None:
        """Tell it that a span is exported."""
        self._send(frame(Kind.ACKNOWLEDGED, span_number))

    def send_process_died(self) -> None:
        """Tell it that another process has died, and that the server has been told what that one had in flight."""
        self._send(frame(Kind.PROCESS_DIED))

    def _send(self, message: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(message)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def in_flight(self) -> list[Attempt]:
        """The attempts that run in it."""
        return [Attempt.parse(number, body) for number, body in self.attempts.items()]

    def recently_finished(self) -> list[Attempt]:
        """Attempts that ended so lately that the server may not have the result."""
        now = time.monotonic()
        return [Attempt.parse(number, body) for at, number, body in self.finished if now - at < SECONDS_TO_BE_ACCEPTED]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport that asyncio has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle the bytes, then pause before the next read."""
        self._handle(data)
        if self._transport is not None and not self._has_ended:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._seconds_between_reads, self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the messages; asyncio also calls this when the process was sent something after its death."""
        if isinstance(exc, OSError):
            self._read_rest()
        self._disconnected.set()

    def _read_rest(self) -> None:
        """Read what a dead process had sent: asyncio ends a connection at a failed write, before all of it is read."""
        assert self._connection is not None
        with suppress(OSError):
            while data := self._connection.recv(65536):
                self._handle(data)

    def _handle(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        for kind, number, body in self._frames.add(data):
            if handler := self._handlers.get(kind):
                handler(number, body)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _started(self, number: int, body: bytes) -> None:
        self.attempts[number] = body
        if self.token_format is None and not self._knows_tokens and (attempt := Attempt.parse(number, body)).token:
            self._knows_tokens = True
            self.token_format = TokenFormat.of(base64.b64decode(attempt.token), attempt.run)

    def _has_finished(self, number: int, _: bytes) -> None:
        if (body := self.attempts.pop(number, None)) is not None:
            self.finished.append((self.heard_at, number, body))
            while self.heard_at - self.finished[0][0] > SECONDS_TO_BE_ACCEPTED:
                self.finished.popleft()
            self._on_finished(self, number)

    def _async(self, number: int, _: bytes) -> None:
        if (body := self.attempts.pop(number, None)) is not None and len(self.completed_elsewhere) < MAX_ASYNC:
            attempt = Attempt.parse(number, body)
            self.completed_elsewhere.add((attempt.run, attempt.activity_id, attempt.attempt))
            self._on_finished(self, number)

    def _run(self, _: int, body: bytes) -> None:
        data = json.loads(body)
        run = Run(data["workflow"], data["run"])
        self.runs[run] = self.heard_at
        self.runs.move_to_end(run)
        if data["task"]:
            self.tasks[run] = self.heard_at
        if len(self.runs) > MAX_RUNS:
            self.tasks.pop(self.runs.popitem(last=False)[0], None)

    def _span(self, number: int, body: bytes) -> None:
        self._on_span(self, number, json.loads(body))

    def _state(self, _: int, body: bytes) -> None:
        state = json.loads(body)
        self.unready, self.notes = state["unready"], state.get("notes", [])
        if not self.unready:
            self.is_ready.set()
        if state["retires"] and self.is_ready.is_set():
            self.retires.set()

    def _hello(self, _: int, body: bytes) -> None:
        self.identity = json.loads(body)["identity"]


def _processor_time(pid: int) -> str:
    """The processor time of a process, in the kernel's words; "" where the kernel does not tell (it is not Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return " ".join(fields[11:13])  # utime and stime: 14 and 15 in proc(5), which counts from the pid
