"""Workflow tasks with payloads that cannot be read: only the request that brought one fails.

The fault: the SDK decrypts everything in a workflow task, and reads what is in external storage, before any code of the
workflow runs. An error fails the task, again and again, and there is no public way to give workflow tasks a data
converter of their own. So workflow tasks have a data converter that puts a payload that no payload converter accepts in
the place of one that it cannot read. An update or a query with it is refused, a start or a result fails the run, a signal
arrives without its content (readable_signals.py).

Where this worker lacks the key or the storage, or the storage does not answer, the payload may be good, and a result
would be lost. Then the workflow task fails, and Temporal tries it again, for a day. New updates and queries, which can be
sent again, and signals whose content is not needed do not wait. Nothing waits once the run is cancelled.

Upstream: temporalio/sdk-python issue 321 (closed without the codec), temporalio/features issue 273 (open). Needed with
temporalio 1.35.0.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from threading import Lock
from time import monotonic
from typing import Any, Self

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.converter import DataConverter, SerializationContext, WithSerializationContext
from temporalio.worker import Worker

from mulligan.client.converter import REFUSED, RETRY, PayloadConverter, refused
from mulligan.client.stored_files import LostError
from mulligan.errors import DeclarationError, truncated
from mulligan.schema.error_text import error_text, type_name

_Step = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
WAIT = timedelta(days=1)
"""The time in which a run's workflow tasks fail, from the first failure that this process sees. In it, somebody can start
a worker with the key or the storage."""
MOST_RUNS = 10_000
"""The number of such runs that a process remembers."""
NOT_NOW, NOT_HERE = b"1", b"not here"
"""The values of `RETRY`: the key or the storage is missing now; this worker has no such storage. A run that has not begun
does not wait for the latter: it fails at once, and says so."""
_WRONG_CLAIM = (ValueError, KeyError, DecodeError)
"""The errors that the SDK's own drivers raise for a claim that is wrong. Errors of the network have the type RuntimeError
there; drivers of users raise any type for them, ssl.SSLCertVerificationError is a ValueError."""


def decode_without_errors(worker: Worker) -> None:
    """Let the worker's workflow tasks use a data converter that refuses payloads instead of raising errors.

    Call it before the worker runs.

    Raises:
        DeclarationError: this version of temporalio has no workflow worker with a data converter.
    """
    # The SDK has no public API for a data converter of workflow tasks only.
    workflows: Any = getattr(worker, "_workflow_worker", None)
    if workflows is None:
        return
    converter = getattr(workflows, "_data_converter", None)
    if converter is None or not hasattr(converter, "_external_retrieve_payload_sequence"):
        raise DeclarationError(
            "Mulligan does not know this version of temporalio: it cannot set the data converter of workflow tasks. "
            "Install temporalio 1.35."
        )
    for_workflow_tasks = getattr(converter.payload_codec, "for_workflow_tasks", None)
    fields = {each.name: getattr(converter, each.name) for each in dataclasses.fields(converter) if each.init}
    if for_workflow_tasks is not None:
        fields["payload_codec"] = for_workflow_tasks()
    workflows._data_converter = _RefusingConverter(**fields)


@dataclasses.dataclass(frozen=True)
class _RefusingConverter(DataConverter):
    """A data converter whose three steps of decoding refuse payloads and raise no errors."""

    @cached_property
    def _depends_on_context(self) -> bool:
        parts = (self.payload_codec, self.failure_converter, self.external_storage)
        has_own = self.payload_converter_class is not PayloadConverter
        return has_own or any(isinstance(each, WithSerializationContext) for each in parts)

    def with_context(self, context: SerializationContext) -> Self:
        """The converter for a context. The SDK asks for it twenty times a step, which is slow."""
        return super().with_context(context) if self._depends_on_context else self

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        # Nobody but this converter may say that a payload is to be waited for.
        own = [refused("No codec has written it.") if _is_refused(each) else each for each in payloads]
        return await _each(super()._decode_reference_payload_sequence, own, self._why_not_stored)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await _each(super()._external_retrieve_payload_sequence, payloads, self._why_not_stored)

    async def _decode_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        if any(map(_is_refused, payloads)):
            return [p for each in payloads for p in ([each] if _is_refused(each) else await self._decoded(each))]
        return await _each(super()._decode_payload_sequence, payloads, _why_not_decoded)

    async def _decoded(self, payload: Payload) -> list[Payload]:
        return await _each(super()._decode_payload_sequence, [payload], _why_not_decoded)

    def _why_not_stored(self, payload: Payload, error: Exception) -> Payload:
        if self.external_storage is None:
            return refused(
                "It is in external storage, but this worker's MULLIGAN_EXTERNAL_STORAGE is not set.", retry=NOT_HERE
            )
        text = truncated(error_text(error))
        if text.startswith("No driver found"):
            return refused(
                "It is in another kind of external storage than this worker's MULLIGAN_EXTERNAL_STORAGE names.",
                retry=NOT_HERE,
            )
        cause = error.__cause__ or error
        if isinstance(error, LostError) or isinstance(cause, LostError) or self._is_wrong(payload, error):
            return refused(f"It is in external storage, which does not have it. {truncated(error_text(cause))}")
        return refused(f"It is in external storage, which cannot be read now. {text}", retry=NOT_NOW)

    def _is_wrong(self, payload: Payload, error: Exception) -> bool:
        """Whether a stored payload's reference is at fault for the error, and not the storage."""
        assert self.external_storage is not None
        try:
            reference = self.external_storage._decode_reference(payload)
        except Exception:  # noqa: BLE001 - JSON and types of every kind
            return True
        if reference is None:  # it is encoded itself
            return isinstance(error, DecodeError)
        driver = self.external_storage._driver_map.get(reference.driver_name)
        return type(driver).__module__.startswith("temporalio.contrib.") and isinstance(error, _WRONG_CLAIM)


