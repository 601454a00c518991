"""The tree of a trace, its drawing, and Jaeger's JSON, without a server."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from mulligan.cli._trace import draw, heading
from mulligan.durations import duration_text
from mulligan.observe import semconv
from mulligan.observe.trace_ids import STEPS_IN_A_GROUP
from mulligan.trace_view.jaeger import read, without_secrets
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.trace_view.tree import MAX_ERRORS, MAX_UNFOLDED_SPANS, build_tree, lines


def spans_of_a_run(steps: int, *, wrong: Any = (), grouped: bool = False) -> list[TraceSpan]:
    """The spans of a run of that many steps, each with a model call and a tool call, and a second long."""
    spans = [TraceSpan("root", "", "invoke_agent a", 0, 0)]
    for step in range(1, steps + 1):
        parent = "root"
        if grouped and step > STEPS_IN_A_GROUP:
            first = step - (step - 1) % STEPS_IN_A_GROUP
            parent = f"group {first}"
            if step == first:
                spans.append(
                    TraceSpan(parent, "root", semconv.AGENT_STEPS, step, step, attributes={"mulligan.step": step})
                )
        said = {semconv.STEP: step, semconv.AI_NAME: "look"}
        spans.append(TraceSpan(f"chat {step}", parent, "chat m", step, step + 0.5, attributes=said))
        failed = step in wrong
        if failed:
            said = {**said, semconv.ERROR_TYPE: "tool_error", semconv.RECOVERED: True, semconv.AI_ERROR: f"no {step}"}
        spans.append(
            TraceSpan(f"tool {step}", parent, semconv.TOOL_CALL, step + 0.5, step + 1, failed, attributes=said)
        )
    end = {semconv.STATUS: "completed"}
    return [*spans, TraceSpan("end", "root", semconv.AGENT_FINISH, steps + 1, steps + 1, attributes=end)]


def lines_of(spans: list[TraceSpan], *, width: int | None = None, whole: bool = False) -> list[str]:
    """The lines of the drawing, in a terminal of that width or in a pipe."""
    file = io.StringIO()
    draw(Console(file=file, force_terminal=width is not None, width=width, color_system=None), spans, whole=whole)
    return file.getvalue().splitlines()


def test_a_small_trace_is_drawn_completely() -> None:
    found = lines_of(spans_of_a_run(20, wrong={3}))
    assert len(found) == 2 * 20 + 2 + 1
    assert found[0].startswith("└── invoke_agent a")
    assert found[6].startswith("    ├── ai.toolCall look  ERROR tool_error  recovered  ")
    assert found[7] == "    │     no 3"
    assert found[-1].startswith("    └── agent.finish  completed")


def test_bars_are_drawn_at_the_time_of_their_spans() -> None:
    """The first half, the second half, and an instant, which takes one column."""
    spans = [
        TraceSpan("r", "", "r", 100, 110),
        TraceSpan("a", "r", "a", 100, 105),
        TraceSpan("b", "r", "b", 105, 110),
        TraceSpan("c", "r", "c", 105, 105),
    ]
    bars = [line.partition(" s  ")[2] or line.partition(" ms  ")[2] for line in lines_of(spans)]
    assert bars == ["━" * 40, "━" * 20, " " * 20 + "━" * 20, " " * 20 + "━"]


def test_a_long_trace_is_shortened_to_errors_and_its_first_and_last_steps() -> None:
    """The steps that are left out are counted."""
    wrong = {500, 7000}
    found = lines_of(spans_of_a_run(10_000, wrong=wrong))
    assert len(found) < 30
    assert sum("ERROR" in line for line in found) == len(wrong)
    folds = [line for line in found if "…" in line]
    assert [fold.split("  ")[2].strip() for fold in folds] == [
        "├── … steps 4 to 499, 992 spans",
        "├── … steps 501 to 6999, 12,998 spans",
        "├── … steps 7001 to 9998, 5,996 spans",
    ]
    assert "8 m 16 s" in folds[0]
    assert len(lines_of(spans_of_a_run(1000, wrong=wrong), whole=True)) == 2 * 1000 + 2 + 1


def test_a_hundred_steps_without_errors_are_one_line() -> None:
    """A hundred with an error shows the error."""
    found = lines_of(spans_of_a_run(700, wrong={350}, grouped=True))
    assert sum("agent.steps" in line for line in found) == 6
    assert sum(", 200 spans" in line for line in found) == 5
    assert sum("ERROR" in line for line in found) == 1
    assert len(found) < 60
    assert any("  … steps 101 to 200, 200 spans  " in line for line in found)
    assert sum("agent.steps" in line for line in lines_of(spans_of_a_run(10_000, grouped=True))) < 10


def test_a_trace_with_errors_in_every_step_is_shortened() -> None:
    """To a maximum of errors."""
    found = lines_of(spans_of_a_run(10_000, wrong=range(10_001)))
    assert len(found) < 4 * MAX_ERRORS
    assert any("errors" in line and "…" in line for line in found)
    assert "10,000 errors" in heading("t", spans_of_a_run(10_000, wrong=range(10_001)), "from here")


def test_running_spans_and_their_parents_have_no_end() -> None:
    """The drawing says what they wait for."""
    now = time.time()
    spans = [
        TraceSpan("r", "", "invoke_agent a", now - 60, now - 60),
        TraceSpan(
            "c", "r", "chat m", now - 30, None, message="attempt 2 follows: 503", attributes={semconv.ATTEMPT: 2}
        ),
    ]
    root, chat, text = lines_of(spans)
    assert root.endswith("━▶")
    assert "  attempt 2  running  " in chat
    assert chat.endswith("━▶")
    assert text == "          attempt 2 follows: 503"
    folded = lines_of(
        [*spans_of_a_run(MAX_UNFOLDED_SPANS), TraceSpan("x", "root", "chat m", 30, None, attributes={semconv.STEP: 30})]
    )
    assert any("running" in line for line in folded)


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_the_drawing_is_as_wide_as_the_terminal(width: int) -> None:
    """Long and wide names are cut; no span is missing."""
    spans = spans_of_a_run(3, wrong={2})
    name = {semconv.AI_NAME: "長い" * 60, semconv.STEP: 9, semconv.AI_ERROR: "x" * 500}
    spans.append(TraceSpan("w", "root", semconv.TOOL_CALL, 1, 2, True, attributes=name))
    found = lines_of(spans, width=width)
    assert all(cell_len(line) <= width for line in found), found
    assert any("━" in line for line in found) is (width >= 80)


def test_spans_whose_parents_are_missing_are_roots() -> None:
    """As when the caller's spans are elsewhere. A cycle of spans is not drawn, and does not hang."""
    spans = [TraceSpan("a", "elsewhere", "a", 2, 3), TraceSpan("b", "elsewhere", "b", 1, 2)]
    assert [line.partition(" ")[2].split()[0] for line in lines_of(spans)] == ["b", "a"]
    assert build_tree([TraceSpan("a", "b", "a", 1, 2), TraceSpan("b", "a", "b", 1, 2)]) == []
    assert lines_of([]) == []
    deep = [TraceSpan(str(n), str(n - 1), "s", n, n + 1) for n in range(5000)]
    assert len(lines(build_tree(deep), whole=True)) < 100


