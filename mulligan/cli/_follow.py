"""Follow a run in the terminal: the events of each of its agents, and what it waits for while nothing happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console

from mulligan.cli._live_view import LiveView
from mulligan.cli._terminal import print_progress
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.values import WaitingFor

SHORTEST_PAUSE, LONGEST_PAUSE = 0.7, 3.0
"""Seconds between two looks at what the run waits for: first, and while nothing changes."""
QUIET_TOOL, QUIET_MODEL = 2.0, 10.0
"""Seconds after which a wait for a tool, or for a model that has not failed, is printed."""
QUERY_TIMEOUT = timedelta(seconds=2)
"""For the query for the agents of a workflow."""
LAST_QUERY_TIMEOUT = timedelta(seconds=10)
"""For the same query after the run has closed: agents that it does not find are not shown."""
REPEAT_AFTER = 3.0
"""Seconds after which a wait whose attempt or heartbeat has changed is printed again."""


@contextmanager
def run_continues(run_id: str) -> Iterator[None]:
    """If the body is ended by Ctrl-C, say that the run continues."""
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        print_progress(f"The run continues: mulligan tail {run_id}")
        raise


class RunFollower:
    """Prints a run's events until it is closed.

    A workflow of a user's own may have several agents: each is followed, and a heading names the one whose events come next.
    """

    def __init__(self, client: Client, run_id: str, console: Console, since: str = "") -> None:
        self._client = client
        self._run_id = run_id
        self._console = console
        self._since = since
        self._views: dict[str, LiveView] = {}
        self._names: dict[str, str] = {}
        self._printing = ""
        """The conversation that was printed last."""
        self._is_open = True
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._may_have_several = True

    @property
    def last_answers(self) -> list[str]:
        """The newest answer of each agent, which are already printed."""
        return [view.last_answer for view in self._views.values()]

    async def follow(self) -> None:
        """Print the events.

        Raises:
            ValueError, WorkflowQueryFailedError: see `mulligan.events.follow`.
        """
        from temporalio.client import WorkflowExecutionStatus

        from mulligan.wire.run_context import AGENT_WORKFLOW

        description = await self._client.get_workflow_handle(self._run_id).describe()
        self._is_open = description.status == WorkflowExecutionStatus.RUNNING
        self._may_have_several = description.workflow_type != AGENT_WORKFLOW
        await self._find_conversations()
        if "0" not in self._followers:
            self._start("0")
        watcher = asyncio.create_task(self._watch_waits())
        try:
            await self._all_followed()
            # The other agents of a short run may not have been seen while it was open.
            await self._find_conversations(LAST_QUERY_TIMEOUT)
            await self._all_followed()
        finally:
            for task in (watcher, *self._followers.values()):
                task.cancel()
            for view in self._views.values():
                view.end_line()

    async def _all_followed(self) -> None:
        """Wait until the events of each agent are printed, also of those that are found meanwhile."""
        while pending := [task for task in self._followers.values() if not task.done()]:
            await asyncio.wait(pending, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        for task in self._followers.values():
            task.result()

    def _start(self, conversation: str) -> None:
        self._views[conversation] = LiveView(self._console, self._run_id, is_open=self._is_open)
        self._followers[conversation] = asyncio.create_task(self._follow(conversation))

    async def _follow(self, conversation: str) -> None:
        from mulligan.client.follow_events import follow

        is_first = conversation == "0"
        events = follow(
            self._client,
            self._run_id,
            since=self._since if is_first else "",
            conversation=None if is_first else conversation,
        )
        async for event in events:
            self._print_heading(conversation)
            self._views[conversation].show(event)

    def _print_heading(self, conversation: str) -> None:
        """The name of the agent whose events follow, if the workflow has several."""
        if len(self._names) > 1 and self._printing != conversation:
            for view in self._views.values():
                view.end_line()
            name = printable(self._names.get(conversation, ""))
            self._console.print(f"{name} ({conversation})", style="bold cyan")
        self._printing = conversation

    async def _find_conversations(self, timeout: timedelta = QUERY_TIMEOUT) -> None:
        """Follow the agents that are not followed yet."""
        from temporalio.client import WorkflowQueryFailedError
        from temporalio.service import RPCError

        if not self._may_have_several:
            return
        handle = self._client.get_workflow_handle(self._run_id)
        with suppress(WorkflowQueryFailedError, RPCError):
            self._follow_new(await handle.query("progress", rpc_timeout=timeout))

    def _follow_new(self, progress: dict[str, Any] | None) -> None:
        conversations = (progress or {}).get("conversations") or []
        self._names |= {each["conversation"]: each["agent"] for each in conversations}
        for key in self._names:
            if key not in self._followers:
                self._start(key)

    async def _watch_waits(self) -> None:
        """Print what the run waits for, once it is clear that it waits."""
        await watch_waits(
            self._client,
            self._run_id,
            self._print_wait,
            is_writing=lambda: any(view.is_writing for view in self._views.values()),
            on_progress=self._follow_new,
        )

    def _print_wait(self, waiting: WaitingFor) -> None:
        for view in self._views.values():
            view.end_line()
        self._console.print(f"  … {printable(waiting.detail)}", style="dim", soft_wrap=True)


async def watch_waits(
    client: Client,
    run_id: str,
    write: Callable[[WaitingFor], None],
    *,
    is_writing: Callable[[], bool] = lambda: False,
    on_progress: Callable[[dict[str, Any] | None], None] | None = None,
) -> NoReturn:
    """Write what a run waits for, until cancelled.

    Args:
        client: a client of the run's server.
        run_id: the run.
        write: called with a wait that has lasted, and again when its attempt, failure or heartbeat has changed.
        is_writing: whether a model's text is coming: then a wait for a model is not reported.
        on_progress: called with each answer of the query `progress`.
    """
    from mulligan.client.wait_reader import WaitReader

    waits = _DueWaits(write, is_writing)
    reader, pause = WaitReader(client), SHORTEST_PAUSE
    while True:
        await asyncio.sleep(pause)
        waiting = await reader.read_or_none(run_id)  # the events, which are followed, report why
        if on_progress is not None:
            on_progress(reader.last_progress)
        is_new = waits.add(waiting)
        pause = SHORTEST_PAUSE if is_new else min(pause * 1.3, LONGEST_PAUSE)


class _DueWaits:
    """Writes a wait when it has lasted, and again when its attempt, failure or heartbeat has changed."""

    def __init__(self, write: Callable[[WaitingFor], None], is_writing: Callable[[], bool]) -> None:
        self._write, self._is_writing = write, is_writing
        self._key: tuple[str, str] | None = None
        self._first_seen = self._written_at = 0.0
        self._written = ""

    def add(self, waiting: WaitingFor | None) -> bool:
        """Write the wait, if it is due. Returns whether the run waits for something else than before."""
        now = time.monotonic()
        key = (waiting.kind, waiting.since) if waiting else None
        is_new = key != self._key
        if is_new:
            self._key, self._first_seen = key, now
        if waiting is None or waiting.detail == self._written or not self._is_due(waiting, now):
            return is_new
        if is_new or self._written_at == 0.0 or now - self._written_at >= REPEAT_AFTER:
            self._write(waiting)
            self._written, self._written_at = waiting.detail, now
        return is_new

    def _is_due(self, waiting: WaitingFor, now: float) -> bool:
        from mulligan.client.wait_reader import is_without_worker

        lasted = now - self._first_seen
        match waiting.kind:
            case "tool":
                return lasted >= QUIET_TOOL
            case "model":
                return waiting.last_failure is not None or (lasted >= QUIET_MODEL and not self._is_writing())
        return waiting.kind != "worker" or is_without_worker(waiting) or lasted >= QUIET_TOOL