async def _each(
    step: _Step, payloads: Sequence[Payload], why: Callable[[Payload, Exception], Payload]
) -> list[Payload]:
    """The payloads after a step; for each that the step raises an error for, what `why` returns."""
    try:
        return await step(payloads)
    except Exception as error:  # noqa: BLE001 - codecs and drivers of storage raise what they like
        if len(payloads) == 1:
            return [why(payloads[0], error)]
    return [result for payload in payloads for result in await _each(step, [payload], why)]


def _why_not_decoded(payload: Payload, error: Exception) -> Payload:
    del payload
    return refused(f"The codec raised {type_name(error)}: {truncated(error_text(error))}", retry=NOT_NOW)


def _is_refused(payload: Payload) -> bool:
    return payload.metadata.get("encoding") == REFUSED


class UnreadablePayloads:
    """The runs of one worker that wait for a payload which another worker, or this one later, can read. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` returns seconds. Temporal's time of a task is no clock: in a replay it is the time of the history."""
        self._clock = clock
        self._since: OrderedDict[str, float] = OrderedDict()
        """The time of the first failure of each run that waits."""
        self._ended: OrderedDict[tuple[str, int], None] = OrderedDict()
        """The run and the length of the history of tasks that were done without their payload, for replays of them."""
        self._lock = Lock()

    def check(self, act: WorkflowActivation, waits_of_signal: Callable[[str], Collection[bytes]]) -> None:
        """Check whether a run has to wait. `waits_of_signal`: the values of `RETRY` for which a signal of a name waits.

        Raises:
            ValueError: its run waits for a payload.
        """
        refusal = next(_awaited_of_task(act, waits_of_signal), None)
        if refusal is not None:
            self._wait(act, refusal.data.decode(errors="replace"))
        elif is_new(act):
            with self._lock:
                self._since.pop(act.run_id, None)

    def _wait(self, act: WorkflowActivation, reason: str) -> None:
        task, now = (act.run_id, act.history_length), self._clock()
        with self._lock:
            if task in self._ended:
                return
            if now - self._since.setdefault(act.run_id, now) >= WAIT.total_seconds():
                del self._since[act.run_id]  # another payload gets the whole time
                self._ended[task] = None
                reason = ""
            for table in (self._since, self._ended):
                while len(table) > MOST_RUNS:
                    table.popitem(last=False)
        if reason:
            raise ValueError(reason)


def is_new(act: WorkflowActivation) -> bool:
    """Whether a task goes on from the end of the history. Between two attempts, the run is evicted, replayed and queried."""
    return not act.is_replaying and any(
        job.WhichOneof("variant") not in ("query_workflow", "remove_from_cache") for job in act.jobs
    )


def _awaited_of_task(act: WorkflowActivation, waits_of_signal: Callable[[str], Collection[bytes]]) -> Iterator[Payload]:
    if any(job.HasField("cancel_workflow") for job in act.jobs):
        return
    for job in act.jobs:
        # A search of the bytes first: it is quick, and almost no workflow task has such a payload.
        if RETRY.encode() in job.SerializeToString():
            yield from _awaited(job, waits_of_signal)


def _awaited(job: WorkflowActivationJob, waits_of_signal: Callable[[str], Collection[bytes]]) -> Iterator[Payload]:
    """The refused payloads of a job that may be readable later, and that cannot be sent again."""
    waits: Collection[bytes] = (NOT_NOW, NOT_HERE)
    payloads: Iterable[Payload]
    match job.WhichOneof("variant"):
        case "query_workflow":  # its sender gets the refusal
            return
        case "do_update":
            if job.do_update.run_validator:  # its sender gets the refusal
                return
            payloads = job.do_update.input  # accepted before, so it was readable
        case "signal_workflow":
            payloads, waits = job.signal_workflow.input, waits_of_signal(job.signal_workflow.signal_name)
        case "initialize_workflow":
            payloads = job.initialize_workflow.arguments
            if not job.initialize_workflow.continued_from_execution_run_id:
                waits = (NOT_NOW,)
        case _:
            payloads = _payloads(job)
    yield from (each for each in payloads if _is_refused(each) and each.metadata.get(RETRY) in waits)


def _payloads(message: Any) -> Iterator[Payload]:
    """All payloads in a protobuf message."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in value.values():
                    yield from _payloads(each)
        elif hasattr(value, "ListFields"):
            yield from _payloads(value)
        else:
            for each in value:
                yield from _payloads(each)
