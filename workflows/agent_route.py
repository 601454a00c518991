"""Where the activities that need an agent run, on a task queue whose workers serve different agents.

A worker that does not serve the agent declines the activity, without having done anything, and names the queues of other
workers. The activity is scheduled there, and so are all that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TypeVar

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from mulligan.wire.agent_facts import AGENT_NOT_SERVED
from mulligan.workflows import limits

T = TypeVar("T")


class _NotServedError(Exception):
    """No worker that was tried serves the agent. `error` is from the first worker that declined.

    `is_certain`: false if a worker that serves it was named, and did not start the activity in time.
    """

    def __init__(self, error: ActivityError, *, is_certain: bool) -> None:
        super().__init__(str(error))
        self.error, self.is_certain = error, is_certain


class AgentRoute:
    """The task queue of the workers that serve one agent: the run's own, until an activity is declined there.

    `is_stopped`: whether the run is to stop, so that it waits no longer for a worker. `waiting`: registers a wait for one.
    `priority`: that of its activities.
    """

    def __init__(
        self, is_stopped: Callable[[], bool], waiting: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self._is_stopped, self._waiting = is_stopped, waiting
        self._queue: str | None = None
        self.priority = Priority.default

    async def run(self, schedule: Callable[[str | None], Awaitable[T]], *, waits: bool = True) -> T:
        """The result of an activity, from a worker that serves the agent.

        Args:
            schedule: Schedules the activity on a queue; None: where it belongs if all workers serve the same.
            waits: Whether to wait for such a worker, as long as it takes, if there is none.

        Raises:
            ActivityError: the activity failed; or it was declined everywhere, and `waits` is false or the run is to stop.
        """
        pause = limits.NOT_SERVED_FIRST_PAUSE
        with ExitStack() as while_waiting:
            while True:
                try:
                    return await self._try_queues(schedule)
                except _NotServedError as not_served:
                    if self._is_stopped() or (not waits and not_served.is_certain):
                        raise not_served.error from not_served.error.cause
                    if not waits:
                        continue  # workers that are gone are named for about a minute
                if pause == limits.NOT_SERVED_FIRST_PAUSE:
                    while_waiting.enter_context(self._waiting())
                await self._pause(pause)
                pause = min(2 * pause, limits.NOT_SERVED_LONGEST_PAUSE)

    async def _try_queues(self, schedule: Callable[[str | None], Awaitable[T]]) -> T:
        queues, tried, declined = [self._queue], 0, None
        unstarted: set[str | None] = set()
        while tried < min(len(queues), limits.QUEUES_TRIED):
            queue = queues[tried]
            tried += 1
            try:
                result = await schedule(queue)
            except ActivityError as error:
                others = _other_queues(error, queue)
                if others is None:
                    self._queue = queue
                    raise
                unstarted = unstarted & set(others) if is_declined(error) else unstarted | {queue}
                # Not the timeout of a queue without workers: it would be taken for that of the tool's own queue.
                declined = declined if declined is not None and is_declined(declined) else error
                queues += [each for each in others if each not in queues]
            else:
                self._queue = queue
                return result
        self._queue = None
        assert declined is not None
        raise _NotServedError(declined, is_certain=not unstarted)

    async def _pause(self, seconds: float) -> None:
        try:
            await workflow.wait_condition(
                self._is_stopped, timeout=seconds, timeout_summary="no worker serves the agent"
            )
        except asyncio.TimeoutError:  # noqa: UP041 - `TimeoutError` is Temporal's here
            return


def is_declined(error: ActivityError) -> bool:
    """Whether the worker declined the activity, as it does not serve the agent: then the activity has done nothing."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == AGENT_NOT_SERVED


def _other_queues(error: ActivityError, queue: str | None) -> list[str | None] | None:
    """Where the activity may be scheduled next; None if it has failed for another reason than that nobody serves it."""
    if is_declined(error):
        assert isinstance(error.cause, ApplicationError)
        named = error.cause.details[0] if error.cause.details else []
        return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    is_unstarted = isinstance(error.cause, TimeoutError) and error.cause.type is TimeoutType.SCHEDULE_TO_START
    # The workers of that queue are gone, or serve other agents since: any worker of the run's own queue knows better.
    return [None] if queue is not None and is_unstarted else None
