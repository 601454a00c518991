"""Workflow tasks with payloads that cannot be decrypted: only the request that brought one fails.

The SDK decrypts everything in a workflow task before any code of the workflow runs, and an error fails the task, again and
again. So the codec of the workflow worker puts a payload that no converter accepts in the place of one that it cannot
decrypt. An update or a query with it is refused, a start or a result fails the run, a signal arrives without its content.

But where the worker lacks the key, another one may have it, and all these would be lost. Then the workflow task fails, and
Temporal tries it again, for a day. An update or a query is refused at once: whoever sent it is told, and can send it again.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Lock
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker

from mulligan.client.converter import REFUSED, RETRY
from mulligan.errors import DeclarationError

__all__ = ["UnreadablePayloads", "decode_without_errors"]

_Activate = Callable[[WorkflowActivation], WorkflowActivationCompletion]
WAIT = timedelta(days=1)
"""For how long the workflow task of a run fails, from the first time that this process sees it, until somebody has started
a worker with the key."""
MOST_RUNS = 10_000
"""How many such runs a process remembers."""
_ANSWERED = {"do_update", "query_workflow"}
"""Jobs whose sender is told of the refusal."""


def decode_without_errors(worker: Worker) -> None:
    """Let the worker's workflow tasks use a codec that refuses payloads instead of raising errors. Before it runs.

    Raises:
        DeclarationError: this version of temporalio has no workflow worker with a data converter.
    """
    # The SDK has no public API for a codec of workflow tasks only.
    workflows: Any = getattr(worker, "_workflow_worker", None)
    if workflows is None:
        return
    converter = getattr(workflows, "_data_converter", None)
    if converter is None:
        raise DeclarationError(
            "Mulligan does not know this version of temporalio: it cannot set the codec of workflow tasks. Install "
            "temporalio 1.35."
        )
    for_workflow_tasks = getattr(converter.payload_codec, "for_workflow_tasks", None)
    if for_workflow_tasks is not None:
        workflows._data_converter = dataclasses.replace(converter, payload_codec=for_workflow_tasks())


class UnreadablePayloads:
    """The runs of one worker that wait for a worker with the key of one of their payloads. It is thread-safe."""

    def __init__(self) -> None:
        self._since: OrderedDict[str, float] = OrderedDict()
        """When the task of each run failed for the first time, in seconds since the epoch by Temporal's clock."""
        self._lock = Lock()

    def checked(self, activate: _Activate) -> _Activate:
        """The `activate` of a workflow's instance, which fails while such a payload may still be decrypted elsewhere."""

        def activate_checked(act: WorkflowActivation) -> WorkflowActivationCompletion:
            for job in act.jobs:
                # A search of the bytes first: it is quick, and almost no workflow task has such a payload.
                if job.WhichOneof("variant") not in _ANSWERED and RETRY.encode() in job.SerializeToString():
                    for payload in _payloads(job):
                        if RETRY in payload.metadata and payload.metadata.get("encoding") == REFUSED:
                            self._wait_for_key(act, payload.data.decode(errors="replace"))
            return activate(act)

        return activate_checked

    def _wait_for_key(self, act: WorkflowActivation, reason: str) -> None:
        now = act.timestamp.seconds
        with self._lock:
            since = self._since.setdefault(act.run_id, now)
            while len(self._since) > MOST_RUNS:
                self._since.popitem(last=False)
        if now - since < WAIT.total_seconds():
            raise ValueError(reason)


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
