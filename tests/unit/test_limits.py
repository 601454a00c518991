"""The limits that a step computes: of a result that is one of several, of calls at once, and of retries."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from temporalio import workflow

from mulligan.run_input import RunInput
from mulligan.workflows import limits

MB = 1_000_000


@pytest.mark.parametrize(
    ("calls", "local", "share"),
    [
        (0, False, None),  # a rejected answer may have no calls
        (1, False, None),
        (4, False, None),  # 1.5 MB, which is more than one result may have
        (5, False, 1_200_000),
        (60, False, 100_000),
        (127, False, 47_244),
        (1, True, None),
        (2, True, 1_250_000),
        (50, True, 50_000),
    ],
)
def test_the_results_of_a_step_share_what_one_step_may_write(calls: int, local: bool, share: int | None) -> None:
    """Those of local calls are in one message, which has less room."""
    assert limits.share_of_results(calls, local=local) == share


@pytest.mark.parametrize(
    ("used", "calls", "share"),
    [
        (0, 0, None),
        (0, 1, None),
        (4_600_000, 1, None),  # as much as one result may have
        (4_600_001, 1, 1_399_999),
        (5 * MB, 1, MB),
        (5 * MB, 4, 250_000),
        (5 * MB, 1_000, 8_000),
        (7 * MB, 1, 8_000),
    ],
)
def test_the_results_of_a_scripts_calls_share_what_is_left(used: int, calls: int, share: int | None) -> None:
    """Each may have a little in any case: what came before must not leave nothing for the next."""
    assert limits.share_of_rest(used, calls) == share


def test_no_share_is_more_than_a_step_may_write() -> None:
    for calls in range(1, 1_001):
        for local, most in ((False, limits.STEP_RESULTS_BYTES), (True, limits.STEP_LOCAL_RESULTS_BYTES)):
            share = limits.share_of_results(calls, local=local)
            assert calls * (limits.RESULT_BYTES if share is None else share) <= most


@pytest.mark.parametrize(
    ("metadata", "copies", "calls", "at_once"),
    [
        (0, 1, 127, 127),
        (0, 1, 5_000, 2_500),
        (24_000, 1, 127, 100),
        (24_000, 2, 127, 51),  # 2 * 24,000 + 1,000 bytes for each
        (5 * MB, 1, 127, 1),
        (5 * MB, 1, 0, 0),
    ],
)
def test_calls_with_large_metadata_are_scheduled_in_parts(metadata: int, copies: int, calls: int, at_once: int) -> None:
    """The commands of one workflow task are one message; at least one call is scheduled."""
    run_input = RunInput.model_construct(
        agent="clerk", metadata={"k": "é" * ((metadata - 1) // 2) + "x"} if metadata else {}
    )
    assert limits.metadata_bytes(run_input) in (metadata, metadata - 1)
    assert limits.max_scheduled_at_once(calls, run_input, copies=copies) == at_once


def test_the_clients_metadata_counts_as_well() -> None:
    run_input = RunInput.model_construct(agent="clerk", metadata={"ab": "é"}, client_metadata={"c": "de"})
    assert limits.metadata_bytes(run_input) == 4 + 3
    assert limits.bytes_of({}) == 0


@pytest.mark.parametrize(("given", "maximum"), [(None, 0), (1, 1), (7, 7)])
def test_a_model_is_called_again_without_limit_unless_the_agent_has_one(given: int | None, maximum: int) -> None:
    retry = limits.model_retry(given)
    assert retry.maximum_attempts == maximum  # 0: no limit
    assert (retry.initial_interval, retry.maximum_interval) == (timedelta(seconds=1), timedelta(seconds=60))


def test_a_tool_is_called_at_most_as_often_as_it_says() -> None:
    assert [limits.tool_retry(each).maximum_attempts for each in (1, 2, 9)] == [1, 2, 9]
    assert limits.tool_retry(2).initial_interval == timedelta(milliseconds=500)
    assert limits.tool_retry(2).maximum_interval == timedelta(seconds=30)


def test_an_attempt_of_a_model_may_take_longer_than_the_model() -> None:
    assert limits.model_attempt_timeout(30.0) == timedelta(seconds=150)


class FakeInfo:
    """What the SDK says of a run's history."""

    def __init__(self, size: int, events: int) -> None:
        self.get_current_history_size = lambda: size
        self.get_current_history_length = lambda: events


@pytest.mark.parametrize(
    ("size", "events", "is_full"),
    [
        (40 * MB, 45_000, False),
        (40 * MB + 1, 1, True),
        (1, 45_001, True),
        (0, 0, False),
    ],
)
def test_a_run_whose_history_is_nearly_full_takes_no_further_step(
    size: int, events: int, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a run at 50 MB or 51,200 events, and one step adds up to 10 MB or 800 events."""
    monkeypatch.setattr(workflow, "info", lambda: cast(workflow.Info, FakeInfo(size, events)))
    assert limits.is_history_nearly_full() is is_full


def test_what_a_step_adds_fits_between_the_limit_and_the_servers() -> None:
    assert limits.HISTORY_BYTES + limits.STEP_RESULTS_BYTES + limits.COMMANDS_BYTES < 50 * MB
    assert limits.HISTORY_EVENTS + 127 * 6 + 100 < 51_200
    assert max(limits.STEP_LOCAL_RESULTS_BYTES, limits.COMMANDS_BYTES) < 4_000_000  # each is one message to the server
    assert limits.CARRY_BYTES < 2_000_000
    assert limits.EVENT_BYTES < 2_000_000
    assert limits.PAGE_BYTES < 512_000
