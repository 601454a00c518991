"""The examples of docs/events.md, and the event log with its carried state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from temporalio.client import Client

from mulligan import events
from mulligan.client.follow_events import EventFollower
from mulligan.values import AssistantMessage, Decision, Deferred, ErrorInfo, Repair, ToolCall, Usage, UserMessage
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.tool_call import tool_message
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.conversation.event_page import event_page

PAGE = (Path(__file__).parent.parent.parent / "docs/events.md").read_text()
[SHOWN] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
TYPES = {kind.model_fields["type"].default: kind for kind in get_args(get_args(events.Event)[0])}


@pytest.mark.parametrize("line", SHOWN.splitlines(), ids=lambda line: str(json.loads(line)["type"]))
def test_each_line_of_the_events_page_is_an_event_with_all_its_fields(line: str) -> None:
    """And with no other fields."""
    event = events.EVENT.validate_json(line)
    assert event.model_dump(mode="json") == json.loads(line)
    assert set(json.loads(line)) | {"token"} == set(type(event).model_fields) | {"token"}


def test_the_events_page_shows_every_type_of_event() -> None:
    assert {json.loads(line)["type"] for line in SHOWN.splitlines()} == set(TYPES)


def log() -> EventLog:
    made = EventLog(iter(range(1_000)).__next__)
    made.run_started(1, "a", "m", 20)
    for step in (1, 2, 3):
        made.step_started(step, "m")
        made.answered([0])
        made.tool_call_started(0)
        made.tool_call_settled(0)
        made.message(step)
    made.compacted(4)
    made.step_started(4, "m")
    return made


def test_offsets_continue_after_earlier_events_were_dropped() -> None:
    """Events of earlier messages stay in the run before; offsets count over the whole chain."""
    made = log()
    assert made.total == 21
    assert EventLog.load(json.loads(json.dumps(made.dump(1)))).entries == made.entries
    after: Any = EventLog.load(json.loads(json.dumps(made.dump(3))))
    assert (after.first, after.total) == (13, 21)
    assert after.entries == made.entries[13:]
    assert after.entries[0].type == "step_started"
    after.answered([])
    assert (after.entries[-1].step, after.total) == (4, 22)


def test_each_event_belongs_to_one_step() -> None:
    """A message to the step before it, a compaction to the next one. What an earlier run has is not here."""
    made = log()
    assert [made.offsets_of(step) for step in range(1, 6)] == [(1, 7), (7, 13), (13, 19), (19, 21), (21, 21)]
    after = EventLog.load(json.loads(json.dumps(made.dump(3))))
    assert [after.offsets_of(step) for step in range(1, 5)] == [(-1, -1), (-1, -1), (13, 19), (19, 21)]
    assert made.newest_step == after.newest_step == 4


def test_the_step_being_written_lasts_from_its_start_to_its_answer() -> None:
    """From its start to its answer."""
    made = log()
    assert made.writing is not None
    assert made.writing.step == 4
    made.stopping("enough")
    assert made.writing is not None
    # Text of the model before is not mixed with that of this one.
    made.model_fallback("other", ErrorInfo(kind="ModelUnavailableError", message="down"))
    assert made.writing is made.entries[-1]
    assert made.writing.step == 4
    made.answered([])
    assert made.writing is None


@pytest.mark.parametrize("token", ["x", "-1", "1.2", "1.2.3.4", "1" * 16, "١"])
def test_an_invalid_token_is_refused_with_a_sentence(token: str) -> None:
    """One sentence."""
    with pytest.raises(ValueError, match="is not the token of an event"):
        events.follow(None, "x", since=token)  # type: ignore[arg-type]


def test_each_stored_type_of_event_is_built_from_its_log_entry() -> None:
    """A type that event_page.py cannot build would fail the query `events` of every run that has one."""
    conversation = Conversation()
    call = ToolCall(id="a", name="refund", arguments="{}")
    log = conversation.event_log
    log.run_started(1, "a", "m", 20)
    log.step_started(1, "m")
    log.model_fallback("n", ErrorInfo(kind="ModelUnavailableError", message="down"))
    prepared = PreparedCall(arguments={}, repairs=[Repair(by="fix")])
    message = AssistantMessage(role="assistant", text="", tool_calls=[call])
    conversation.begin_step(message, [prepared], Usage(), "m")
    conversation.end_step([tool_message(call, "done", None)])
    log.waiting(0, "approval")
    log.reminder(0, "approval", "refund {}", 1)
    log.edited(0, "refund {}", "finance", "Ada", "fewer")
    log.reminder(0, "approval", "refund {}", 2, is_edited=True)
    log.decided(0)
    log.tool_call_started(0)
    log.tool_call_deferred(0)
    log.tool_call_settled(0)
    log.answer_rejected()
    log.handed_over(0, "a", "b", "n")
    log.message(conversation.append(UserMessage(role="user", text="Hello")))
    log.compacted(2)
    log.stopping()
    log.run_ended(1, "completed")
    conversation.steps[0].calls[0].decision = Decision(kind="approval", decision="approve", since="", at="")
    conversation.steps[0].calls[0].deferred = Deferred(kind="callback", started="x", since="")
    conversation.steps[0].error = ErrorInfo(kind="x", message="y")
    page = event_page(conversation, "0", None, 0, 100)
    stored = {name for name, kind in TYPES.items() if "offset" in kind.model_fields}
    assert {event["type"] for event in page["events"]} == stored


async def test_a_reader_skips_events_of_a_newer_version() -> None:
    """And continues after them."""
    client = await Client.connect("localhost:1", lazy=True)
    follower = EventFollower(client, "x", "", 1)
    at = "2026-11-22T00:00:00Z"
    assert follower._parse({"type": "invented", "offset": 4, "at": at}) is None
    event = follower._parse({"type": "stopping", "offset": 5, "at": at})
    assert event is not None
    assert event.token == "6"


@pytest.mark.parametrize(
    ("kind", "fields", "path"),
    [
        ("run_ended", {"turn": 1, "status": "new", "result": {"status": "new", "usage": {}}}, "result.status"),
        ("waiting", {"kind": "new"}, "kind"),
        ("decided", {"decision": "new"}, "decision"),
        ("tool_call_deferred", {"deferred": {"kind": "new", "started": "", "since": ""}}, "deferred.kind"),
        (
            "tool_call_settled",
            {"result": {"text": "", "error": {"kind": "new", "message": ""}}, "attempts": 1},
            "result.error.kind",
        ),
    ],
)
async def test_a_reader_keeps_statuses_and_kinds_of_a_newer_version(
    kind: str, fields: dict[str, Any], path: str
) -> None:
    """An event that it knows is not skipped for a value that it does not know."""
    client = await Client.connect("localhost:1", lazy=True)
    call = {} if kind == "run_ended" else {"step": 1, "call_id": "c", "name": "n"}
    stored = {"type": kind, "offset": 4, "at": "2026-11-22T00:00:00Z", **call, **fields}
    value: Any = EventFollower(client, "x", "", 1)._parse(stored)
    for name in path.split("."):
        value = getattr(value, name)
    assert value == "new"
