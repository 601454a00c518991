"""A run as a worker rebuilds it after its cache has lost it, from the activations that were recorded."""

from __future__ import annotations

import json
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import NotifyHasPatch, WorkflowActivation, WorkflowActivationJob

from mulligan.testing._workflow_run import Instance, Recorded, WorkflowRun, activate


def replay(run: WorkflowRun, live_from: int) -> tuple[str | None, Instance]:
    """Rebuild a run. From activation `live_from` on, it is not a replay.

    Returns what differed from the first time, and the new instance.
    """
    instance = run.create_instance()
    for index, each in enumerate(run.recorded):
        activation = WorkflowActivation()
        activation.CopyFrom(each.activation)
        is_replay = activation.is_replaying = index < live_from
        refused = _refused(each)
        if is_replay:
            _as_replayed(activation, each, refused)
        expected = [command for command in each.commands if not is_replay or not _refuses(command, refused)]
        if not activation.jobs:  # it had nothing but refused updates, so no history has it
            if expected:
                return f"activation {index} only refused an update, and had the commands {expected}", instance
            continue
        commands = list(activate(instance, activation).successful.commands)
        if commands != expected:
            return f"activation {index} was replayed as {commands}, the first time it was {expected}", instance
    return None, instance


def _refused(recorded: Recorded) -> set[str]:
    """The updates that a validator refused: no history has them."""
    answers = [each.update_response for each in recorded.commands if each.HasField("update_response")]
    accepted = {each.protocol_instance_id for each in answers if each.HasField("accepted")}
    sent = {job.do_update.protocol_instance_id for job in recorded.activation.jobs if job.HasField("do_update")}
    return sent - accepted


def _as_replayed(activation: WorkflowActivation, recorded: Recorded, refused: set[str]) -> None:
    """Change an activation to what Temporal's Core SDK sends in a replay."""
    jobs = [job for job in activation.jobs if job.do_update.protocol_instance_id not in refused]
    for job in jobs:
        if job.HasField("do_update"):
            job.do_update.run_validator = False
    patches = [each.set_patch_marker.patch_id for each in recorded.commands if each.HasField("set_patch_marker")]
    marks = [WorkflowActivationJob(notify_has_patch=NotifyHasPatch(patch_id=each)) for each in patches]
    replayed = [*marks, *jobs] if jobs else []
    del activation.jobs[:]
    activation.jobs.extend(replayed)
    activation.available_internal_flags.extend(recorded.flags)


def _refuses(command: Any, refused: set[str]) -> bool:
    return bool(command.HasField("update_response") and command.update_response.protocol_instance_id in refused)


def json_of(payload: Payload | None) -> Any:
    """A payload's JSON value."""
    return json.loads(payload.data) if payload is not None and payload.data else None
