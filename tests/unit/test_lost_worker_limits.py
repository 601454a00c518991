"""The limits by which a lost worker is noticed fit each other, wherever they are set."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from mulligan.activities import heartbeat
from mulligan.devserver.dev_server import DYNAMIC_CONFIG
from mulligan.worker.options import HEARTBEAT_WITHIN, STICKY_TIMEOUT
from mulligan.workflows import limits

DEPLOYED = Path(__file__).parents[2] / "deploy/temporal/dynamicconfig.yaml"


def seconds(text: str) -> float:
    """The seconds of `2s`."""
    return float(text.strip('"').removesuffix("s"))


def test_a_heartbeat_may_be_late_by_more_than_two_intervals() -> None:
    interval = timedelta(seconds=heartbeat.INTERVAL)
    assert max(interval, HEARTBEAT_WITHIN) == interval
    assert limits.HEARTBEAT_TIMEOUT - interval > 2 * interval


def test_a_lost_worker_is_noticed_within_6_s() -> None:
    """An attempt's timeout, and the interval until the next one; a workflow task that the worker had in its cache."""
    intervals = [limits.model_retry(None).initial_interval, limits.tool_retry(3).initial_interval]
    assert timedelta(seconds=6) >= limits.HEARTBEAT_TIMEOUT + max(intervals)
    assert STICKY_TIMEOUT < limits.HEARTBEAT_TIMEOUT


def test_the_server_ends_the_polls_of_a_lost_machine_before_it_starts_the_next_attempt() -> None:
    """Its last heartbeat may have come an interval before its last sign of life."""
    started = dict(setting.split("=") for setting in DYNAMIC_CONFIG)
    deployed: dict[str, Any] = {
        name: values[0]["value"] for name, values in yaml.safe_load(DEPLOYED.read_text()).items()
    }
    for configuration in (started, deployed):
        noticed = sum(seconds(configuration[f"frontend.keepAlive{name}"]) for name in ("Time", "Timeout"))
        assert noticed < limits.HEARTBEAT_TIMEOUT.total_seconds() - heartbeat.INTERVAL
