"""Mistakes of models and tools, one row each: the feedback to the model, the calls that ran, and the spans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mulligan import ToolCallError
from tests.promise.recovery_matrix import Row, check
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

ROWS = [
    Row("unknown name", [("clik", "{}")], ["unknown_tool"], ["Did you mean `click`?"]),
    Row("empty name", [("", "{}")], ["unknown_tool"], ["The tools are: `search_orders`"]),
    Row("dunder name", [("__class__", "{}")], ["unknown_tool"], ["no tool `__class__`"]),
    Row("long name", [("x" * 10_000, "{}")], ["unknown_tool"], ["There is no tool `xxx"]),
    Row("not ascii name", [("клик", "{}")], ["unknown_tool"], ["no tool `клик`"]),
    Row("cut-off JSON", [("click", '{"selector": "#a')], ["invalid_json"], ["in the middle of a string"]),
    Row(
        "cut off between arguments",
        [("search_orders", '{"customer": "Ada",'), ("search_orders", '{"customer": "Ada"')],
        ["invalid_json", "invalid_json"],
        ["stop right after a ','", "nothing was added to it: write all of it"],
    ),
    Row("prose", [("click", "I click on it")], ["invalid_json"], ["not valid JSON"]),
    Row("missing field", [("click", "{}")], ["invalid_arguments"], ["- `selector`: is required, but missing"]),
    Row("a field of another type", [("click", '{"selector": 5}')], ["invalid_arguments"], ["should be a string"]),
    Row("null", [("click", "null")], ["invalid_arguments"], ["selector"]),
    Row(
        "out of range, and a name near another",
        [("search_orders", '{"customer": "Ada", "limit": 99, "srot": "new"}')],
        ["invalid_arguments"],
        ["`limit`: should be less than or equal to 50"],
    ),
    Row("tool error", [("refuse", "{}")], ["tool_error"], ["The shop is closed until nine."], 1),
    Row("tool exception", [("explode", "{}")], ["tool_exception"], ["raised ZeroDivisionError: division by zero"], 1),
    Row("a tool that exits", [("leave", "{}")], ["tool_exception"], ["raised SystemExit: 3"], 1),
    Row("a thread that hangs", [("hang_thread", "{}")], ["tool_timeout"], ["did not finish within 0.5 s"], 1),
    Row("a coroutine that blocks", [("hang_loop", "{}")], ["tool_timeout"], ["did not finish within 0.5 s"], 1),
    Row("a tool that ignores cancellation", [("ignore_cancel", "{}")], ["tool_timeout"], ["did not finish"], 1),
    Row("circular result", [("give", '{"what": "circular"}')], ["invalid_result"], ["refers to itself"], 1),
    Row("NaN result", [("give", '{"what": "nan"}')], ["invalid_result"], ["NaN"], 1),
    Row("bytes result", [("give", '{"what": "bytes"}')], ["invalid_result"], ["type bytes"], 1),
    Row("object result", [("give", '{"what": "object"}')], ["invalid_result"], ["type object"], 1),
    Row("generator result", [("give", '{"what": "generator"}')], ["invalid_result"], ["type generator"], 1),
    Row("an exception as result", [("give", '{"what": "exception"}')], ["invalid_result"], ["type ValueError"], 1),
    Row("a dataclass as result", [("give", '{"what": "dataclass"}')], [None], ['{"kilos": 2.5}'], 1),
    Row("no result", [("give", '{"what": "none"}')], [None], ["null"], 1),
    Row("a model as result", [("give", '{"what": "order"}')], [None], ['{"id": 1, "note": null}'], 1),
    Row("huge result", [("give", '{"what": "huge"}')], [None], ["4,967,232 more characters were left out"], 1),
    Row("a name in another spelling", [("Click", '{"selector": "#a"}')], [None], ["clicked #a"], 1, ("name",)),
    Row("empty arguments", [("now", "")], [None], ["noon"], 1, ("empty_arguments",)),
    Row(
        "repaired JSON",
        [("click", "```json\n{'selector': '#a',}\n```")],
        [None],
        ["clicked #a"],
        1,
        ("json:code_fence+single_quotes+trailing_commas",),
    ),
    Row(
        "only the last brace is missing",
        [("click", '{"selector": "#a"')],
        [None],
        ["clicked #a"],
        1,
        ("json:missing_closers",),
    ),
    Row("a bare value", [("click", '"#a"')], [None], ["clicked #a"], 1, ("bare_value",)),
    Row(
        "a number as a text, and null for what has a default",
        [("search_orders", '{"customer": "Ada", "limit": "5", "sort": null}')],
        [None],
        ["Ada's"],
        1,
        ("schema:integer+null",),
    ),
    Row(
        "true for a number",
        [("search_orders", '{"customer": "Ada", "limit": true}')],
        ["invalid_arguments"],
        ["`limit` should be of type integer"],
    ),
    Row("a fixer", [("click", '{"element": "#a"}')], [None], ["clicked #a"], 1, ("fix",)),
    Row("a lone surrogate", [("click", '{"selector": "\\ud800"}')], [None], ["clicked �"], 1),
    Row("NUL", [("click", '{"selector": "a\\u0000b"}')], [None], ["clicked a\0b"], 1),
    Row("deep nesting", [("click", '{"selector": ' + "[" * 5000 + "]" * 5000 + "}")], ["invalid_json"], ["deep"]),
    Row("NaN argument", [("click", '{"selector": NaN}')], ["invalid_json"], ["NaN and Infinity are not JSON"]),
    Row(
        "infinity as a text",
        [("forget_orders", '{"older_than_days": "Infinity"}'), ("forget_orders", '{"older_than_days": "-inf"}')],
        ["invalid_arguments", "invalid_arguments"],
        ["older_than_days", "JSON has no infinity"],
    ),
    Row(
        "megabytes",
        [("click", '{"selector": "' + "x" * 3_000_000 + '"}'), ("now", "{}")],
        ["invalid_arguments", None],
        ["are 3,000,016 characters long", "noon"],
        1,
    ),
    Row(
        "hundreds of kilobytes, repaired",
        [("click", "{'selector': '" + "x" * 400_000 + "'}")],
        [None],
        ["clicked xxx"],
        1,
        ("json:single_quotes",),
    ),
    Row("retried until it works", [("flaky", "{}")], [None], ["worked"], 3),
    Row(
        "right and wrong side by side",
        [("click", '{"selector": "#1"}'), ("clik", "{}"), ("now", "{}"), ("explode", "{}")],
        [None, "unknown_tool", None, "tool_exception"],
        ["clicked #1", "no tool", "noon", "raised"],
        3,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_each_mistake_gets_one_result_and_one_error_span_and_the_run_completes(lab: Lab, row: Row) -> None:
    """Results are in the order of the calls; the spans are in the trace of the run. Other APIs: tests/unit/test_recovery_of_apis.py."""
    await check(lab, row, "openai-chat")


@pytest.mark.parametrize("api", ["openai", "anthropic", "google"])
async def test_other_apis_get_the_same_feedback(lab: Lab, api: str) -> None:
    [row] = [row for row in ROWS if row.name == "right and wrong side by side"]
    await check(lab, row, api)


async def test_after_invalid_input_the_tool_runs_once_with_the_corrected_input(lab: Lab) -> None:
    """The feedback says what was wrong."""

    def told(request: dict[str, Any], _: int) -> Turn:
        text = request["messages"][-1]["content"]
        assert "`customer`: is required, but missing" in text
        return call("search_orders", '{"customer": "Ada", "limit": "5"}')

    script = [call("search_orders", '{"client": "Ada"}'), told, DONE]
    ran = await lab.run(lambda request, nth: step(request, nth) if callable(step := script[nth]) else step)
    assert RAN[ran.id] == [("search_orders", {"customer": "Ada", "limit": 5, "sort": "new"})]
    assert [call["arguments"] for call in ran.calls] == [None, {"customer": "Ada", "limit": 5}]
    assert ran.result["recovered_failures"] == 1
    assert json.loads(ran.calls[1]["result"]["text"]) == [{"id": 7, "note": "Ada's"}]


async def test_a_run_out_of_steps_ends_with_status_max_steps_and_counts_its_failures(lab: Lab) -> None:
    """The calls of the last step get their results."""
    ran = await lab.run([call("clik")] * 3, max_steps=2)
    assert (ran.result["status"], ran.result["steps"], ran.result["recovered_failures"]) == ("max_steps", 2, 2)
    assert all(call["result"]["error"]["kind"] == "unknown_tool" for call in ran.calls)


async def test_attempts_of_a_call_share_one_idempotency_key_and_have_a_span_each(lab: Lab) -> None:
    """The spans have the number of the attempt. Errors of all attempts but the last are not returned to the model."""
    ran = await lab.run([call("flaky"), DONE])
    assert len({arguments["key"] for _, arguments in RAN[ran.id]}) == 1
    spans = ran.spans_of("ai.toolCall")
    assert [(s.attributes["mulligan.attempt"], s.status, s.attributes["mulligan.recovered"]) for s in spans] == [
        (1, "ERROR", False),
        (2, "ERROR", False),
        (3, "UNSET", False),
    ]
    assert ran.calls[0]["attempts"] == 3


async def test_calls_with_the_same_id_get_unique_ids_and_an_identical_call_runs_once(lab: Lab) -> None:
    """The same id for different calls, in one step or in a later one."""
    same = ("click", '{"selector": "#a"}', "call_1")
    ran = await lab.run([Turn(calls=[same, same, ("click", '{"selector": "#b"}', "call_1")]), Turn(calls=[same]), DONE])
    assert [call["result"]["text"] for call in ran.calls if not call["result"]["error"]] == [
        "clicked #a",
        "clicked #b",
        "clicked #a",
    ]
    assert ran.calls[1]["result"]["error"]["kind"] == "duplicate_call"
    assert len({call["id"] for call in ran.calls}) == 4
    assert len(RAN[ran.id]) == 3


async def test_a_call_cut_off_by_the_length_limit_is_not_executed(lab: Lab) -> None:
    """A call that was complete before is executed."""
    cut = Turn(
        calls=[("click", '{"selector": "#a"}', None), ("click", '{"selector": "#', None)], finish_reason="length"
    )
    ran = await lab.run([cut, DONE])
    assert [call["result"]["error"] and call["result"]["error"]["kind"] for call in ran.calls] == [
        None,
        "truncated_call",
    ]
    assert len(RAN[ran.id]) == 1


@pytest.mark.parametrize(
    ("turn", "status"),
    [
        (Turn(text="half an ans", finish_reason="length"), "truncated"),
        (Turn(text="", finish_reason="content_filter"), "refused"),
        (Turn(refusal="I will not."), "refused"),
    ],
    ids=["length", "content_filter", "refusal"],
)
@pytest.mark.parametrize("api", ["openai-chat", "openai"])
async def test_the_finish_reason_of_an_answer_without_calls_sets_the_run_status(
    lab: Lab, turn: Turn, status: str, api: str
) -> None:
    """`truncated` or `refused`."""
    ran = await lab.run([turn], api=api)
    assert ran.result["status"] == status


async def test_without_handle_errors_the_run_fails_with_the_typed_error_unless_overridden(lab: Lab) -> None:
    """`on_invalid_tool_input` of the run's input overrides `handle_errors` for mistakes of the model."""
    failed = await lab.run([call("clik"), DONE], agent="strict")
    assert type(failed.error).__name__ == "UnknownToolError"
    assert getattr(failed.error, "tool_name", None) == "clik"
    [span] = failed.spans_of("ai.toolCall")
    assert (span.status, span.attributes["mulligan.recovered"]) == ("ERROR", False)
    [finish] = failed.spans_of("agent.finish")
    assert (finish.status, finish.attributes["error.type"]) == ("ERROR", "unknown_tool")
    told = await lab.run([call("clik"), DONE], agent="strict", on_invalid_tool_input="feedback")
    assert told.result["recovered_failures"] == 1
    thrown = await lab.run([call("click", "{"), DONE], onInvalidToolInput="throw")
    assert type(thrown.error).__name__ == "InvalidToolInputError"
    assert getattr(thrown.error, "raw_arguments", None) == "{"


