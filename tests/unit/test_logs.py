"""The lines of a worker's log: the fields of a run, as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from mulligan.values import ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import CallTool
from mulligan.worker import logs
from mulligan.worker.logs import JsonFormatter, LogFields, TextFormatter, fields_of_activity, say

FIELDS: dict[str, Any] = {
    "workflow_id": "order 7", "run_id": "r-1", "agent": "shop", "tool": "refund", "activity": "call_tool", "attempt": 2,
}  # fmt: skip


def record(message: str = "It is late.", **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("shop", logging.WARNING, "shop.py", 1, message, (), None)
    made.__dict__.update(attributes)
    return made


def test_the_fields_are_at_the_end_of_the_line() -> None:
    """As `key=value`; a value that is not one word is a JSON string. A line about no run has none."""
    assert TextFormatter().format(record(**FIELDS)) == (
        'WARNING shop: It is late. workflow_id="order 7" run_id=r-1 agent=shop tool=refund activity=call_tool attempt=2'
    )
    assert TextFormatter().format(record()) == "WARNING shop: It is late."
    assert TextFormatter().format(record(tool='a"\nb=c')) == 'WARNING shop: It is late. tool="a\\"\\nb=c"'


def test_a_stack_trace_follows_the_fields() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        made = record(agent="shop")
        made.exc_info = sys.exc_info()
    first, second, *_, last = TextFormatter().format(made).splitlines()
    assert (first, second, last) == (
        "WARNING shop: It is late. agent=shop", "  Traceback (most recent call last):", "  ValueError: x",
    )  # fmt: skip
    line = json.loads(JsonFormatter().format(made))
    assert line["exception"].endswith("ValueError: x")


def test_a_json_line_has_the_same_fields() -> None:
    """One object on one line, with a time in UTC."""
    text = JsonFormatter().format(record("two\nlines", created=0.5, **FIELDS))
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "1970-01-01T00:00:00.500+00:00", "level": "WARNING", "logger": "shop", "message": "two\nlines", **FIELDS,
    }  # fmt: skip


def test_agent_and_tool_are_those_of_the_activitys_input() -> None:
    info = ActivityEnvironment.default_info()
    context = RunContext(agent="shop", trace="00-1-2-01")
    call = ToolCall(id="c", name="refund", arguments='{"card": "secret"}')
    ours = fields_of_activity(info, [CallTool(where=context, call=call, arguments={}, step=1)])
    assert (ours["agent"], ours["tool"], ours["workflow_id"]) == ("shop", "refund", info.workflow_id)
    assert "secret" not in str(ours)
    theirs = fields_of_activity(info, ["an argument of a user's own activity"])
    assert theirs.keys() == {"workflow_id", "run_id", "activity", "attempt"}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            {"temporal_activity": {"workflow_id": "w", "workflow_run_id": "r", "activity_type": "a", "attempt": 3}},
            {"workflow_id": "w", "run_id": "r", "activity": "a", "attempt": 3},
        ),
        ({"temporal_workflow": {"workflow_id": "w", "run_id": "r", "attempt": 1}}, {"workflow_id": "w", "run_id": "r"}),
        ({"agent": "mine"}, {"agent": "mine"}),
        ({}, {}),
    ],
)
def test_a_line_logged_by_the_sdk_has_the_fields_that_the_sdk_knows(extra: Any, expected: Any) -> None:
    """Fields that the logging code sets itself are kept."""
    made = record(**extra)
    assert LogFields().filter(made)
    assert {name: getattr(made, name) for name in logs.FIELDS if hasattr(made, name)} == expected


def test_progress_lines_are_json_if_the_log_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say("Serving shop.")
    monkeypatch.setattr(logs, "_says_json", True)
    say("Serving shop.")
    say("error: no server")
    text, *lines = capsys.readouterr().err.splitlines()
    assert text == "Serving shop."
    assert [(line["level"], line["message"]) for line in map(json.loads, lines)] == [
        ("INFO", "Serving shop."), ("ERROR", "error: no server"),
    ]  # fmt: skip
