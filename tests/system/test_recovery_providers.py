"""The whole recovery matrix with the providers that tests/live/test_recovery.py tries with some rows only."""

from __future__ import annotations

import pytest

from tests.live.conftest import Lab, lab  # noqa: F401 - a fixture
from tests.live.recovery_matrix import Row, check
from tests.live.test_recovery import ROWS

OBJECTS_ONLY = "empty arguments"
"""This API sends arguments as an object: arguments of no text do not exist."""


@pytest.mark.parametrize("api", ["anthropic"])
@pytest.mark.parametrize("row", [row for row in ROWS if row.name != OBJECTS_ONLY], ids=lambda row: row.name)
async def test_each_mistake_gets_the_same_feedback_from_every_provider(lab: Lab, row: Row, api: str) -> None:  # noqa: F811
    """The rows, the texts, the spans and the number of executions are those of OpenAI's APIs."""
    await check(lab, row, api)
