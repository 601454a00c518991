"""What the client adds to what a workflow says that it waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan.client.wait_reader import PendingCall, merge, no_worker
from mulligan.values import WaitingFor

SINCE = datetime.now(UTC).replace(hour=12, minute=4, second=0, microsecond=0)
MODEL = WaitingFor(kind="model", since=SINCE.isoformat(), detail="waiting for `openai:m`", retried_for=3600)
TOOL = WaitingFor(kind="tool", since=SINCE.isoformat(), detail="running `fetch`")
PERSON = WaitingFor(kind="person", since=SINCE.isoformat(), detail="waiting for approval of `refund`")


def pending(activity: str, **fields: Any) -> PendingCall:
    return PendingCall(activity=activity, **{"scheduled": SINCE, **fields})


def test_a_failed_model_call_is_shown_with_its_failure_and_its_times() -> None:
    call = pending(
        "call_model", attempt=4, is_started=False, last_failure="the endpoint answered 503: busy.",
        next_attempt=SINCE + timedelta(seconds=30), first_failure=SINCE + timedelta(seconds=1),
    )  # fmt: skip
    merged = merge(MODEL, [call])
    assert merged.detail == (
        "waiting for `openai:m`; attempt 4; last failure: the endpoint answered 503: busy; "
        "next attempt at 12:04:30 UTC; retried until 13:04:01 UTC"
    )
    assert merged.next_attempt == (SINCE + timedelta(seconds=30)).isoformat(timespec="milliseconds")
    assert (merged.attempt, merged.last_failure) == (4, "the endpoint answered 503: busy.")


def test_a_tool_is_shown_with_its_attempt_and_its_last_heartbeat() -> None:
    calls = [
        pending("call_tool", number=8, heartbeat="the other"),
        pending("call_tool", number=7, attempt=2, max_attempts=3, heartbeat="page 3 of 7"),
        pending("call_tool", number=1, scheduled=SINCE - timedelta(minutes=1), heartbeat="of another agent"),
    ]
    assert merge(TOOL, calls).detail == "running `fetch`; attempt 2 of 3; last heartbeat: page 3 of 7"


@pytest.mark.parametrize(("waiting", "activity"), [(PERSON, "call_tool"), (TOOL, "call_model"), (MODEL, "call_tool")])
def test_an_activity_of_another_kind_adds_nothing(waiting: WaitingFor, activity: str) -> None:
    assert merge(waiting, [pending(activity, attempt=3)]) == waiting


def test_a_call_that_no_worker_has_taken_yet_says_so() -> None:
    merged = merge(TOOL, [pending("call_tool", is_started=False, task_queue="gpu")])
    assert merged.detail == "running `fetch`; not started yet (task queue 'gpu')"


def test_a_queue_without_workers_is_named_with_the_command_to_start_one() -> None:
    never = no_worker("agents", None, SINCE)
    assert (never.kind, never.since) == ("worker", SINCE.isoformat(timespec="milliseconds"))
    assert never.detail == "no worker polls task queue 'agents'; start one: mulligan worker --load …"
    assert no_worker("gpu one", SINCE, SINCE).detail == (
        "no worker polls task queue 'gpu one' (the last one was seen at 12:04:00 UTC); "
        "start one: mulligan worker --task-queue 'gpu one' --load …"
    )
