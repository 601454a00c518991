"""Answers queries of ended runs without a worker. Clients of `mulligan serve` and of the commands have this interceptor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistory,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
)
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from mulligan.client.read_run import NO_WORKER_STATUSES, QUERY_TIMEOUT
from mulligan.wire.resume_page import RESUME_STATE_QUERY
from mulligan.wire.run_context import AGENT_WORKFLOW

if TYPE_CHECKING:
    from mulligan.workflows.agent_workflow import AgentWorkflow

MOST_KEPT, MOST_KEPT_BYTES = 16, 64_000_000
"""The replayed runs that a client keeps: their number, and the bytes of their histories."""
SECONDS_SILENT = 30.0
"""For how long no worker of a task queue is asked after none has answered: that takes up to ten seconds each time."""
MOST_AT_ONCE = 1
"""Replays at a time: each takes a core."""
_QUERIES = {name: name for name in ("progress", "messages", "steps", "events")} | {RESUME_STATE_QUERY: "resume_state"}
"""The method of the workflow, by the name of the query."""

_log = logging.getLogger(__name__)


def with_ended_runs(client: Client) -> Client:
    """A client with the same connection, which can also read ended runs if none of their workers answers."""
    config = client.config()
    config["interceptors"] = [*config["interceptors"], EndedRunQueries()]
    return Client(**config)


@dataclass(frozen=True)
class _Replayed:
    """A replayed run: its workflow id, the object, and the bytes of its history."""

    id: str
    workflow: AgentWorkflow
    size: int


class EndedRunQueries(Interceptor):
    """Replays the history of an ended run if none of its workers answers a query."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        """Wrap the client's calls."""
        return _Outbound(next)


class _Outbound(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._kept: OrderedDict[str, _Replayed] = OrderedDict()
        """By workflow run id, the most recently used last."""
        self._silent: dict[str, float] = {}
        """Task queues without a worker, and until when (of the monotonic clock) none is expected."""
        self._replaying = asyncio.Semaphore(MOST_AT_ONCE)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
        """The answer of a worker, or that of a replay in this process."""
        if input.query not in _QUERIES:
            return await super().query_workflow(input)
        if self._is_known(input.id):
            run = await self._describe(input)
            if run.run_id in self._kept or (_can_replay(run) and run.task_queue in self._silent):
                with suppress(_UnreadableHistoryError):
                    return await self._answer(run, input)
        try:
            return await super().query_workflow(input)
        except RPCError as error:
            if error.status not in NO_WORKER_STATUSES:
                raise
            run = await self._describe(input)
            if not _can_replay(run):
                raise
            try:
                answer = await self._answer(run, input)
            except _UnreadableHistoryError as unreadable:
                reason = repr(unreadable.__cause__)
                _log.warning("No worker answers for the ended run %s, and it cannot be replayed: %s", input.id, reason)
                raise error from None
            self._silent[run.task_queue] = time.monotonic() + SECONDS_SILENT
            return answer

    def _is_known(self, workflow_id: str) -> bool:
        """Whether a run may be answered without asking a worker."""
        now = time.monotonic()
        self._silent = {queue: until for queue, until in self._silent.items() if until > now}
        return bool(self._silent) or any(replayed.id == workflow_id for replayed in self._kept.values())

    async def _describe(self, input: QueryWorkflowInput) -> WorkflowExecutionDescription:  # noqa: A002 - Temporal's name
        return await self.next.describe_workflow(DescribeWorkflowInput(input.id, input.run_id, {}, QUERY_TIMEOUT))

    async def _answer(self, run: WorkflowExecutionDescription, input: QueryWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
        """What the workflow of an ended run answers.

        Raises:
            _UnreadableHistoryError: its history cannot be replayed.
            WorkflowQueryFailedError: the query's arguments are at fault.
        """
        async with self._replaying:
            if run.run_id not in self._kept:
                await self._replay(run)
        self._kept.move_to_end(run.run_id)
        try:
            return getattr(self._kept[run.run_id].workflow, _QUERIES[input.query])(*input.args)
        except (TypeError, ValueError) as error:
            raise WorkflowQueryFailedError(str(error)) from None

    async def _replay(self, run: WorkflowExecutionDescription) -> None:
        from mulligan.ended_runs.replay import replay  # the workflow takes a while to import

        events = self.next.fetch_workflow_history_events(
            FetchWorkflowHistoryEventsInput(
                id=run.id, run_id=run.run_id, page_size=None, next_page_token=None, wait_new_event=False,
                event_filter_type=WorkflowHistoryEventFilterType.ALL_EVENT, skip_archival=False, rpc_metadata={},
                rpc_timeout=None,
            )
        )  # fmt: skip
        history = WorkflowHistory(run.id, [event async for event in events])
        await _check_keys(history, run.data_converter)
        try:
            workflow = await replay(history, run.data_converter)
        except Exception as error:
            raise _UnreadableHistoryError from error
        size = sum(event.ByteSize() for event in history.events)
        self._kept[run.run_id] = _Replayed(run.id, workflow, size)
        while len(self._kept) > MOST_KEPT or (
            len(self._kept) > 1 and sum(each.size for each in self._kept.values()) > MOST_KEPT_BYTES
        ):
            self._kept.popitem(last=False)


def _can_replay(run: WorkflowExecutionDescription) -> bool:
    return run.status != WorkflowExecutionStatus.RUNNING and run.workflow_type == AGENT_WORKFLOW


class _UnreadableHistoryError(Exception):
    """A history cannot be replayed; the cause says why."""


async def _check_keys(history: WorkflowHistory, converter: DataConverter) -> None:
    """Check that the run's data can be decrypted. In a replay, the workflow would refuse it as invalid input.

    Raises:
        KeyError: there are no keys, as for the answer of a worker.
        ValueError: the key is not among them.
    """
    from mulligan.client.encryption import ENCODING

    given = history.events[0].workflow_execution_started_event_attributes.input.payloads
    [*decoded] = await converter.decode(given, [RawValue] * len(given))
    for raw in decoded:
        if raw.payload.metadata.get("encoding") == ENCODING:
            raise KeyError(f"Unknown payload encoding {ENCODING.decode()}")
