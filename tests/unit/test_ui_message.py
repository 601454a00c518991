"""What a page gets of a message that it has not streamed: the parts that the stream's chunks become."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.serve import ui_message
from mulligan.serve.ui_message import UIMessage

START: dict[str, Any] = {"type": "start-step"}
STEP = {"type": "step-start"}
CALL: list[dict[str, Any]] = [
    {"type": "tool-input-start", "toolCallId": "c", "toolName": "f"},
    {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "{'a': 1}"},
    {"type": "tool-input-available", "toolCallId": "c", "toolName": "f", "input": {"a": 1}, "providerExecuted": True},
]
RUNNING: dict[str, Any] = {"type": "tool-f", "toolCallId": "c", "input": {"a": 1}, "providerExecuted": True}
ASKED = {"type": "tool-approval-request", "approvalId": "t:c", "toolCallId": "c"}


def text(written: str, number: int = 1) -> list[dict[str, Any]]:
    name = f"text-{number}"
    head, delta = {"type": "text-start", "id": name}, {"type": "text-delta", "id": name, "delta": written}
    return [head, delta, {"type": "text-end", "id": name}]


def parts(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    message = UIMessage("run")
    for chunk in chunks:
        message.add(chunk)
    shown = message.to_json()
    assert (shown["id"], shown["role"]) == ("run", "assistant")
    found: list[dict[str, Any]] = shown["parts"]
    return found


def test_text_that_became_void_is_no_part() -> None:
    void = [{"type": "text-start", "id": "text-1"}, {"type": "text-delta", "id": "text-1", "delta": "Goo"}]
    kept = {"type": "text", "text": "Hello", "state": "done"}
    assert parts(START, *void, {"type": "reset-step"}, *text("Hello", 2)) == [STEP, kept]


@pytest.mark.parametrize(
    ("chunks", "part"),
    [
        ([], {"state": "input-available"}),
        ([ASKED], {"state": "approval-requested", "approval": {"id": "t:c"}}),
        (
            [ASKED, {"type": "tool-approval-response", "approvalId": "t:c", "approved": False, "reason": "No."}],
            {"state": "approval-responded", "approval": {"id": "t:c", "approved": False, "reason": "No."}},
        ),
        ([{"type": "tool-output-available", "toolCallId": "c", "output": "x"}], {"state": "output-available", "output": "x"}),
        ([{"type": "tool-output-error", "toolCallId": "c", "errorText": "x"}], {"state": "output-error", "errorText": "x"}),
        ([ASKED, {"type": "tool-output-denied", "toolCallId": "c"}], {"state": "output-denied", "approval": {"id": "t:c"}}),
    ],
)  # fmt: skip
def test_a_call_is_one_part_in_its_newest_state(chunks: list[dict[str, Any]], part: dict[str, Any]) -> None:
    assert parts(START, *CALL, *chunks) == [STEP, {**RUNNING, **part}]


def test_an_id_that_a_later_step_uses_again_is_another_call() -> None:
    output = {"type": "tool-output-available", "toolCallId": "c", "output": "x"}
    shown = parts(START, *CALL, output, START, *CALL)
    assert [part.get("state") for part in shown] == [None, "output-available", None, "input-available"]


def test_data_is_a_part_unless_it_is_transient() -> None:
    data = {"type": "data-mulligan", "id": "event-1", "data": {"type": "compacted"}}
    assert parts(START, {**data, "transient": True}, data, {"type": "finish"}) == [STEP, data]


def test_of_a_long_message_the_newest_steps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_message, "MOST_MESSAGE_CHARS", 3_000)
    steps = [chunk for number in range(20) for chunk in (START, *text(f"{number}" * 500, number))]
    shown = [part["text"][:2] for part in parts(*steps) if part["type"] == "text"]
    assert shown[-1] == "19"
    assert 1 < len(shown) < 5
