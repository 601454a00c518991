"""Steps at the terminal: who made them, where that changes, and the line and reason of code that did not run."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from mulligan.cli._steps import step_views

_FAULTS = "line 2, column 5: Cannot resolve name `x`\n    y = x + 1\nline 9, column 1: unexpected indentation"


def step(number: int, agent: str = "desk", model: str = "openai:m", **fields: Any) -> dict[str, Any]:
    return {"step": number, "agent": agent, "model": model, **fields}


def script_that_did_not_run() -> dict[str, Any]:
    error = {"kind": "invalid_code", "message": "The script was not run."}
    result = {"text": f"Error: The script was not run.\n{_FAULTS}\nCorrect it.", "error": error}
    return {
        "id": "c", "name": "run_code", "raw_arguments": '{"code": "line 7, column 1: x"}', "arguments": {}, "repairs": [],
        "attempts": 1, "run": None, "result": result,
    }  # fmt: skip


def shown(*steps: dict[str, Any]) -> list[str]:
    console = Console(width=200, record=True)
    for view in step_views(steps, lambda number: lambda call_id: ()):
        console.print(view)
    return [line.strip() for line in console.export_text().splitlines()]


def test_agent_and_model_stand_at_the_steps_where_they_change() -> None:
    steps = [
        step(1),
        step(2),
        step(3, "billing"),
        step(4, "billing", "openai:other"),
        step(5, "billing", "openai:other"),
    ]
    assert shown(*steps) == [
        "step 1",
        "step 2",
        "step 3  billing · openai:m",
        "step 4  billing · openai:other",
        "step 5",
    ]


def test_code_that_did_not_run_is_shown_with_line_and_reason() -> None:
    lines = shown(step(1, tool_calls=[script_that_did_not_run()]))
    assert lines[2:] == [
        "returned to the model: invalid_code The script was not run.",
        "line 2, column 5: Cannot resolve name `x`",
        "line 9, column 1: unexpected indentation",
    ]
