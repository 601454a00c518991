"""A call that waits for a person: until when, who may approve it, what an edit changes, and what people are shown."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio import workflow

from mulligan.values import Decision, ToolCall
from mulligan.wire.questions import Question
from mulligan.wire.updates import EarlierDecision, Stop
from mulligan.workflows import limits
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.people.gone_tool import HAS_TOOL
from mulligan.workflows.people.person_wait import PersonWait, decision_text, how_decided
from mulligan.workflows.waits import Waits
from tests.support.core_parts import tool_call

NOW = 1_000.0
AT = "1970-01-01T00:16:40.000Z"


class Info:
    workflow_id = "the run"


class Unlisted:
    def update(self) -> None:
        pass


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "time", lambda: NOW)
    monkeypatch.setattr(workflow, "info", Info)
    monkeypatch.setattr(workflow, "extern_functions", dict)


def wait_of(call: ToolCall | None = None, **fields: Any) -> PersonWait:
    given: dict[str, Any] = {
        "reason": "approval",
        "text": 'pay {"euros": 7}',
        "step": 2,
        "index": 1,
        "arguments": {"euros": 7},
        "since": NOW,
    }
    given |= fields
    return PersonWait(key="c1", call=call or tool_call(call_id="c1"), **given)


@pytest.mark.parametrize(
    ("role", "roles", "may"),
    [
        (None, None, True),
        (None, [], True),
        (None, ["boss"], True),
        ("boss", None, True),  # whoever has all roles
        ("boss", [], False),
        ("boss", ["clerk"], False),
        ("boss", ["clerk", "boss"], True),
    ],
)
def test_a_call_with_a_role_is_approved_by_somebody_who_has_it(
    role: str | None, roles: list[str] | None, may: bool
) -> None:
    assert wait_of(role=role).may_approve(roles) is may


@pytest.mark.parametrize(
    ("timeout", "reminder", "reminders", "until", "next_reminder"),
    [
        (None, None, 0, None, None),
        (60.0, None, 0, 1_060.0, None),
        (None, 60.0, 0, None, 1_060.0),
        (None, 60.0, 1, None, 1_180.0),
        (None, 60.0, 2, None, 1_420.0),
        (None, 1.0, 9, None, 2_023.0),
        (None, 1.0, 10, None, None),
    ],
)
def test_the_time_limit_and_the_next_reminder(
    timeout: float | None, reminder: float | None, reminders: int, until: float | None, next_reminder: float | None
) -> None:
    """Each interval between reminders is twice the one before it, and there are ten."""
    wait = wait_of(timeout=timeout, reminder=reminder, reminders=reminders)
    assert (wait.until, wait.next_reminder) == (until, next_reminder)


def test_a_reminder_that_is_due_now_is_taken() -> None:
    assert wait_of(reminder=60.0, since=NOW - 60).take_reminders() == 1
    assert wait_of(reminder=60.0, since=NOW - 59).take_reminders() == 0


def test_a_wait_is_over_when_there_is_a_decision() -> None:
    wait = wait_of(role="boss", since=NOW - 5)
    assert (wait.is_over, wait.may_leave, wait_of(is_held=True).may_leave) == (False, True, False)
    wait.resolve("approve", by="Ada", reason="fine")
    assert wait.is_over
    assert wait.decision == Decision(
        kind="approval",
        decision="approve",
        since="1970-01-01T00:16:35.000Z",
        at=AT,
        by="Ada",
        reason="fine",
        role="boss",
    )


def test_a_stopped_run_asks_nobody_and_keeps_a_decision() -> None:
    wait = wait_of()
    wait.stop(Stop(by="Bo", reason="late"))
    wait.stop(Stop(by="Cy"))
    assert wait.decision is not None
    assert (wait.decision.decision, wait.decision.by, wait.decision.reason) == ("stopped", "Bo", "late")


def test_an_edit_is_what_is_decided_on() -> None:
    """The decision has the arguments before, and who has edited, unless the same person decides."""
    wait = wait_of(text='pay {"euros": 7}\nIt has read a page.\nOf others.')
    assert wait.shown_arguments == {"euros": 7}
    wait.edit({"euros": 5}, "digest", role="boss", by="Ada")
    assert (wait.shown_arguments, wait.edited_digest, wait.role, wait.edits) == ({"euros": 5}, "digest", "boss", 1)
    assert wait.text == 'pay {"euros": 5}\nIt has read a page.\nOf others.'
    wait.edit({"euros": 4}, None, role=None, by="Bo")
    assert (wait.role, wait.edits, wait.edited_by, wait.edited_digest) == (None, 2, "Bo", None)
    wait.resolve("approve", by="Ada")
    assert wait.decision is not None
    assert (wait.decision.edited, wait.decision.before, wait.decision.edited_by) == (True, {"euros": 7}, "Bo")
    wait.resolve("approve", by="Bo")
    assert (wait.decision.edited_by, wait_of().decision) == (None, None)


def test_a_decision_without_an_edit_has_no_arguments() -> None:
    wait = wait_of()
    wait.resolve("timeout")
    assert wait.decision is not None
    assert (wait.decision.edited, wait.decision.before, wait.decision.edited_by, wait.decision.by) == (
        False,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("decision", "by", "sentence"),
    [
        ("approve", "Ada", f"it was approved by Ada at {AT}"),
        ("deny", None, f"it was denied at {AT}"),
        ("answer", None, f"it was answered at {AT}"),
        ("timeout", None, f"it timed out at {AT}"),
        ("stopped", "Bo", f"the run was stopped by Bo at {AT}"),
    ],
)
def test_a_late_reply_is_told_how_it_was_decided(decision: Any, by: str | None, sentence: str) -> None:
    wait = wait_of()
    wait.resolve(decision, by=by)
    assert wait.decision is not None
    assert how_decided(wait.decision) == sentence


@pytest.mark.parametrize(
    ("arguments", "is_question", "text"),
    [
        ({"euros": 7, "to": "Zoë"}, False, 'pay {"euros": 7, "to": "Zoë"}'),
        ({"question": "Which?"}, True, "Which?"),
        ({"question": "Which?"}, False, 'pay {"question": "Which?"}'),
        ({"question": 5}, True, 'pay {"question": 5}'),
        ({"text": "?"}, True, 'pay {"text": "?"}'),
        (["question"], True, 'pay ["question"]'),
    ],
)
def test_people_are_told_the_question_or_else_the_call(arguments: Any, is_question: bool, text: str) -> None:
    assert decision_text(tool_call(), arguments, is_question=is_question) == text


def test_a_long_call_is_cut_for_people() -> None:
    assert (
        len(decision_text(tool_call(), {"text": "x" * 100_000}, is_question=False)) < limits.DECISION_TEXT_CHARS + 100
    )


@pytest.mark.parametrize(
    ("fields", "key", "others", "sentence", "command"),
    [
        ({}, "0", 0, "waiting for approval of `pay`", ": mulligan approve 'the run' c1"),
        ({}, "2", 0, "waiting for approval of `pay`", ": mulligan approve 'the run' c1 --conversation 2"),
        (
            {},
            "0",
            2,
            "waiting for approval of `pay`",
            ": mulligan approve 'the run' c1 (and 2 more: mulligan pending 'the run')",
        ),
        ({"reason": "question"}, "0", 0, "waiting for an answer to `pay`", ": mulligan answer 'the run' c1 \"…\""),
    ],
)
def test_the_wait_is_shown_with_the_command_that_ends_it(
    fields: dict[str, Any], key: str, others: int, sentence: str, command: str
) -> None:
    assert wait_of(**fields).describe([wait_of()] * others, key) == (sentence, command)


def test_the_entry_of_the_query_has_all_that_people_decide_by() -> None:
    earlier = [EarlierDecision(step=1, call_id="b", decision="approve", at=AT, arguments="{}")]
    wait = wait_of(timeout=60.0, role="boss", user="Eve", earlier=earlier)
    wait.edit({"euros": 5}, None, role="boss", by="Ada")
    pending = wait.as_pending("clerk", "3")
    assert (pending.call_id, pending.tool, pending.arguments, pending.kind) == ("c1", "pay", {"euros": 5}, "approval")
    assert (pending.since, pending.until) == (AT, "1970-01-01T00:17:40.000Z")
    assert (pending.agent, pending.conversation, pending.step, pending.role) == ("clerk", "3", 2, "boss")
    assert (pending.edits, pending.edited_by, pending.user, pending.earlier) == (1, "Ada", "Eve", earlier)
    assert (pending.can_deny, pending.answer_schema, pending.url, wait_of().as_pending("clerk", "0").until) == (
        False, None, None, None,
    )  # fmt: skip


def test_the_question_of_a_server_may_be_denied() -> None:
    question = Question(text="Which?", answer_schema={"type": "object"})
    pending = wait_of(reason="question", question=question).as_pending("clerk", "0")
    assert (pending.can_deny, pending.answer_schema) == (True, {"type": "object"})


@pytest.mark.parametrize(
    ("has_tool", "fields", "is_warned"),
    [
        (False, {}, True),
        (True, {}, False),
        (None, {}, False),  # the worker cannot know
        (False, {"runs_elsewhere": True}, False),
        (False, {"reason": "question"}, False),
    ],
)
def test_people_are_warned_of_a_call_whose_tool_is_gone(
    has_tool: bool | None, fields: dict[str, Any], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "extern_functions", lambda: {HAS_TOOL: lambda agent, tool: has_tool})
    warning = wait_of(**fields).as_pending("clerk", "0").warning
    assert (warning is not None) is is_warned
    assert warning is None or warning.startswith("The tool `pay` is gone: the agent `clerk` does not have it")


async def decided(
    wait: PersonWait,
    monkeypatch: pytest.MonkeyPatch,
    until: list[float],
    stop: Stop | None = None,
    carried: bool = False,
) -> tuple[Decision, list[tuple[str, Any]], Waits]:
    """The decision on a call for which nobody replies before the points in time that pass: `until` has them then."""
    now = [NOW]
    waits, log = Waits(cast(ListedWaits, Unlisted())), EventLog(lambda: now[0])
    monkeypatch.setattr(workflow, "time", lambda: now[0])

    async def passes(condition: Any, *, timeout: float | None, timeout_summary: str | None) -> None:
        if timeout is None:
            wait.resolve("approve", by="Ada")
            return
        now[0] += timeout
        until.append(now[0])
        assert timeout_summary is not None
        summaries.append(timeout_summary)
        raise TimeoutError

    summaries: list[str] = []
    monkeypatch.setattr(workflow, "wait_condition", passes)
    if carried:
        before = Waits(cast(ListedWaits, Unlisted()))
        with before.entered(wait):
            waits.load(before.dump(), {"person": PersonWait})
        [wait] = waits.of(PersonWait)
    decision = await wait.decided(waits, log, stop)
    return decision, [(entry.type, entry.data) for entry in log.entries] + [("timers", summaries)], waits


async def test_people_are_reminded_until_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reminder at the time of the limit does not come."""
    passed: list[float] = []
    decision, log, waits = await decided(wait_of(timeout=420.0, reminder=60.0), monkeypatch, passed)
    assert (decision.decision, passed) == ("timeout", [1_060.0, 1_180.0, 1_420.0])
    shown = {"kind": "approval", "text": 'pay {"euros": 7}'}
    assert log == [
        ("waiting", shown),
        ("reminder", shown | {"number": 1}),
        ("reminder", shown | {"number": 2}),
        ("timers", ["reminder of the approval: pay"] * 2 + ["time limit of the approval: pay"]),
    ]
    assert waits.how_ended(PersonWait, "c1") == "it timed out at 1970-01-01T00:23:40.000Z"


