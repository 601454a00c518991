"""A workflow with its activities, in one order of events, which is the same each time: what is done first comes first.

No time passes: a timer fires when nothing else can happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import CancelledError

from mulligan.client.converter import data_converter
from mulligan.testing._activities import PAYLOADS, Activities, cancelled
from mulligan.testing._engine import Engine
from mulligan.testing.person import PersonDriver
from mulligan.worker.sdk_workarounds.activation_messages import ActivityResolution, DoUpdate, WorkflowActivationJob


class OrderedRun:
    """One execution of a workflow, with its children."""

    def __init__(
        self,
        kind: type,
        activities: Sequence[Callable[..., Any]],
        workflow_id: str,
        *,
        person: PersonDriver | None = None,
        features: tuple[type, ...] = (),
    ) -> None:
        """`features`: those of loaded modules."""
        self._features = features
        self._kind, self._functions, self._workflow_id, self._person = kind, activities, workflow_id, person
        self._tasks: dict[asyncio.Task[ActivityResolution], tuple[str, int]] = {}
        """The activities that are not done, in the order of their start: the run's id and the number."""
        self.updates = 0
        """How many were sent."""
        self._left: list[asyncio.Task[ActivityResolution]] = []
        """Activities whose end no workflow waits for."""
        # A workflow has its own event loop, so it runs in a thread without one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="workflow")

    async def run(self, *arguments: Any) -> Any:
        """Run the workflow to its end, and return its result as JSON values.

        Raises:
            WorkflowFailureError: the workflow failed; a client of a server gets the same error.
            RuntimeError: its code raised an error that fails a workflow task, or needs a feature of the server.
        """
        self.engine: Engine = await self.in_thread(
            partial(Engine, features=self._features), self._kind, self._workflow_id, arguments, datetime.now(UTC)
        )
        root = self.engine.runs[self._workflow_id]
        try:
            while not root.status:
                await self.next()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, *self._left, return_exceptions=True)
        if root.status == "cancelled":
            raise WorkflowFailureError(cause=CancelledError("Workflow cancelled"))
        if root.status == "failed":
            raise WorkflowFailureError(cause=data_converter.failure_converter.from_failure(root.failure, PAYLOADS))
        return PAYLOADS.from_payload(root.result) if root.result is not None else None

    async def query(self, name: str, *arguments: Any) -> Any:
        """Query the workflow, while it runs or after its end.

        Raises:
            WorkflowQueryFailedError: it has no such query, or the query raised.
        """
        return await _Handle(self, self._workflow_id).query(name, *arguments)

    def close(self) -> None:
        """End the workflows' thread."""
        self._thread.shutdown(wait=False)

    async def in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the workflows' thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def next(self) -> None:
        """Let the next event happen: what needs no time, an activity that is done, a person's reply, or else a timer."""
        open_runs = [key for key, run in self.engine.runs.items() if not run.status]
        events = [(key, *each) for key in open_runs for each in self.engine.possible(key)]
        at_once = next((each for each in events if each[1] not in ("activity", "timer")), None)
        timers = [
            (self.engine.runs[key].timers[number], key, number) for key, kind, number in events if kind == "timer"
        ]
        if at_once is not None:
            await self.deliver(at_once[0], self.engine.job(*at_once))
        elif self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            # One at a time, in the order of their start, so that each run is the same.
            task = next(each for each in self._tasks if each in done)
            key, number = self._tasks.pop(task)
            # A task that was cancelled when it was scheduled has not run.
            result = cancelled() if task.cancelled() else task.result()
            await self.deliver(key, self.engine.job(key, "activity", number, result))
        elif await self._person_replied():
            return
        elif timers:
            _, key, number = min(timers)
            await self.deliver(key, self.engine.job(key, "timer", number))
        else:
            raise RuntimeError(
                "The workflow waits for a signal, an update, a deferred result or a person that this test does not have. "
                "Give `person=`, a function that decides and answers, if a call waits for a person."
            )

    async def _person_replied(self) -> bool:
        for key, run in list(self.engine.runs.items()):
            if self._person is not None and not run.status and await self._person.reply_to(_Handle(self, key)):
                return True
        return False

    async def deliver(self, key: str, job: WorkflowActivationJob) -> None:
        """Deliver a job, and start and cancel the activities that the workflow says then."""
        await self.in_thread(self.engine.deliver, key, [job])
        run = self.engine.runs[key]
        wanted = {} if run.status else run.activities
        known = {number for owner, number in self._tasks.values() if owner == key}
        for number, (request, is_local) in wanted.items():
            if number not in known:
                name = run.segment.definition.name or ""
                activities = Activities(self._functions, _Handle(self, key), key, name)
                self._tasks[asyncio.create_task(activities.run(request, is_local=is_local))] = key, number
        for task, (owner, number) in list(self._tasks.items()):
            if owner == key and (number in run.cancelling or number not in wanted):
                task.cancel()
                if number not in wanted:
                    del self._tasks[task]
                    self._left.append(task)


@dataclass
class _Handle:
    """One of the workflows, for its activities and for the person."""

    ordered: OrderedRun
    workflow_id: str

    async def query(self, name: str, *arguments: Any, result_type: Any = None, **_: Any) -> Any:
        """Return the result of a query.

        Raises:
            WorkflowQueryFailedError: it has no such query, or the query raised.
        """
        segment = self.ordered.engine.runs[self.workflow_id].segment
        return PAYLOADS.from_payload(await self.ordered.in_thread(segment.query, name, *arguments), result_type)

    async def update(self, name: str, argument: Any) -> Any:
        """Send an update, and return its result.

        Raises:
            WorkflowUpdateFailedError: it was refused.
        """
        number = str(self.ordered.updates)
        self.ordered.updates += 1
        payloads = PAYLOADS.to_payloads([argument])
        update = DoUpdate(id=number, protocol_instance_id=number, name=name, input=payloads, run_validator=True)
        await self.ordered.deliver(self.workflow_id, WorkflowActivationJob(do_update=update))
        while (answer := self._answer(number)) is None:
            await self.ordered.next()
        if answer.HasField("rejected"):
            raise WorkflowUpdateFailedError(data_converter.failure_converter.from_failure(answer.rejected, PAYLOADS))
        return PAYLOADS.from_payload(answer.completed)

    def _answer(self, number: str) -> Any:
        """The answer to an update; None while there is none."""
        answers = (each for _, each in self.ordered.engine.update_answers if each.protocol_instance_id == number)
        return next((each for each in answers if not each.HasField("accepted")), None)
