"""What the client adds to what a workflow says that it waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan.client.wait_reader import PendingActivity, merge, merge_sub_runs, no_worker
from mulligan.values import WaitingFor
from mulligan.wire.times import iso

SINCE = datetime.now(UTC).replace(hour=12, minute=4, second=0, microsecond=0)
MODEL = WaitingFor(kind="model", since=SINCE.isoformat(), detail="waiting for `openai:m`", retried_for=3600)
TOOL = WaitingFor(kind="tool", since=SINCE.isoformat(), detail="running `fetch`")
PERSON = WaitingFor(kind="person", since=SINCE.isoformat(), detail="waiting for approval of `refund`")


def pending(activity: str, **fields: Any) -> PendingActivity:
    return PendingActivity(activity=activity, **{"scheduled": SINCE, **fields})


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
    assert merged.next_attempt == iso(SINCE + timedelta(seconds=30))
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
    never = no_worker("agents", [], SINCE)
    assert (never.kind, never.since) == ("worker", iso(SINCE))
    assert never.detail == "no worker polls task queue 'agents'; start one: mulligan worker --load …"
    today = datetime.now(UTC)
    long_ago = today - timedelta(days=400)
    assert no_worker("gpu one", [long_ago, long_ago], SINCE).detail == (
        f"no worker polls task queue 'gpu one' (the last one was seen at {long_ago:%Y-%m-%d %H:%M:%S} UTC); "
        "start one: mulligan worker --task-queue 'gpu one' --load …"
    )


def test_a_queue_that_was_polled_lately_is_not_called_unserved() -> None:
    """Temporal lists the polls of a killed worker for minutes, so nobody knows which worker has died."""
    now = datetime.now(UTC)
    assert no_worker("shop", [now, now, now - timedelta(minutes=3)], SINCE).detail == (
        "no worker has answered yet, but 2 have polled task queue 'shop' within the last 70 s: if one of them has died, "
        "another takes its runs over within about 10 s"
    )
    assert no_worker("shop", [now, now - timedelta(minutes=3)], SINCE).detail == (
        f"no worker answers; the only one of task queue 'shop' polled at {now:%H:%M:%S} UTC, and is busy, or has ended; "
        "if it has ended, start one: mulligan worker --task-queue shop --load …"
    )


def _below(kind: str, since: int) -> WaitingFor:
    return WaitingFor(kind=kind, since=f"2026-11-22T12:00:0{since}+00:00", detail=f"waiting for a {kind}")


RUNNING = WaitingFor(kind="tool", since="2026-11-22T12:00:00+00:00", detail="running `lead` (run p/1)")


@pytest.mark.parametrize(
    ("sub_runs", "is_alone", "kind", "run", "detail"),
    [
        ({"p/1": None}, True, "tool", None, "running `lead` (run p/1)"),
        ({"p/1": _below("model", 1)}, True, "model", "p/1", "sub-agent's run p/1: waiting for a model"),
        (
            {"p/1": _below("person", 1)},
            False,
            "tool",
            None,
            "running `lead` (run p/1); sub-agent's run p/1: waiting for a person",
        ),
        (
            {"p/1": _below("person", 2), "p/2": _below("person", 1)},
            True,
            "person",
            "p/2",
            "sub-agent's run p/2: waiting for a person; sub-agent's run p/1: waiting for a person",
        ),
        (
            {"p/1": _below("model", 1), "p/2": _below("person", 2)},
            True,
            "tool",
            None,
            "running `lead` (run p/1); sub-agent's run p/2: waiting for a person; "
            "sub-agent's run p/1: waiting for a model",
        ),
        ({"p/1": _below("person", 1), "p/2": None}, True, "tool", None, None),
        (
            {"p/1": _below("model", 1).model_copy(update={"run": "p/1/7", "detail": "below"})},
            True,
            "model",
            "p/1/7",
            "below",
        ),
    ],
)
def test_a_run_waits_for_what_its_sub_runs_wait_for_if_it_waits_for_nothing_else(
    sub_runs: dict[str, WaitingFor | None], is_alone: bool, kind: str, run: str | None, detail: str | None
) -> None:
    merged = merge_sub_runs(RUNNING, sub_runs, is_alone=is_alone)
    assert (merged.kind, merged.run) == (kind, run)
    assert detail in (None, merged.detail)


def test_the_sentence_describes_three_sub_runs_and_counts_the_others() -> None:
    merged = merge_sub_runs(RUNNING, {f"p/{n}": _below("person", n) for n in range(5)}, is_alone=True)
    assert merged.detail.count("waiting for a person") == 3
    assert merged.detail.endswith("; and 2 more sub-agents' runs")
