"""The options of `temporalio.worker.Worker` that follow from the settings."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any

from temporalio.common import VersioningBehavior
from temporalio.worker import PollerBehaviorAutoscaling, WorkerDeploymentConfig, WorkerDeploymentVersion

from mulligan.client.connect import configured_address
from mulligan.client.live_pace import FASTEST, SLOWEST, is_cloud
from mulligan.client.settings import Settings

FEW_POLLS: dict[str, Any] = {
    "activity_task_poller_behavior": PollerBehaviorAutoscaling(minimum=1, maximum=5, initial=1)
}
"""For the queue of the activities that other workers have declined."""
STICKY_TIMEOUT, SDK_STICKY_TIMEOUT = timedelta(seconds=2), timedelta(seconds=10)
"""After this, another worker takes the workflows of a dead one; and the SDK's default."""
HEARTBEAT_WITHIN = timedelta(seconds=1.5)
"""The SDK sends heartbeats to the server at least this often. The heartbeat timeout is 5 s."""


def agent_worker_options(chosen: Settings) -> dict[str, Any]:
    """The options of the worker for workflows and activities."""
    return {
        **_common(chosen),
        "max_cached_workflows": chosen.max_cached_workflows,
        "max_concurrent_workflow_tasks": chosen.max_concurrent_workflow_tasks,
        "max_concurrent_activities": chosen.max_concurrent_activities,
        "max_activities_per_second": chosen.max_activities_per_second,
        "max_task_queue_activities_per_second": chosen.max_task_queue_activities_per_second,
        # Eager activities bypass the task queue, which applies the rate limit.
        "disable_eager_activity_execution": chosen.limits_activities,
        "sticky_queue_schedule_to_start_timeout": STICKY_TIMEOUT,
    }


def activity_worker_options(chosen: Settings) -> dict[str, Any]:
    """The options of the worker for activities that other workers have declined: few polls, as there are few of these."""
    return {
        **_common(chosen),
        "max_concurrent_activities": chosen.max_concurrent_activities,
        "max_activities_per_second": chosen.max_activities_per_second,
        "max_task_queue_activities_per_second": chosen.max_task_queue_activities_per_second,
        **FEW_POLLS,
    }


def model_worker_options(chosen: Settings) -> dict[str, Any]:
    """The options of the worker for model calls, if they have limits of their own."""
    return _common(chosen) | model_limits(chosen, chosen.max_concurrent_activities)


def model_limits(chosen: Settings, slots: int) -> dict[str, Any]:
    """The limits of model calls as options of their worker. `slots`: how many run at once if no setting says so."""
    return {
        "max_concurrent_activities": chosen.max_concurrent_model_calls or slots,
        "max_activities_per_second": chosen.max_model_calls_per_second,
        "max_task_queue_activities_per_second": chosen.max_task_queue_model_calls_per_second,
    }


def _common(chosen: Settings) -> dict[str, Any]:
    return {
        **build(chosen),
        "max_heartbeat_throttle_interval": longest_heartbeat_interval(chosen, configured_address()),
        "graceful_shutdown_timeout": timedelta(seconds=chosen.grace_seconds),
    }


def longest_heartbeat_interval(chosen: Settings, server: str) -> timedelta:
    """The longest time between two heartbeats of the SDK. Live text may need a shorter one. `server`: its address."""
    seconds = chosen.live_text_seconds
    if seconds is None:
        seconds = SLOWEST if is_cloud(server) else FASTEST
    # A little less than between two pieces of text: otherwise the SDK holds back each that comes early by a millisecond.
    return min(HEARTBEAT_WITHIN, timedelta(seconds=seconds * 0.8) or HEARTBEAT_WITHIN)


def build(chosen: Settings) -> dict[str, Any]:
    """The options for the build of this worker. With Worker Versioning, a run stays on the build that it started on."""
    if not chosen.build_id:
        # Else the SDK hashes every loaded module at start, which takes a second. It advises `deployment_config`, whose
        # name would be in the history of each step, though nothing reads it without Worker Versioning.
        return {"build_id": version("mulligan")}
    deployment = WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(chosen.deployment_name, chosen.build_id),
        use_worker_versioning=True,
        # Users' own workflows can override this in @workflow.defn.
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
    return {"deployment_config": deployment}
