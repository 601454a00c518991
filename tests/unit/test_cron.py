"""Cron expressions by which Temporal would start runs at other times than they say are refused with a sentence."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mulligan import DeclarationError
from mulligan.client.cron import check_cron

TODAY = datetime(2026, 11, 29, 12, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "cron", ["0 0 9 * * MON", "0 9 * * 1 2027", "0 0 9 * * 1 2027", "0 9 * *", "", "CRON_TZ=UTC 0 9 * * 1"]
)
def test_other_than_five_fields_are_refused_as_they_mean_something_else_to_others(cron: str) -> None:
    with pytest.raises(DeclarationError, match="give five: minute, hour, day of the month, month, day of the week"):
        check_cron(cron, None)


@pytest.mark.parametrize(
    ("cron", "timezone", "when"),
    [
        ("30 2 * * *", "Europe/Berlin", "02:30, which does not exist in Europe/Berlin on 2027-03-28"),
        ("*/15 2 * * *", "Europe/Berlin", "02:00, which"),
        ("0 9,2 28 MAR SUN", "Europe/Berlin", "02:00, which"),
        ("0 2 * 1-6/2 7", "Europe/Berlin", "02:00, which"),
        ("5 2 8-14 march sunday", "America/New_York", "02:05, which does not exist in America/New_York on 2027-03-14"),
        ("10 2 * * *", "Australia/Lord_Howe", "02:10, which does not exist in Australia/Lord_Howe on 2027-10-03"),
    ],
)
def test_a_time_that_summer_time_leaves_out_is_refused(cron: str, timezone: str, when: str) -> None:
    with pytest.raises(DeclarationError, match=when):
        check_cron(cron, timezone, today=TODAY)


@pytest.mark.parametrize(
    ("cron", "timezone"),
    [
        ("0 9 * * MON-FRI", "Europe/Berlin"),
        ("30 2 * * *", None),
        ("30 2 * * *", "Asia/Tokyo"),
        ("30 2 * * MON-SAT", "Europe/Berlin"),
        ("30 2 1-7 * *", "Europe/Berlin"),
        ("30 2 * 4-12 *", "Europe/Berlin"),
        ("30 3 * * *", "Europe/Berlin"),
        ("45 2 * * *", "Australia/Lord_Howe"),
        ("30 2 * * *", "Nowhere/At_All"),
        ("*/10 * * * *", "Europe/Berlin"),
        ("0 */2 * * *", "Europe/Berlin"),
        ("0 0-6 * * *", "Europe/Berlin"),
        ("@daily", None),
        ("x 2 * * *", "Europe/Berlin"),
    ],
)
def test_all_others_are_left_to_temporal(cron: str, timezone: str | None) -> None:
    refusal = None
    try:
        check_cron(cron, timezone, today=TODAY)
    except DeclarationError as error:
        refusal = str(error)
    assert refusal is None
