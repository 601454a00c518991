"""Times by which runs are found: any that a client can write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.client.find_runs import _utc

OFFSETS = st.none() | st.integers(-1_439, 1_439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=OFFSETS))
def test_every_time_is_one_that_temporal_can_search_for(at: datetime) -> None:
    found = datetime.fromisoformat(_utc(at))
    assert datetime(1970, 1, 1, tzinfo=UTC) <= found <= datetime(2200, 1, 1, tzinfo=UTC)
    if 1971 < at.year < 2199:
        assert found == (at if at.tzinfo else at.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0001-01-01", "1970-01-01T00:00:00+00:00"),
        ("0001-01-01T00:00+23:59", "1970-01-01T00:00:00+00:00"),
        ("9999-12-31T23:59-23:59", "2200-01-01T00:00:00+00:00"),
        ("2026-11-25T12:00", "2026-11-25T12:00:00+00:00"),
        ("2026-11-25T12:00+02:00", "2026-11-25T10:00:00+00:00"),
    ],
)
def test_times_at_the_ends_stand_for_all_runs_or_none(text: str, expected: str) -> None:
    assert _utc(datetime.fromisoformat(text)) == expected
