"""Reads the activities that call a model in the history of a run, with what they were given and what they returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from mulligan.client.first_payload import first_payload
from mulligan.client.unless_missing import unless_missing
from mulligan.wire.model_call import ModelCall


@dataclass
class MadeCall:
    """A model call. `result`: what its activity has returned, as JSON; None: nothing yet."""

    call: ModelCall
    result: Any = None


async def model_calls(
    client: Client, workflow_id: str, run_id: str, activities: Collection[str]
) -> AsyncIterator[MadeCall]:
    """The model calls of a chain of workflow runs, the newest first, up to a run that the server has deleted.

    Args:
        client: A client of the run's server.
        workflow_id: The run.
        run_id: The last workflow run of the chain.
        activities: The types of activities whose input may be a model call.

    Raises:
        RPCError: Temporal does not answer.
        UnreadableError: a payload cannot be decoded.
    """
    while run_id:
        read = await unless_missing(_read(client, workflow_id, run_id, activities))
        if read is None:
            return
        calls, run_id = read
        for call in reversed(calls):
            yield call


async def _read(
    client: Client, workflow_id: str, run_id: str, activities: Collection[str]
) -> tuple[list[MadeCall], str]:
    """The model calls of a workflow run, and the id of the run before it; "": it is the first."""
    calls: dict[int, MadeCall] = {}
    before = ""
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        before = event.workflow_execution_started_event_attributes.continued_execution_run_id or before
        await _add(client.data_converter, event, activities, calls)
    return list(calls.values()), before


async def _add(
    converter: DataConverter, event: HistoryEvent, activities: Collection[str], calls: dict[int, MadeCall]
) -> None:
    scheduled = event.activity_task_scheduled_event_attributes
    if scheduled.activity_type.name in activities:
        given = await first_payload(converter, scheduled.input)
        with suppress(ValidationError):  # the input of another activity of the feature
            calls[event.event_id] = MadeCall(ModelCall.model_validate(given))
    ended = event.activity_task_completed_event_attributes
    if (made := calls.get(ended.scheduled_event_id)) is not None:
        made.result = await first_payload(converter, ended.result)
