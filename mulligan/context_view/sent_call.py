"""Finds the model call of a step in the history of a run: what its activity was given, and with which settings it called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from mulligan.client.unless_missing import unless_missing
from mulligan.features import parts
from mulligan.wire.model_call import CALL_MODEL, ModelCall

_ACTIVITIES = {CALL_MODEL, *(name for part in parts("wire") for name in getattr(part, "ACTIVITIES", ()))}
"""Activities whose input may be a model call: the feature that carries a call out has an activity of its own for it."""


@dataclass
class SentCall:
    """The last model call of a step. `settings`: those that the answer names; None: it names none, or there is no answer."""

    call: ModelCall
    settings: dict[str, JsonValue] | None = None


async def find_sent_call(client: Client, workflow_id: str, run_id: str, trace: str, step: int) -> SentCall | None:
    """The last model call of a step, of whichever run of a chain made it; None: none did, as far as history is there.

    Args:
        client: A client of the run's server.
        workflow_id: The run.
        run_id: The last workflow run of the chain that may have made it.
        trace: The traceparent of the turn.
        step: The step's number in its turn.

    Raises:
        RPCError: Temporal does not answer.
        RuntimeError, ValueError: the history cannot be decoded.
    """
    while run_id:
        read = await unless_missing(_read(client, workflow_id, run_id, trace, step))
        if read is None:
            return None
        sent, run_id = read
        if sent is not None:
            return sent
    return None


async def _read(client: Client, workflow_id: str, run_id: str, trace: str, step: int) -> tuple[SentCall | None, str]:
    """The last call in one workflow run, and the id of the run before it, "" if it is the first."""
    sent, scheduled, before = None, dict[int, SentCall](), ""
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            before = event.workflow_execution_started_event_attributes.continued_execution_run_id
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            attributes = event.activity_task_scheduled_event_attributes
            if attributes.activity_type.name in _ACTIVITIES:
                call = _call(await _decoded(client, attributes.input))
                if call is not None and (call.step, call.where.trace) == (step, trace):
                    sent = scheduled[event.event_id] = SentCall(call)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            if completed.scheduled_event_id in scheduled:
                outcome = await _decoded(client, completed.result)
                scheduled[completed.scheduled_event_id].settings = _settings(outcome)
    return sent, before


async def _decoded(client: Client, payloads: Payloads) -> Any:
    values = await client.data_converter.decode(payloads.payloads[:1])
    return values[0] if values else None


def _call(value: Any) -> ModelCall | None:
    try:
        return ModelCall.model_validate(value)
    except ValidationError:
        return None


def _settings(outcome: Any) -> dict[str, JsonValue] | None:
    """The settings in a model's answer, which may be the result of the activity, or a part of it."""
    answer = outcome.get("answer") or outcome if isinstance(outcome, Mapping) else {}
    settings = answer.get("settings") if isinstance(answer, Mapping) else None
    return settings if isinstance(settings, dict) else None
