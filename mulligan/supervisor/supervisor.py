"""The supervisor: starts worker processes, replaces those that die, and reports what they had in flight as lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.client.connect import connect
from mulligan.client.settings import Settings, settings
from mulligan.errors import DeclarationError
from mulligan.supervisor.forked_processes import ForkServer
from mulligan.supervisor.held_spans import HeldSpans
from mulligan.supervisor.lost_work import ACTIVE_SECONDS, LostWork, LostWorkReport
from mulligan.supervisor.worker_process import WorkerProcess
from mulligan.supervisor.workflow_tasks import Run
from mulligan.worker.health import health_server
from mulligan.worker.logs import say, set_up_logging

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before the next start after starts that did not lead to service. A process that has served is replaced at once,
however short its service was, if no other process serves. If one does, it takes the lost work over within the first delay,
and a start of Python would slow it down; a fork does not, unless processes end as soon as they have begun."""
SECONDS_OF_SERVICE = 1.0
"""A forked process that lived shorter is replaced after the first delay, if another one serves."""
SECONDS_TO_LAST = 60.0
"""A process that retires sooner after its start is replaced at once, but after pauses when its successors do so as well."""
SECONDS_AFTER_GRACE = 15.0
"""Beyond the grace time, in which a process may export and close what it has opened. Then it is killed."""
SECONDS_OF_SILENCE = 60.0
"""A process whose event loop has sent nothing for this long is killed: it may be blocked for ever."""
SECONDS_TO_BEGIN = 1_800.0
"""The same for one that is started, not forked, until it is connected to Temporal: what it imports may compute for long."""
SECONDS_WITHOUT_WORK = 90.0
"""One that imports and has used no processor for this long, nor has a process below it, such as a compiler, waits for
something that does not come."""
SECONDS_TO_END_POLLS = 2.0
"""After SIGTERM, a worker has ended its polls, and code has begun what they brought. What is begun later would be reported
as lost, and its result refused: so the time is ample."""
SECONDS_TO_RETURN = 5.0
"""How long a shutdown may be delayed by tasks that are returned to the server."""
WRONG_USE = 2
"""The exit code of a worker that cannot start."""


def supervise(processes: int) -> int:
    """Run worker processes, with the command of this process, until SIGTERM or Ctrl-C; returns the exit code.

    Returns:
        0; 2 if a worker cannot start because of a setting or a declaration, which it has reported.
    """
    try:
        chosen = settings()
        set_up_logging(chosen.log_format)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it, and then no exit code is known
        return asyncio.run(_Supervisor(processes, chosen).run())
    except DeclarationError as error:
        say(f"error: {error}")
        return WRONG_USE


