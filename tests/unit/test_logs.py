"""The lines of a worker's log: the fields of a run, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import Context
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.testing import ActivityEnvironment

from mulligan.activities.mcp.server_log import SERVER
from mulligan.values import ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import CallTool
from mulligan.worker import limited_lines, logs
from mulligan.worker.limited_lines import LimitedLines
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
        "time": "1970-01-01T00:00:00.500Z", "level": "WARNING", "logger": "shop", "message": "two\nlines", **FIELDS,
    }  # fmt: skip


def test_agent_and_tool_are_those_of_the_activitys_input() -> None:
    info = ActivityEnvironment.default_info()
    context = RunContext(agent="shop", trace="00-1-2-01")
    call = ToolCall(id="c", name="refund", arguments='{"card": "secret"}')
    ours = fields_of_activity(info, [CallTool(where=context, call=call, arguments={}, step=1, digest="d")])
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


@given(st.text() | st.sampled_from(["\nERROR mulligan: forged", "\x1b[2J", "\x9b2J", "\x7f", "\u202e", "\u2028", "\r"]))
def test_a_record_is_one_line_whatever_is_logged(text: str) -> None:
    """The lines of a stack trace are indented, also where an exception's text has several lines. JSON stays the same value."""
    try:
        raise ValueError(f"a\n{text}\nb")
    except ValueError:
        made = record(f"b{text}e", tool=text)
        made.exc_info = sys.exc_info()
    first, *others = TextFormatter().format(made).split("\n")
    assert first.startswith("WARNING shop: b")
    assert re.sub("[\u200c\u200d]", "", first).isprintable()
    assert all(line.startswith("  ") for line in others)
    written = TextFormatter().format(made) + JsonFormatter().format(made)
    assert not set(written) & set("\r\x0b\x0c\x1b\x7f\x85\x9b\u202e\u2028")
    line = json.loads(JsonFormatter().format(made))
    assert (line["message"], line["tool"]) == (f"b{text}e", text)


def test_a_long_message_and_a_long_exception_are_cut() -> None:
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError:
        made = record("y" * 1_000_000)
        made.exc_info = sys.exc_info()
    for formatter in (TextFormatter(), JsonFormatter()):
        written = formatter.format(made)
        assert "more characters)" in written
        assert len(written) < 45_000


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 300), st.floats(0, 90)), max_size=20))
def test_one_place_writes_a_bounded_amount_a_minute_and_says_what_is_missing(
    bursts: list[tuple[int, int, float]],
) -> None:
    """`bursts`: number of lines, characters of each, seconds until the next."""
    clock, limit = Clock(), LimitedLines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited_lines, "time", clock)
        patch.setattr(limited_lines, "LINES", 6)
        patch.setattr(limited_lines, "CHARACTERS", 500)
        written: list[tuple[float, str]] = []
        sent = 0
        for lines, characters, pause in bursts:
            for _ in range(lines):
                made = logging.LogRecord("mcp.client", logging.ERROR, "x.py", 7, "%s", ("x" * characters,), None)
                sent += 1
                if limit.filter(made):
                    written.append((clock.now, made.getMessage()))
            clock.now += pause
        clock.now += 61  # not 60: the sum of the pauses is rounded
        last = logging.LogRecord("mcp.client", logging.ERROR, "x.py", 7, "last", (), None)
        assert limit.filter(last)
    missing = [re.match(r"\(before this, ([\d,]+) such lines", text) for _, text in [*written, (0, last.getMessage())]]
    assert sum(int(found[1].replace(",", "")) for found in missing if found) == sent - len(written)
    for begin, _ in written:
        minute = [text for at, text in written if begin <= at < begin + 60]
        assert len(minute) <= 2 * 6  # two of its own minutes may be within one
        assert sum(map(len, minute)) <= 2 * (500 + 300 + 2 * 60)


def test_a_noisy_run_or_server_does_not_hide_the_lines_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one place in the code. The memory is limited: more runs at once share a limit, until the next minute."""
    clock, limit = Clock(), LimitedLines()
    monkeypatch.setattr(limited_lines, "time", clock)

    def passes(run: str = "", server: str = "") -> bool:
        line = logging.LogRecord("mulligan.mcp", logging.ERROR, "x.py", 7, "a", (), None)
        line.__dict__.update({"workflow_id": run} if run else {})
        return Context().run(lambda: (SERVER.set(server), limit.filter(line))[1])

    for noisy in ({"run": "r"}, {"server": "s"}, {"run": "q", "server": "t"}):
        assert [passes(**noisy) for _ in range(limited_lines.LINES + 1)][-1] is False
    assert passes(run="r2")
    assert passes(server="s2")
    assert not passes(run="q2", server="t")
    written = sum(passes(run=f"run {number}") for number in range(10 * limited_lines.PLACES))
    assert written < limited_lines.PLACES + limited_lines.LINES
    assert len(limit._places) <= limited_lines.PLACES + 1
    clock.now += limited_lines.SECONDS
    assert passes(run="later")
    assert len(limit._places) == 1


def test_users_own_lines_and_other_places_are_not_limited() -> None:
    limit = LimitedLines()
    assert all(limit.filter(record()) for _ in range(5_000))
    others = [logging.LogRecord("temporalio.worker", 30, "x.py", line, "a", (), None) for line in range(5_000)]
    assert all(map(limit.filter, others))
