"""Runs whose search attributes the server refuses, because somebody has removed them from the namespace.

The fault: the server refuses the completed workflow task, which is done again, and refused again. The Core SDK does not
tell the worker why the server has refused a task: it removes the run from the cache. So a run whose task set attributes
and was refused twice in a row sets none for a while (`mulligan.workflows.listed_status`, which records that it left them
out). Continue-as-new sets all that the run has: there they are left out here, as a replay does not compare them.

Upstream: temporalio/sdk-rust issue 521 (closed: the SDK logs the reason, but does not give it to code). Needed with
temporalio 1.35.0.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import encode_typed_search_attribute_value
from temporalio.workflow import Info

from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES

TIMES = 2
"""The connection to the server may have failed once."""
VALID_SECONDS = 600.0
"""After that time a run sets them again: they may be there again. That costs two refused workflow tasks if they are not."""
MOST_RUNS = 10_000
"""How many such runs a process remembers."""


class RefusedAttributes:
    """The runs of one worker whose tasks were refused after they had set search attributes. It is thread-safe."""

    def __init__(self) -> None:
        self._refused: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How often the task of each run was refused in a row, and when last, by the monotonic clock."""
        self._lock = Lock()

    def are_refused(self, run_id: str) -> bool:
        """Whether the run should not set search attributes now."""
        with self._lock:
            times, at = self._refused.get(run_id, (0, 0.0))
        return times >= TIMES and time.monotonic() - at < VALID_SECONDS

    def leave_out(self, commands: Iterable[WorkflowCommand], info: Info) -> None:
        """Let a run that continues as new have Mulligan's attributes no more; nor any other, if that is refused as well."""
        own = {each.name for each in SEARCH_ATTRIBUTES}
        with self._lock:
            keeps_others = self._refused.get(info.run_id, (TIMES, 0.0))[0] == TIMES
        for command in commands:
            if command.HasField("continue_as_new_workflow_execution"):
                attributes = command.continue_as_new_workflow_execution.search_attributes
                attributes.SetInParent()  # not set, it would be all that the run has
                for pair in info.typed_search_attributes if keeps_others else ():
                    if pair.key.name not in own:
                        encoded = encode_typed_search_attribute_value(pair.key, pair.value)
                        attributes.indexed_fields[pair.key.name].CopyFrom(encoded)

    def count_refusal(self, run_id: str) -> None:
        """The server has refused a task of the run that set attributes."""
        with self._lock:
            times, at = self._refused.pop(run_id, (0, 0.0))
            is_row = time.monotonic() - at < VALID_SECONDS
            self._refused[run_id] = (times + 1 if is_row else 1), time.monotonic()
            while len(self._refused) > MOST_RUNS:
                self._refused.popitem(last=False)

    def forget(self, run_id: str) -> None:
        """The server has accepted attributes of the run."""
        with self._lock:
            self._refused.pop(run_id, None)


class AttributesOfRun:
    """The activations of one workflow's instance, from which is learnt what the server refuses."""

    def __init__(self, refused: RefusedAttributes, info: Info) -> None:
        self._refused, self._info = refused, info
        self._task, self._has_set = 0, False

    def before(self, act: WorkflowActivation) -> None:
        """Read from an activation what became of the latest workflow task."""
        for job in act.jobs:
            if job.HasField("remove_from_cache"):
                if self._has_set and job.remove_from_cache.reason == RemoveFromCache.EvictionReason.FATAL:
                    self._refused.count_refusal(act.run_id)
                return
        if self._task != act.history_length:
            if self._has_set:  # the server took the task that set them
                self._refused.forget(act.run_id)
            self._task, self._has_set = act.history_length, False

    def after(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        """Note whether the run sets attributes, and leave out the attributes that the server refuses."""
        if act.is_replaying:
            return
        commands = completion.successful.commands
        self._has_set = self._has_set or any(map(_sets_attributes, commands))
        if self._refused.are_refused(act.run_id):
            self._refused.leave_out(commands, self._info)


def _sets_attributes(command: WorkflowCommand) -> bool:
    return command.HasField("upsert_workflow_search_attributes") or command.HasField(
        "continue_as_new_workflow_execution"
    )