async def test_a_guard_that_returns_text_or_raises_denies_the_call(lab: Lab) -> None:
    """It is asked after repairs, before a valid call runs."""
    selectors = ['{"selector": "#a"}', '{"element": "#b"}', '{"selector": "#crash"}']
    ran = await lab.run([Turn(calls=[("click", raw, None) for raw in selectors]), DONE], agent="guarded")
    allowed, denied, failed = (call["result"] for call in ran.calls)
    assert allowed == {"text": "clicked #a", "error": None}
    assert (denied["error"]["kind"], denied["text"]) == (
        "denied",
        "`click` was not run: nobody may click on #b in guarded.",
    )
    assert (failed["error"]["kind"], "the guard failed: LookupError" in failed["text"]) == ("denied", True)
    assert RAN[ran.id] == [("click", {"selector": "#a"})]


@pytest.mark.parametrize(("name", "kind"), [("explode", "tool_exception"), ("hang_thread", "tool_timeout")])
async def test_the_error_of_a_tool_that_fails_the_run_contains_the_raw_arguments(
    lab: Lab, name: str, kind: str
) -> None:
    """`raw_arguments` is the text of the model, although it was not sent to the tool's activity."""
    failed = await lab.run([call(name, "{ }"), DONE], agent="strict")
    assert isinstance(failed.error, ToolCallError)
    assert (failed.error.kind, failed.error.tool_name, failed.error.raw_arguments) == (kind, name, "{ }")
