"""The record of a call that an activity writes keeps all that is known of its outcome."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.wire.tool_call import RecordedCall, ToolOutcome

CHANGED: dict[str, Any] = {"text": "a part", "is_cut": True, "attempts": 3}


@pytest.mark.parametrize("name", CHANGED)
def test_a_record_has_the_fields_of_the_outcome(name: str) -> None:
    """`is_cut` among them: undo and `once` must know that a result is not whole."""
    assert ToolOutcome.model_fields[name].get_default(call_default_factory=True) != CHANGED[name]
    record = RecordedCall(text="", attempts=0, trace="", call_id="c", name="pay", step=1, started=0.0)
    assert getattr(record.with_outcome(ToolOutcome(**CHANGED)), name) == CHANGED[name]
