"""Which cases of an outside suite fail, with a reason for each: files in `tests/system/expected_failures`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "system" / "expected_failures"


def check_failures(suite: str, part: str, failed: Iterable[str], passed: Iterable[str]) -> None:
    """Check that exactly the expected cases fail.

    Args:
        suite: The name of the file. It has a list of `{"reason", "cases"}` for each part.
        part: The part of the suite.
        failed: The names of the cases that failed.
        passed: The names of the others.

    Raises:
        AssertionError: a case fails that should pass, one passes that should fail, or one does not exist.
    """
    listed: dict[str, list[dict[str, Any]]] = json.loads((_FOLDER / f"{suite}.json").read_text())
    expected = {case: group["reason"] for group in listed.get(part, []) for case in group["cases"]}
    assert all(expected.values()), "an expected failure has no reason"
    ran, failures = {*failed, *passed}, set(failed)
    for names, says in (
        (failures - expected.keys(), "fail, and are not expected to"),
        (expected.keys() & ran - failures, "pass, and are expected to fail: remove them from the list"),
        (expected.keys() - ran, "are expected to fail, but are not in the suite"),
    ):
        assert not names, f"{suite}, {part}: {len(names)} cases {says}:\n" + "\n".join(sorted(names))
