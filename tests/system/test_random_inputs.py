"""Random inputs for each parser and entrance, for a second each; the quick tests try a few (tests/unit/test_fuzz.py)."""

from __future__ import annotations

import pytest

from tests.fuzz.run_target import run_target
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_random_input_raises_or_takes_more_than_a_second_or_200_mb(name: str) -> None:
    report = run_target(TARGETS[name], seconds=1.0, batch=30, at_least=10)
    assert report.findings == []
    assert report.inputs >= 10
