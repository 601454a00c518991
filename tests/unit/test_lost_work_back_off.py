"""How long a lost attempt waits for the next one."""

from mulligan.supervisor.lost_work import _back_off


def test_a_call_that_may_kill_its_processes_waits_longer_each_time() -> None:
    """The first attempts follow at once: most processes are killed for other reasons."""
    waits = [_back_off(attempt).total_seconds() for attempt in (*range(1, 13), 10_000)]
    assert waits == [0.001, 0.001, 0.001, 0.001, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
