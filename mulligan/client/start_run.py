"""Starts a run once for an id, however often the same start is requested; and reads the input of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.converter import data_converter
from mulligan.client.external_storage import CARRY_BYTES
from mulligan.client.registered_attributes import RegisteredAttributes
from mulligan.client.store_content import store_content
from mulligan.client.unless_missing import unless_missing
from mulligan.errors import InvalidRunInputError
from mulligan.run_input import RunInput
from mulligan.wire.compressed_input import LONGEST_MESSAGE, PACKED_BYTES, compress_input, decompress_input
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.search_attributes import ORIGIN_ATTRIBUTE, listed_origin
from mulligan.wire.start_input import Origin, StartInput, parse_start_input
from mulligan.wire.start_memo import start_options

Handle = WorkflowHandle[Any, Any]

_REUSED = WorkflowIDReusePolicy.ALLOW_DUPLICATE
_NOT_STARTED = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
}
"""With which Temporal refuses a start. After any other status, the run may have been started."""


class StartUnknownError(RPCError):
    """Temporal has not answered a start, so that the run may or may not have been started."""

    def __init__(self, error: RPCError, workflow_id: str) -> None:
        super().__init__(error.message, error.status, b"")
        self.workflow_id = workflow_id


class IdTakenError(Exception):
    """There is a run with this id already, and its input is another one."""


@dataclass(frozen=True)
class BegunRun:
    """A run, and whether this request started it: otherwise it was there before, with the same input."""

    handle: Handle
    is_new: bool


async def start_run(
    client: Client, run_input: RunInput, workflow_id: str, task_queue: str, *, memo: Mapping[str, Any] | None = None
) -> BegunRun:
    """Start a run, or find the run that an earlier request with the same id and input has started.

    `memo`: more entries of the memo of a run that is started.

    Raises:
        IdTakenError: there is a run with this id, and another input.
        InvalidRunInputError: the input is too large for Temporal, or its content cannot be stored.
        RPCError: Temporal does not answer, or refuses the start.
    """
    given = await store_content(StartInput.of(run_input), check_messages=run_input.tenant is not None)
    try:
        handle = await begin_run(client, given, workflow_id, task_queue, memo=memo)
    except WorkflowAlreadyStartedError:
        existing: Handle = client.get_workflow_handle(workflow_id)
        if await read_input(client, workflow_id) != given:
            raise IdTakenError(
                f"There is a run {workflow_id!r} already, and its input is another one; choose another id."
            ) from None
        return BegunRun(existing, is_new=False)
    return BegunRun(client.get_workflow_handle(handle.id), is_new=True)


async def begin_run(
    client: Client,
    run_input: RunInput,
    workflow_id: str,
    task_queue: str,
    *,
    memo: Mapping[str, Any] | None = None,
    reuses_id: bool = False,
) -> Handle:
    """Start a run under an id that no run has, or with `reuses_id` no open one. The input's content is stored. `memo`: more
    entries of the run's memo.

    Raises:
        WorkflowAlreadyStartedError: there is a run with this id.
        InvalidRunInputError: the input is too large for Temporal.
        StartUnknownError: Temporal does not answer.
        RPCError: Temporal refuses the start.
    """
    given = StartInput.of(run_input)
    argument = await asyncio.to_thread(start_argument, client, given)  # a long conversation takes long
    with unknown_unless_refused(workflow_id):
        return await client.start_workflow(
            AGENT_WORKFLOW,
            argument,
            id=workflow_id,
            task_queue=task_queue,
            id_reuse_policy=_REUSED if reuses_id else WorkflowIDReusePolicy.REJECT_DUPLICATE,
            search_attributes=await _listed_origin(client, given.fork),
            **start_options(given, **(memo or {})),
        )


@contextmanager
def unknown_unless_refused(workflow_id: str) -> Iterator[None]:
    """Around the start of a run: after any error but a refusal, the run may have been started.

    Raises:
        StartUnknownError: Temporal does not answer.
        RPCError: Temporal refuses the start.
    """
    try:
        yield
    except RPCError as error:
        if error.status in _NOT_STARTED:
            raise
        raise StartUnknownError(error, workflow_id) from error


async def _listed_origin(client: Client, fork: Origin | None) -> TypedSearchAttributes:
    """By what the run is found as a fork, where the server has that search attribute."""
    if fork is None or ORIGIN_ATTRIBUTE.name not in await RegisteredAttributes().names(client):
        return TypedSearchAttributes.empty
    return TypedSearchAttributes([SearchAttributePair(ORIGIN_ATTRIBUTE, listed_origin(fork.workflow_id))])


def start_argument(client: Client, run_input: RunInput) -> Any:
    """The workflow's argument: the input, compressed if it is long.

    It travels in our own encoding, whoever has made the client: the SDK's sorts the keys of objects, and a model would be
    sent another conversation than that of the run before.

    Raises:
        InvalidRunInputError: it is too large for Temporal even so.
    """
    is_stored = client.data_converter.external_storage is not None
    sent = compress_input(
        parse_start_input(run_input.model_dump_json().encode()),
        most=CARRY_BYTES if is_stored else PACKED_BYTES,
        longest_message=None if is_stored else LONGEST_MESSAGE,
    )
    return sent if isinstance(sent, bytes) else RawValue(data_converter.payload_converter.to_payload(sent))


async def decode_start_input(client: Client, start: WorkflowExecutionStartedEventAttributes) -> StartInput:
    """The input with which a run was started.

    Raises:
        InvalidRunInputError: it is not a valid one.
    """
    arguments = await client.data_converter.decode(start.input.payloads) or [b""]
    if len(arguments) != 1:
        raise InvalidRunInputError(f"The run was started with {len(arguments)} arguments; give it one JSON object.")
    [argument] = arguments
    return parse_start_input(
        decompress_input(argument) if isinstance(argument, bytes) else json.dumps(argument).encode()
    )


async def read_start(first: Handle) -> WorkflowExecutionStartedEventAttributes:
    """How a workflow run was started."""
    event = await anext(first.fetch_history_events(page_size=1))
    return event.workflow_execution_started_event_attributes


async def run_before(client: Client, workflow_id: str, run_id: str | None) -> str:
    """The id of the workflow run that continued as this one; "" if none did, or the server has deleted this one."""
    started = await unless_missing(read_start(client.get_workflow_handle(workflow_id, run_id=run_id)))
    return started.continued_execution_run_id if started else ""


async def read_input(client: Client, workflow_id: str, run_id: str | None = None) -> StartInput | None:
    """The input of the first workflow run of a chain; None if it was not the input of an agent's run."""
    described = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    first_run_id = described.raw_description.workflow_execution_info.first_run_id or described.run_id
    first = client.get_workflow_handle(workflow_id, run_id=first_run_id)
    started = await read_start(first)
    if described.workflow_type != AGENT_WORKFLOW:
        return None
    try:
        return await decode_start_input(client, started)
    except InvalidRunInputError:
        return None
