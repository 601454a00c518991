"""Kills the worker process that loads it at named points: before or after an activity, or an activation of a workflow.

`CHAOS_POINTS` is a file with a JSON list of names such as `before call_tool` or `after query_workflow`; each point kills one
process. The names are those of activities, and of the jobs and commands of workflow activations.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.worker import _activity, _workflow_instance

POINTS = "CHAOS_POINTS"
SECONDS_BETWEEN = 2.0
"""Between two kills: if every process died at once, the time to start one would be measured."""
ACTIVITIES = (
    "open_run", "call_model", "call_tool", "record_decision", "check_edit", "compact_conversation", "record_sub_run",
    "finish_run",
)  # fmt: skip
JOBS = (
    "initialize_workflow", "resolve_activity", "query_workflow", "do_update", "resolve_child_workflow_execution",
    "fire_timer",
)  # fmt: skip
COMMANDS = ("continue_as_new_workflow_execution", "start_child_workflow_execution", "complete_workflow_execution")
ALL = [
    *(f"{when} {what}" for what in (*ACTIVITIES, *JOBS) for when in ("before", "after")),
    *(f"after {what}" for what in COMMANDS),
]


def kill_at(point: str) -> None:
    """End this process with SIGKILL, if the point is in the list and has killed none."""
    plan = Path(os.environ[POINTS])
    if point not in json.loads(plan.read_text()) or _killed_lately(last := plan.with_name(f"{plan.name} last")):
        return
    try:
        plan.with_name(f"{plan.name} {point}").touch(exist_ok=False)
    except FileExistsError:
        return
    last.touch()
    entry = {"event": "killed", "point": point, "pid": os.getpid(), "at": time.time()}
    with open(os.environ["CHAOS_LEDGER"], "ab", buffering=0) as file:
        file.write(json.dumps(entry).encode() + b"\n")
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_lately(last: Path) -> bool:
    try:
        return time.time() - last.stat().st_mtime < SECONDS_BETWEEN
    except FileNotFoundError:
        return False


def install() -> None:
    """Wrap the SDK's functions that run activities and activations."""
    execute = _activity._ActivityInboundImpl.execute_activity
    activate = _workflow_instance._WorkflowInstanceImpl.activate

    async def execute_and_kill(self: Any, input: Any) -> Any:  # noqa: A002 - the SDK's name
        kind = activity.info().activity_type
        kill_at(f"before {kind}")
        try:
            return await execute(self, input)
        finally:
            kill_at(f"after {kind}")

    def activate_and_kill(self: Any, act: Any) -> Any:
        jobs = {job.WhichOneof("variant") for job in act.jobs}
        for kind in jobs:
            kill_at(f"before {kind}")
        completion = activate(self, act)
        for kind in jobs | {each.WhichOneof("variant") for each in completion.successful.commands}:
            kill_at(f"after {kind}")
        return completion

    _activity._ActivityInboundImpl.execute_activity = execute_and_kill  # type: ignore[method-assign]
    _workflow_instance._WorkflowInstanceImpl.activate = activate_and_kill  # type: ignore[method-assign]


if POINTS in os.environ:
    install()
