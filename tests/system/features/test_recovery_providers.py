"""The whole recovery matrix with the providers that tests/promise/test_recovery.py tries with some rows only."""

from __future__ import annotations

import pytest

from tests.promise.recovery_matrix import Row, check
from tests.promise.test_recovery import ROWS
from tests.support.lab import Lab

NOT_POSSIBLE = {
    ("anthropic", "empty arguments"): "an object is sent, never no text",
    ("google", "empty arguments"): "an object is sent, never no text",
    ("google", "a lone surrogate"): "an object is sent: its text is spelled anew, and cannot have half a character",
    ("google", "NUL"): "an object is sent: NUL is replaced in it, as in any text of an answer",
}
"""Rows about the spelling of arguments, which these APIs do not send as text."""
CASES = [
    pytest.param(row, api, id=f"{row.name}-{api}")
    for api in ("anthropic", "google")
    for row in ROWS
    if (api, row.name) not in NOT_POSSIBLE
]


@pytest.mark.parametrize(("row", "api"), CASES)
async def test_each_mistake_gets_the_same_feedback_from_every_provider(lab: Lab, row: Row, api: str) -> None:
    """The rows, the texts, the spans and the number of executions are those of OpenAI's APIs."""
    await check(lab, row, api)
