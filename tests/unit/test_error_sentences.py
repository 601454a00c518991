"""What commands say of errors of Temporal: a refusal is another thing than no answer."""

from __future__ import annotations

import pytest
from temporalio.service import RPCError, RPCStatusCode

from mulligan.cli._terminal import _sentence_of


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (RPCStatusCode.UNAVAILABLE, "Temporal did not answer: why"),
        (RPCStatusCode.DEADLINE_EXCEEDED, "Temporal did not answer: why"),
        (RPCStatusCode.CANCELLED, "Temporal did not answer: why"),
        (RPCStatusCode.PERMISSION_DENIED, "Temporal refused this: why"),
        (RPCStatusCode.INVALID_ARGUMENT, "Temporal refused this: why"),
    ],
)
def test_no_answer_is_not_called_a_refusal(status: RPCStatusCode, said: str) -> None:
    assert _sentence_of(RPCError("why", status, b"")) == said
