"""One table of event logs, and the exact frames of each door for each of them: tests/unit/door_frames/.

The frames are those that the doors stream, from the events that a watcher of the run gets, without a server. After a change
that is meant: `WRITE_DOOR_FRAMES=1 pytest tests/unit/test_door_frames.py`; its commit says why the wire changes.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mulligan.serve import turn_stream
from mulligan.serve.openai_api.response_events import ResponseEvents
from mulligan.serve.openai_api.response_form import OPEN_RESPONSES
from tests.support.door_streams import DOORS, head_of
from tests.support.event_logs import LOGS
from tests.support.run_log import RunLog

FOLDER = Path(__file__).with_name("door_frames")
WRITES = bool(os.environ.get("WRITE_DOOR_FRAMES"))
WRITTEN_DOWN = ["ag_ui", "ai_sdk", "ai_sdk_6", "chat_completions", "responses", "open_responses", "mcp"]
"""Our own events are those of the log, and the console's frames are HTML: test_door_rules.py, test_console.py."""
MOST_CHARS = 120
"""Of a text in the files; it is shortened in the middle, with its length."""
EMPTY = ResponseEvents(head_of(RunLog()), OPEN_RESPONSES).to_json()
"""With the fields of both forms."""
CONSTANT = {"at", "threadId", "runId", "trace_id", "logprobs", "object", "created", "completed_at"}
"""Fields that are left out of the files, as they are the same in all frames of a door, or say when the test's log was."""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has all of its events at once: nothing comes after a pause."""
    monkeypatch.setattr(turn_stream, "QUIET_SECONDS", 0.01)


async def lines_of(door: str, name: str) -> list[str]:
    """A line for each frame. What version 6 of the AI SDK gets is a line if it is what version 7 gets."""
    lines = [_line(frame) for frame in await DOORS[door](LOGS[name]())]
    same = door == "ai_sdk_6" and lines == [_line(frame) for frame in await DOORS["ai_sdk"](LOGS[name]())]
    return ["as version 7"] if same else lines


def _line(frame: dict[str, Any]) -> str:
    if "choices" in frame:
        frame = frame["choices"][0] if frame["choices"] else {"usage": frame["usage"]}
    kept = {name: value for name, value in frame.items() if name != "type"}
    return f"{frame.get('type', 'chunk')} {json.dumps(_brief(kept), ensure_ascii=False)}".removesuffix(" {}")


def _brief(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            given = {key: each for key, each in value.items() if key not in CONSTANT and each is not None}
            if name == "response":
                given = {key: each for key, each in given.items() if each != EMPTY.get(key) or key == "status"}
            if name == "result" and "status" in given:
                given = {key: given[key] for key in ("status", "output", "steps") if key in given}
            return {key: _brief(each, key) for key, each in given.items()}
        case list():
            return [_brief(each) for each in value]
        case str() if len(value) > MOST_CHARS:
            return f"{value[: MOST_CHARS // 2]} … ({len(value)} characters)"
    return value


@cache
def expected_of(door: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for section in (FOLDER / f"{door}.txt").read_text().split("## ")[1:]:
        name, *lines = section.rstrip("\n").split("\n")
        found[name] = lines
    return found


@pytest.mark.skipif(WRITES, reason="the files are written")
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("door", WRITTEN_DOWN)
async def test_each_door_makes_these_frames_of_this_log(door: str, name: str) -> None:
    assert await lines_of(door, name) == expected_of(door)[name]


@pytest.mark.parametrize("door", WRITTEN_DOWN)
async def test_the_files_have_the_logs_of_the_table_and_no_others(door: str) -> None:
    if WRITES:
        FOLDER.mkdir(exist_ok=True)
        sections = [[f"## {name}", *await lines_of(door, name)] for name in LOGS]
        text = "\n".join(line for section in sections for line in section)
        (FOLDER / f"{door}.txt").write_text(f"{text}\n")
    expected_of.cache_clear()
    assert list(expected_of(door)) == list(LOGS)
