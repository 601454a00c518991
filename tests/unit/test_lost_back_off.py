"""How long the attempt after a lost one waits."""

from __future__ import annotations

from mulligan.supervisor.lost_work import _back_off


def test_the_first_four_attempts_that_are_lost_are_repeated_at_once_and_later_ones_wait_longer_and_longer() -> None:
    seconds = [_back_off(attempt).total_seconds() for attempt in range(1, 14)]
    assert seconds == [0.001, 0.001, 0.001, 0.001, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert _back_off(1_000_000).total_seconds() == 30
