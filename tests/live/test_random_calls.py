"""Dozens of random calls, on a real server and with the strict scripted provider; more: tests/unit/test_random_calls.py."""

from __future__ import annotations

from tests.support.lab import Lab
from tests.support.random_calls import check_random_calls


async def test_each_random_call_gets_one_result_and_each_failure_one_error_span(lab: Lab) -> None:
    await check_random_calls(lab, seed=0)