@given(st.text(), st.text())
def test_control_characters_are_not_printed(name: str, text: str) -> None:
    """Names and texts come from a model: escapes and line ends are removed."""
    said = {semconv.AI_NAME: name, semconv.ERROR_TYPE: name, semconv.AI_ERROR: text, semconv.REPAIRS: [name]}
    spans = [TraceSpan("a", "", semconv.TOOL_CALL, 1, 2, True, attributes=said), TraceSpan("b", "", name, 1, 2)]
    file = io.StringIO()
    draw(Console(file=file, width=500), spans)
    assert all(char.isprintable() or char == "\n" for char in file.getvalue())
    assert file.getvalue().count("\n") in (2, 3)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0, "0.0 ms"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (1.25, "1.2 s"), (59.99, "60.0 s"), (61, "1 m 01 s"),
        (3599.9, "1 h 00 m"), (7260, "2 h 01 m"), (90_000, "1 d 01 h"),
    ],
)  # fmt: skip
def test_durations_are_printed_with_a_fitting_unit(seconds: float, says: str) -> None:
    assert duration_text(seconds) == says


def answer(**span: Any) -> dict[str, Any]:
    """Jaeger's response, which contains a span twice."""
    one = {"name": "x", "startTimeUnixNano": "1000000000", "endTimeUnixNano": "2500000000", **span}
    return {"result": {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}, {"scopeSpans": [{"spans": [one]}]}]}}


def test_jaegers_json_is_read_in_all_its_forms() -> None:
    """Integers and times as strings, ids in hexadecimal or base64, the status as a number or a name."""
    attributes = [
        {"key": "mulligan.step", "value": {"intValue": "3"}},
        {"key": "on", "value": {"boolValue": True}},
        {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"doubleValue": 1.5}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}}},
        {"key": "none", "value": {}},
    ]
    [span] = read(
        answer(
            spanId="00000000000000ab",
            parentSpanId="AAAAAAAAAM0=",
            status={"code": 2, "message": "m"},
            attributes=attributes,
        )
    )
    assert (span.span_id, span.parent_id) == ("00000000000000ab", "00000000000000cd")
    assert (span.start, span.end, span.is_error, span.message) == (1.0, 2.5, True, "m")
    assert span.attributes == {"mulligan.step": 3, "on": True, "list": ["a", 1.5], "map": {"k": "v"}, "none": None}
    assert read(answer(spanId="00000000000000ab", status={"code": "STATUS_CODE_ERROR"}))[0].is_error
    assert not read(answer(spanId="00000000000000ab"))[0].is_error
    assert read({"result": {}}) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:16686", "http://localhost:16686"),
        ("https://a:b@host/jaeger", "https://host/jaeger"),
        ("https://a:b%40c@host:1/p?token=x", "https://host:1/p"),
    ],
)
def test_no_password_of_a_url_is_printed(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