async def test_a_reminder_says_whether_the_arguments_were_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = wait_of(timeout=100.0, reminder=60.0)
    wait.edit({"euros": 5}, None, role="boss", by="Ada")
    _, log, _ = await decided(wait, monkeypatch, [])
    assert log[1] == ("reminder", {"kind": "approval", "text": 'pay {"euros": 5}', "number": 1, "edited": True})


async def test_a_call_without_a_time_limit_waits_for_whoever_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    decision, log, waits = await decided(wait_of(), monkeypatch, [])
    assert (decision.decision, decision.by, log[-1]) == ("approve", "Ada", ("timers", []))
    assert waits.open == {}


async def test_in_a_stopped_run_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    decision, log, waits = await decided(wait_of(), monkeypatch, [], Stop(by="Bo"))
    assert (decision.decision, decision.by) == ("stopped", "Bo")
    assert [each for each, _ in log] == ["waiting", "timers"]
    assert waits.how_ended(PersonWait, "c1") == f"the run was stopped by Bo at {AT}"


async def test_a_carried_wait_goes_on_and_is_not_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[float] = []
    decision, log, waits = await decided(wait_of(timeout=60.0), monkeypatch, passed, carried=True)
    assert (decision.decision, passed, waits.open) == ("timeout", [1_060.0], {})
    assert [each for each, _ in log] == ["timers"]


async def test_a_decision_that_came_with_continue_as_new_ends_the_carried_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = wait_of()
    wait.resolve("deny", by="Ada")
    decision, _, waits = await decided(wait, monkeypatch, [], carried=True)
    assert (decision.decision, waits.open, waits.is_carried("c1")) == ("deny", {}, False)
