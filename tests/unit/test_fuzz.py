"""A few random inputs for each parser and entrance. `make fuzz` goes on for as long as wanted."""

from __future__ import annotations

import time

import pytest
from hypothesis import strategies as st

from mulligan.activities.mcp.servers import _schemas
from mulligan.schema.tool_schema import checkable_schema
from tests.fuzz import run_target as run_target_module
from tests.fuzz.run_target import MAX_BYTES, run_target
from tests.fuzz.targets import TARGETS, Target, read_client_messages


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_raises_or_takes_more_than_a_second_or_200_mb(name: str) -> None:
    report = run_target(TARGETS[name], seconds=0.2, batch=30, at_least=10)
    assert report.findings == []
    assert report.inputs >= 10


def _raise(_: object) -> None:
    raise KeyError("x")


def _compute(_: object) -> None:
    until = time.process_time() + 0.12
    while time.process_time() < until:
        pass


def _fill(_: object) -> None:
    bytearray(b"x" * (MAX_BYTES + 100_000_000))


@pytest.mark.parametrize(
    ("parser", "says"),
    [(_raise, "KeyError"), (_compute, "s of CPU time"), (_fill, "MB")],
    ids=["raises", "computes", "fills memory"],
)
def test_a_finding_is_reported(parser: object, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_target_module, "MAX_SECONDS", 0.1)
    report = run_target(Target(st.none(), parser), seconds=0.1, batch=1)  # type: ignore[arg-type]
    assert len(report.findings) == 1
    assert says in report.findings[0]


def test_a_schema_that_is_none_is_converted_and_refused_later() -> None:
    """Found by fuzzing: `referencing` cannot walk it."""
    assert checkable_schema({"properties": None}) == {"properties": None}


def test_a_schema_whose_draft_is_a_number_is_refused() -> None:
    """Found by fuzzing: a server with such a tool ended the opening of every run."""
    with pytest.raises(TypeError, match="its \\$schema is not a text"):
        _schemas({"type": "object", "$schema": 7})


def test_results_of_tools_are_matched_with_many_calls_in_linear_time() -> None:
    """Each result was looked for in all messages before it: half a minute of a server for one request."""
    calls = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}] * 3}
    result = {"role": "tool", "tool_call_id": "b", "content": "x"}
    target = Target(st.just((True, [(calls, 5_000), (result, 5_000)])), read_client_messages)
    assert run_target(target, seconds=0.1, batch=1).findings == []