class _Supervisor:
    def __init__(self, processes: int, chosen: Settings) -> None:
        self._count = processes
        self._settings = chosen
        self._processes: dict[int, WorkerProcess] = {}
        self._said: list[str] = []
        self._stop = asyncio.Event()
        self._client: Client | None = None
        self._spans = HeldSpans()
        self._forks = ForkServer()
        self._exit_code = 0
        self._reports: set[asyncio.Task[None]] = set()
        self._returning: asyncio.Task[None] | None = None
        self._lost_lately: dict[Run, float] = {}
        """The runs of processes that have died, and when: their next attempts may be lost with another process."""

    async def run(self) -> int:
        """Run until a signal; returns the exit code."""
        for sign in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sign, self._on_signal)
        async with AsyncExitStack() as stack:
            if address := self._settings.health_address:
                bound_address = await stack.enter_async_context(health_server(address, self._unready, self._notes))
                say(f"Health checks at http://{bound_address}/readyz")
            stack.push_async_callback(self._spans.close)
            stack.push_async_callback(self._forks.close)
            stack.enter_context(self._spans.exporting())
            # One before the others: what keeps it from starting is reported once.
            first = asyncio.create_task(self._keep(1, is_first=True))
            watching = asyncio.create_task(self._kill_the_silent())
            await self._until_ready_or_done(first)
            others = [] if self._stop.is_set() else [self._keep(n, is_first=False) for n in range(2, self._count + 1)]
            if not self._stop.is_set():
                with suppress(RuntimeError):  # the server has just ended: `_report` connects later
                    self._client = await connect()
                word = "process" if self._count == 1 else "processes"
                say(f"Supervising {self._count} worker {word}.")
            await asyncio.gather(first, *others)
            watching.cancel()
            while self._reports:
                await asyncio.gather(*self._reports)
            await asyncio.gather(*filter(None, [self._returning]))
        return self._exit_code

    def _on_signal(self) -> None:
        if self._stop.is_set():
            say("Second signal: the worker processes are killed; their calls are reported as lost.")
        self._signal_all(signal.SIGKILL if self._stop.is_set() else signal.SIGTERM)
        if self._returning is None:
            processes = [each for each in self._processes.values() if each.identity]
            self._returning = asyncio.create_task(self._return_unseen(processes))
            self._in_background(self._forks.close())
        self._stop.set()

    def _signal_all(self, sign: signal.Signals) -> None:
        for process in self._processes.values():
            process.send_signal(sign)

    async def _until_ready_or_done(self, first: asyncio.Task[None]) -> None:
        while not first.done() and not self._stop.is_set():
            process = self._processes.get(1)
            if process is not None and process.is_ready.is_set():
                return
            await asyncio.sleep(0.05)

    async def _keep(self, index: int, *, is_first: bool) -> None:
        """Run the process of this place, and replace it when it retires or ends, until the supervisor stops."""
        delay, pause, leaving, clock = 0.0, 0.0, None, asyncio.get_running_loop().time
        while not self._stop.is_set():
            process, began = WorkerProcess(index, self._spans.add, self._spans.release), clock()
            self._processes[index] = process
            try:
                await process.start(self._forks, is_first=is_first)
            except OSError as error:
                say(f"error: worker process {index} could not be started: {error}.")
                delay = _longer(delay)
                await self._sleep(delay)
                continue
            if self._stop.is_set():
                process.send_signal(signal.SIGTERM)
            ended = asyncio.create_task(self._ended(process))
            if await self._retires(process, ended):
                is_brief = clock() - began < SECONDS_TO_LAST
                if leaving is not None:
                    await leaving  # no more than two processes of one place
                wait = pause if is_brief else 0.0
                pause = _longer(wait) if is_brief else 0.0
                when = f"in {wait:g} s, as its predecessor did so lately" if wait else "now"
                say(f"Worker process {index} (pid {process.pid}) drains: {process.unready}. It is replaced {when}.")
                # No place has this number; all that concerns the processes concerns this one too.
                self._processes[-process.pid] = self._processes.pop(index)
                self._in_background(self._leave(process, ended))
                leaving = ended
                delay, is_first = 0.0, False
                await self._sleep(wait)
                continue
            code = await ended
            if code == WRONG_USE and is_first and not process.is_ready.is_set():
                self._exit_code = code
                self._stop.set()
            self._on_end(process, code)
            if self._stop.is_set():
                return
            delay = 0.0 if process.is_ready.is_set() else delay
            is_cheap = process.is_forked and clock() - began >= SECONDS_OF_SERVICE
            wait = max(delay, FIRST_DELAY) if self._is_served() and not is_cheap else delay
            is_first = is_first and not process.is_ready.is_set()
            when = f"in {wait:g} s" if wait else "now"
            say(f"Worker process {index} (pid {process.pid}) has ended: {_describe(code)}. It is replaced {when}.")
            await self._sleep(wait)
            delay = _longer(delay)

    async def _retires(self, process: WorkerProcess, ended: asyncio.Task[int]) -> bool:
        """Wait until a process retires or has ended; returns whether another one should start before its end."""
        retiring = asyncio.create_task(process.retires.wait())
        await asyncio.wait((ended, retiring), return_when=asyncio.FIRST_COMPLETED)
        retiring.cancel()
        return not (ended.done() or self._stop.is_set())

    async def _leave(self, process: WorkerProcess, ended: asyncio.Task[int]) -> None:
        """Wait for the end of a process that another one has replaced already."""
        await self._return_unseen([process])
        code = await ended
        say(f"Worker process {process.index} (pid {process.pid}) has ended: {_describe(code)}.")
        self._on_end(process, code)
        del self._processes[-process.pid]

    def _is_served(self) -> bool:
        """Whether a process takes work at present."""
        return any(not each.unready for each in self._processes.values())

    async def _ended(self, process: WorkerProcess) -> int:
        """Wait for the end of a process; when it retires or the supervisor stops, at most for the grace time."""
        ending = asyncio.create_task(process.wait())
        draining = [asyncio.create_task(each.wait()) for each in (self._stop, process.retires)]
        await asyncio.wait((ending, *draining), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.wait((ending,), timeout=self._settings.grace_seconds + SECONDS_AFTER_GRACE)
        for task in draining:
            task.cancel()
        if not ending.done():
            say(f"Worker process {process.index} (pid {process.pid}) did not end within its grace time: it is killed.")
            process.send_signal(signal.SIGKILL)
        return await ending

    def _on_end(self, process: WorkerProcess, code: int) -> None:
        """Report what was lost with a process, in the background."""
        if not process.identity:
            self._spans.settle(process, {})
            return
        self._in_background(self._report(process, code))

    def _in_background(self, report: Coroutine[Any, Any, None]) -> None:
        """Run it as a task, which the supervisor's end waits for."""
        task = asyncio.create_task(report)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, process: WorkerProcess, code: int) -> None:
        if code == 0 and not process.attempts:
            self._spans.settle(process, {})
            return
        lost = self._lost_work(process, code)
        try:
            if self._client is None:
                self._client = await connect()
            async with aclosing(LostWorkReport(self._client, lost, self._is_handled)) as report:
                self._spans.settle(process, await report.report())
                for each in self._processes.values():
                    if not each.ended.is_set():
                        each.send_process_died()
                if not self._stop.is_set():
                    await report.look_again()
        except Exception as error:  # noqa: BLE001 - the server's timeouts apply then; the supervisor must live
            say(f"error: what process {process.index} had in flight could not be reported as lost: {error}")
            self._spans.settle(process, {})

    async def _return_unseen(self, processes: Sequence[WorkerProcess]) -> None:
        """Return tasks that the server has handed to polls which the draining processes ended: no code sees them.

        A run would wait for such a task's timeout. Servers that have the capability `worker_poll_complete_on_shutdown` end
        the polls themselves, and hand out none.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_END_POLLS):
                for process in processes:
                    await process.ended.wait()
        draining = [each for each in processes if not each.ended.is_set()]
        await self._look_for_unseen(processes)
        for process in draining:
            await process.ended.wait()
        await self._look_for_unseen(draining)

    async def _look_for_unseen(self, processes: Sequence[WorkerProcess]) -> None:
        with suppress(TimeoutError, RPCError, RuntimeError):  # the server is away: its timeouts apply
            async with asyncio.timeout(SECONDS_TO_RETURN):
                for process in processes:
                    self._client = self._client or await connect()
                    lost = LostWork.of_draining(process, list(self._processes.values()))
                    await LostWorkReport(self._client, lost, self._is_handled).look_for_unseen()

    def _lost_work(self, process: WorkerProcess, code: int) -> LostWork:
        now = time.monotonic()
        lately = {run: at for run, at in self._lost_lately.items() if now - at < ACTIVE_SECONDS}
        others, undecided = list(self._processes.values()), self._spans.held_attempts(process)
        lost = LostWork.of(process, others, undecided, _describe(code), lost_lately=lately)
        own = [run for run, at in process.runs.items() if now - at < ACTIVE_SECONDS]
        self._lost_lately = lately | dict.fromkeys([*own, *(each.run for each in lost.attempts)], now)
        return lost

    def _is_handled(self, run: Run, since: float) -> bool:
        """Whether a living process has reported a workflow task of the run since then."""
        living = (each for each in self._processes.values() if each.unready != "ended")
        return any(each.tasks.get(run, 0.0) >= since for each in living)

    async def _kill_the_silent(self) -> None:
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(SECONDS_OF_SILENCE / 10)
            self._say_notes()
            self._forks.reap({each.pid for each in self._processes.values() if each.is_started})
            self._in_background(self._forks.start_again())
            before, looked_at = looked_at, time.monotonic()
            if looked_at - before > SECONDS_OF_SILENCE / 2:
                # This process was frozen: what the workers have sent since is not read yet.
                for process in self._processes.values():
                    process.heard_at = looked_at
            for process in self._processes.values():
                if process.unready != "ended" and (reason := _silence(process, looked_at)):
                    say(f"Worker process {process.index} (pid {process.pid}) {reason}: it is killed.")
                    process.send_signal(signal.SIGKILL)

    async def _sleep(self, seconds: float) -> None:
        """Wait, or until the supervisor stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _unready(self) -> str:
        if self._stop.is_set():
            return "draining"
        reasons = {index: self._unready_process(index) for index in range(1, self._count + 1)}
        return "; ".join(f"process {index}: {reason}" for index, reason in reasons.items() if reason)

    def _say_notes(self) -> None:
        for note in (notes := self._notes()):
            if note not in self._said:
                say(f"warning: {note}")
        self._said = notes

    def _notes(self) -> list[str]:
        """What is wrong while the processes serve, once where several say it."""
        return list(dict.fromkeys(note for each in self._processes.values() for note in each.notes))

    def _unready_process(self, index: int) -> str:
        process = self._processes.get(index)
        if process is None:
            return "starting"
        silent = time.monotonic() - process.heard_at
        if process.identity and silent > SECONDS_OF_SILENCE / 6 and not process.unready:
            return f"has not responded for {silent:.0f} s"
        return process.unready


def _silence(process: WorkerProcess, now: float) -> str:
    """Why a process that has sent nothing for too long is killed; "": it is not."""
    silent = now - process.heard_at
    if process.identity:
        return "does not respond" if silent > SECONDS_OF_SILENCE else ""
    if not process.is_started:
        return ""
    limit = SECONDS_OF_SILENCE if process.is_forked else SECONDS_TO_BEGIN
    is_idle = now - max(process.heard_at, process.worked_at(now)) > SECONDS_WITHOUT_WORK
    if is_idle or silent > limit:
        return f"has not begun within {silent:.0f} s (see what its modules wait for as they are imported)"
    return ""


def _longer(delay: float) -> float:
    """The seconds to wait after a wait of `delay` seconds was of no use."""
    return min(LONGEST_DELAY, delay * 2) or FIRST_DELAY


def _describe(code: int) -> str:
    """An exit code or a signal in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
