"""The vocabulary of a run's status, and what it is derived from."""

from __future__ import annotations

from typing import get_args

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, TimeoutError

from mulligan.client.find_runs import RunQuery, StatusError
from mulligan.values import Status, WaitingFor
from mulligan.wire.run_status import STATUSES, is_open, open_status, status_in_temporal, status_of_cause


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ([], "running"),
        ([None], "running"),
        (["person"], "waiting"),
        (["callback", "timer", "person", None], "waiting"),
        (["person", "tool"], "running"),
        (["callback", "model"], "running"),
        (["timer", "worker"], "running"),
        (["a kind of a later version"], "running"),
    ],
)
def test_a_run_waits_if_it_waits_for_people_callbacks_and_timers_only(kinds: list[str | None], status: str) -> None:
    assert open_status(kinds) == status


def test_there_is_one_vocabulary_and_temporals_words_are_translated_into_it() -> None:
    assert STATUSES == (
        "running", "waiting",
        "completed", "max_steps", "max_repeats", "max_tokens", "max_cost", "max_history", "stopped", "truncated",
        "refused", "diverged",
        "failed", "cancelled", "terminated", "timed_out",
    )  # fmt: skip
    assert set(get_args(Status)) < set(STATUSES)
    # PAUSED is a word of newer servers.
    names = [each.name for each in WorkflowExecutionStatus if each.name != "PAUSED"]
    assert {status_in_temporal(name) for name in names} <= set(STATUSES)
    assert status_in_temporal("CANCELED") == "cancelled"
    assert [each for each in STATUSES if is_open(each)] == ["running", "waiting"]
    causes = [CancelledError(), TerminatedError("x"), TimeoutError("x", type=None, last_heartbeat_details=[])]
    assert [status_of_cause(each) for each in causes] == ["cancelled", "terminated", "timed_out"]
    assert {status_of_cause(each) for each in (ApplicationError("x"), None)} == {"failed"}


@pytest.mark.parametrize("status", [*STATUSES, "Failed", "TIMED_OUT"])
def test_runs_are_looked_for_by_each_status(status: str) -> None:
    RunQuery(status=status).check()


@pytest.mark.parametrize("status", ["canceled", "timedout", "pending"])
def test_a_word_that_is_none_is_refused_with_those_that_there_are(status: str) -> None:
    with pytest.raises(StatusError, match=r"it must be one of: running, waiting, completed, .*cancelled, terminated"):
        RunQuery(status=status).check()


def test_each_kind_of_a_wait_has_been_considered() -> None:
    kinds = [kind for each in get_args(WaitingFor.model_fields["kind"].annotation) for kind in get_args(each)]
    assert {kind: open_status([kind]) for kind in kinds} == {
        **dict.fromkeys(("worker", "model", "tool"), "running"),
        **dict.fromkeys(("person", "callback", "timer"), "waiting"),
    }
