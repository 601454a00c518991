"""What a conversation is asked for beside its messages: results, decisions, edits, where a fork begins; and continue-as-new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from temporalio import workflow

from mulligan import AssistantMessage, Message, ToolCall, ToolMessage, Usage, UserMessage
from mulligan.schema.argument_digest import argument_digest
from mulligan.values import Decision, ErrorInfo, Repair, RuleUse
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.tool_call import digest_of_call
from mulligan.workflows import limits
from mulligan.workflows.agent_queries import _page
from mulligan.workflows.conversation.continue_as_new import (
    ContinueAsNewPolicy,
    InvalidStateError,
    decode_state,
    encode_state,
    size_to_carry,
)
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.conversation.records import ConversationSummary, EarlierPart
from mulligan.workflows.fork_point import _check

SUMMARY = ConversationSummary(heading="So far:", summary="much", answers=2, task="Go.")


def user(text: str) -> UserMessage:
    return UserMessage(role="user", text=text)


def said(*calls: ToolCall, text: str = "") -> AssistantMessage:
    return AssistantMessage(role="assistant", text=text, tool_calls=[*calls])


def call_of(call_id: str, name: str = "look", arguments: str = '{"a": 1}') -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result_of(call_id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(role="tool", call_id=call_id, name="look", text=text)


def begin(conversation: Conversation, *calls: ToolCall) -> None:
    conversation.begin_step(said(*calls), [PreparedCall(arguments={"a": 1}) for _ in calls], Usage(), "m")


def with_steps(*steps: tuple[str, ...]) -> Conversation:
    """A conversation with a step for each tuple of calls' ids, all of which have results."""
    conversation = Conversation()
    conversation.append_request([user("Go.")])
    for ids in steps:
        begin(conversation, *map(call_of, ids))
        conversation.end_step([result_of(each) for each in ids])
    return conversation


@pytest.mark.parametrize(
    ("before", "roles", "span", "text"),
    [
        (0, "u", (0, 1), "0"),
        (0, "auu", (1, 3), "2"),
        (0, "uaua", (2, 3), "2"),  # the user's last messages, whatever follows
        (0, "uau", (2, 3), "2"),
        (0, "aa", (0, 0), ""),
        (0, "", (0, 0), ""),
        (2, "u", (2, 3), "0"),  # of an earlier turn's, none
        (2, "uu", (2, 4), "1"),
        (2, "a", (2, 2), ""),
    ],
)
def test_the_request_of_a_turn_is_the_users_messages_at_its_end(
    before: int, roles: str, span: tuple[int, int], text: str
) -> None:
    conversation = Conversation()
    for _ in range(before):
        conversation.append(user("earlier"))
    new: list[Message] = [user(f"{n}") if role == "u" else said(text=f"{n}") for n, role in enumerate(roles)]
    conversation.append_request(new)
    assert (conversation.request_span, conversation.request_text) == (span, text)


def test_a_request_that_was_summarized_is_that_of_the_summary() -> None:
    conversation = with_steps(("a",), ("b",))
    conversation.replace_by_summary(SUMMARY, 3)
    after = Conversation.load(conversation.dump("run"))
    assert (conversation.request_text, after.request_text, after.first_message, after.first_step) == (
        "Go.",
        "Go.",
        3,
        1,
    )


def test_the_result_of_a_call_is_found_wherever_it_is() -> None:
    """In the messages, of the step that is open, or of a call that a call has made."""
    conversation = with_steps(("a",))
    begin(conversation, call_of("b"), call_of("c"))
    inner = conversation.add_inner_call(1, call_of("d"), PreparedCall(arguments={}))
    conversation.record_early_result(0, result_of("b", "early"))
    assert [conversation.result_of(each) for each in "acd"] == [result_of("a"), None, None]
    conversation.record_early_result(inner, result_of("d", "inner"))
    found = {key: each.text for key, each in conversation.results().items()}
    assert found == {"a": "found", "b": "early", "d": "inner"}
    assert [conversation.result_of(each).text for each in "bd"] == ["early", "inner"]  # type: ignore[union-attr]
    assert conversation.carried_results() == {"a", "b", "d"}
    assert ([*conversation.early_results], conversation.has_open_answer) == (["b"], True)
    conversation.end_step([result_of("b"), result_of("c")])
    assert ([*conversation.early_results], conversation.has_open_answer) == ([], False)
    conversation.replace_by_summary(SUMMARY, 3)
    assert conversation.carried_results() == {"b", "c", "d"}
    assert (conversation.calls_since(1), conversation.calls_since(2), conversation.calls_since(3)) == (
        {"a", "b", "c"}, {"b", "c"}, set(),
    )  # fmt: skip


def test_inner_calls_have_the_numbers_after_those_of_the_answer() -> None:
    conversation = with_steps(("a",))
    begin(conversation, call_of("b"), call_of("c"))
    first = conversation.add_inner_call(1, call_of("d"), PreparedCall(arguments={}))
    repaired = PreparedCall(arguments={}, repairs=[Repair(by="fix")])
    second = conversation.add_inner_call(0, call_of("e"), repaired)
    assert (first, second) == (2, 3)
    assert [(n, each.call.id) for n, each in conversation.inner_calls()] == [(2, "d"), (3, "e")]
    assert [n for n, _ in conversation.inner_calls(0)] == [3]
    assert conversation.event_log.entries[-1][:1] + conversation.event_log.entries[-1][3:4] == ("tool_call_repaired", 3)
    step = conversation.step(2)
    assert step is not None
    assert [[inner.id for inner in call.calls] for call in step.tool_calls] == [["e"], ["d"]]


def test_an_edited_call_is_what_the_model_reads_and_its_key_stays() -> None:
    conversation = with_steps(("a",))
    begin(conversation, call_of("b"), call_of("c"))
    before = conversation.ref()
    conversation.edit_call(1, {"a": 2}, "normal")
    answer = conversation.messages[-1]
    assert isinstance(answer, AssistantMessage)
    assert [each.arguments for each in answer.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert (conversation.ref().count, conversation.ref().digest != before.digest) == (before.count, True)
    record = conversation.steps[-1].calls[1]
    own = argument_digest({"a": 1})
    assert (record.raw, record.arguments, record.digests) == ('{"a": 1}', {"a": 2}, ["normal", own])
    assert record.digest == digest_of_call(call_of("c"))
    conversation.edit_call(1, {"a": 3}, None)
    assert (record.raw, record.digests) == ('{"a": 1}', [argument_digest({"a": 3}), own])
    assert record.digest == digest_of_call(call_of("c"))
    assert conversation.steps[-1].calls[0].digest == ""


def test_an_edited_inner_call_is_in_no_message() -> None:
    conversation = with_steps(("a",))
    begin(conversation, call_of("b"))
    inner = conversation.add_inner_call(0, call_of("d"), PreparedCall(arguments={"a": 1}))
    before = conversation.ref()
    conversation.edit_call(inner, {"a": 2}, None)
    [(_, edited)] = conversation.inner_calls()
    assert (edited.call.arguments, edited.record.arguments, conversation.ref()) == ('{"a": 2}', {"a": 2}, before)


def decide(conversation: Conversation, index: int, decision: Any, **fields: Any) -> None:
    conversation.steps[-1].calls[index].decision = Decision(
        kind="approval", decision=decision, since="s", at=f"at {index}", **fields
    )


def test_the_newest_decisions_on_a_tool_come_first() -> None:
    conversation = Conversation()
    rule = RuleUse(name="r", at="then")
    for step in range(3):
        begin(conversation, call_of(f"{step}a"), call_of(f"{step}b"), call_of(f"{step}c", "pay"), call_of(f"{step}d"))
        decide(conversation, 0, "approve", by="Ada")
        decide(conversation, 1, "deny", reason="no", rule=rule if step == 2 else None)
        decide(conversation, 2, "approve")
        conversation.end_step([result_of(f"{step}{each}") for each in "abcd"])
    newest = conversation.earlier_decisions("look", 3)
    assert [each.call_id for each in newest] == ["2b", "2a", "1b"]
    assert [(each.step, each.decision, each.by, each.reason, each.rule) for each in newest[:2]] == [
        (3, "deny", None, "no", "r"), (3, "approve", "Ada", None, None),
    ]  # fmt: skip
    assert newest[0].arguments == '{"a": 1}'
    assert [each.call_id for each in conversation.earlier_decisions("pay", 9)] == ["2c", "1c", "0c"]
    assert conversation.earlier_decisions("nothing", 9) == []


def test_a_decision_on_an_inner_call_counts_as_well() -> None:
    conversation = with_steps()
    begin(conversation, call_of("b", "run_code"))
    conversation.add_inner_call(0, call_of("d"), PreparedCall(arguments={}))
    conversation.steps[-1].inner[0].record.decision = Decision(kind="approval", decision="deny", since="s", at="a")
    assert [each.call_id for each in conversation.earlier_decisions("look", 5)] == ["d"]


def test_steps_are_numbered_over_the_whole_chain() -> None:
    conversation = with_steps(("a",), ("b",))
    conversation.earlier = EarlierPart(messages=10, steps=4, run_id="r")
    assert (conversation.next_step, conversation.first_step, conversation.append(user("x"))) == (7, 4, 15)
    assert [conversation.step(number) is not None for number in (4, 5, 6, 7)] == [False, True, True, False]
    assert [each.step for each in conversation.step_page(5, 9, 10_000)] == [6]
    assert conversation.page(15, 9, 10_000) == [user("x")]
    assert [conversation.steps[0].at, conversation.count_at_answer] == [1, 4]
    assert Conversation().count_at_answer == 0


@pytest.mark.parametrize(
    ("step", "messages", "until"),
    [(1, 1, None), (2, 3, None), (3, 5, None)],
)
def test_the_conversation_before_a_step_is_what_the_model_was_sent(step: int, messages: int, until: None) -> None:
    conversation = with_steps(("a",), ("b",))
    past = conversation.before(step, (0, 1))
    assert (len(past.messages), len(past.steps), past.summary, past.cut) == (messages, step - 1, until, 0)


def test_a_fork_before_a_compaction_has_the_view_of_then() -> None:
    conversation = with_steps(("a",), ("b",))
    conversation.replace_by_summary(SUMMARY, 3)
    begin(conversation, call_of("c"))
    conversation.end_step([result_of("c")])
    early, late = conversation.before(2, (0, 1)), conversation.before(3, (0, 1))
    assert (early.summary, early.cut, early.view_from) == (None, 0, 1)
    assert (late.summary, late.cut, late.view_from, late.request_span) == (SUMMARY, 3, 3, (0, 1))
    assert conversation.dump("r")["view_from"] == 3


def test_a_fork_takes_the_records_of_its_messages_and_no_others() -> None:
    conversation = with_steps(("a",), ("b", "c"))
    state = conversation.before(3, (0, 1)).dump("run")
    fork = Conversation()
    for message in conversation.messages:
        fork.append(message)
    fork.take_over(state)
    assert ([len(each.calls) for each in fork.steps], fork.shared_steps, fork.next_step) == ([1, 2], 2, 3)
    assert [each.shared for each in fork.step_page(0, 9, 10_000)] == [True, True]
    begin(fork, call_of("d"))
    assert [each.shared for each in fork.step_page(0, 9, 10_000)] == [True, True, False]
    other = with_steps(("x", "y"))
    with pytest.raises(ValueError, match="its steps are not those of its messages"):
        other.take_over(state)


def open_step() -> Conversation:
    conversation = with_steps(("a",))
    begin(conversation, call_of("b"), call_of("c"))
    conversation.record_early_result(0, result_of("b"))
    return conversation


def final_answer() -> Conversation:
    conversation = with_steps(("a",))
    conversation.begin_step(said(text="Done."), [], Usage(), "m")
    return conversation


@pytest.mark.parametrize(
    ("make", "step", "refused"),
    [
        (with_steps, 1, None),
        (with_steps, 0, "There is no step 0: it has no steps."),
        (with_steps, 2, "There is no step 2: it has no steps."),
        (lambda: with_steps(("a",)), 2, None),
        (lambda: with_steps(("a",)), 3, "There is no step 3: it has 1 step."),
        (lambda: with_steps(("a",), ("b",)), 4, "There is no step 4: it has 2 steps."),
        (open_step, 2, None),
        (
            open_step,
            3,
            "There is no step 3 yet: step 2 has calls without a result, `look` (c), which a fork cannot take over.",
        ),
        (final_answer, 2, None),
        (final_answer, 3, "There is no step 3: step 2 is the last one, with the model's final answer."),
    ],
)
def test_a_fork_begins_where_the_model_was_or_can_be_called(
    make: Callable[[], Conversation], step: int, refused: str | None
) -> None:
    conversation = make()
    if refused is None:
        _check(conversation, step, conversation.next_step - 1)
        return
    with pytest.raises(ValueError) as error:
        _check(conversation, step, conversation.next_step - 1)
    assert str(error.value).startswith(refused)


def read_numbers(since: int, count: int, most_bytes: int) -> list[Any]:
    assert (most_bytes, count >= 1) == (limits.PAGE_BYTES, True)
    return [user(f"{number}") for number in range(since, min(since + count, 15))][:3]


@pytest.mark.parametrize(
    ("since", "limit", "earlier", "numbers", "following"),
    [
        (10, 9, True, [10, 11, 12], 13),
        (13, 9, True, [13, 14], None),
        (15, 9, True, [], None),
        (9, 9, True, [], 10),
        (-5, 9, True, [], 10),
        (-5, 2, False, [0, 1], 2),
        (12, 0, True, [12], 13),
    ],
)
def test_a_page_says_where_the_next_one_begins(
    since: int, limit: int, earlier: bool, numbers: list[int], following: int | None
) -> None:
    """What only an earlier run has is asked there."""
    part = EarlierPart(messages=10, steps=4, run_id="r") if earlier else None
    page = _page("messages", read_numbers, 10 if earlier else 0, 5 if earlier else 15, part, since, limit)
    assert [int(each["text"]) for each in page["messages"]] == numbers
    assert (page["next"], page["total"], "earlier" in page) == (following, 15, earlier and since < 10)


def test_an_earlier_part_of_another_workflow_is_named_whole() -> None:
    own = EarlierPart(messages=1, steps=1, run_id="r")
    other = EarlierPart(messages=1, steps=1, run_id="r", workflow_id="w", conversation="2")
    assert (own.place, other.place) == ({"run_id": "r"}, {"run_id": "r", "id": "w", "conversation": "2"})


def test_the_models_that_have_failed_are_those_of_the_newest_step() -> None:
    log = EventLog(lambda: 1.5)
    error = ErrorInfo(kind="ModelUnavailableError", message="down")
    log.step_started(1, "m")
    log.model_fallback("n", error)
    log.model_fallback("o", error)
    assert (log.fallbacks, log.entries[0].at) == (2, 1_500)
    log.answered([])
    log.step_started(2, "m")
    assert log.fallbacks == 0
    assert log.entries[0].data is log.entries[-1].data  # one object for all steps of a model
    log.run_ended(1, "failed")
    assert log.writing is None


class History:
    """What the SDK says of the run's history."""

    def __init__(self) -> None:
        self.size, self.events, self.suggested = 0, 0, False

    def get_current_history_size(self) -> int:
        return self.size

    def get_current_history_length(self) -> int:
        return self.events

    def is_continue_as_new_suggested(self) -> bool:
        return self.suggested


MB = 1024 * 1024


@pytest.mark.parametrize(
    ("start", "size", "events", "suggested", "is_due"),
    [
        (0, 1, 3_999, False, False),
        (0, 1, 4_000, False, True),
        (0, 4 * MB - 1, 1, False, False),
        (0, 4 * MB, 1, False, True),
        (2 * MB, 6 * MB - 1, 1, False, False),  # only what has come since counts
        (2 * MB, 6 * MB, 1, False, True),
        (0, 1, 1, True, True),
        (MB, 2 * MB - 1, 1, True, False),
        (MB, 2 * MB, 1, True, True),
    ],
)
def test_a_run_continues_as_new_by_how_much_its_history_has_grown(
    start: int, size: int, events: int, suggested: bool, is_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    monkeypatch.setattr(workflow, "info", lambda: cast(workflow.Info, history))
    history.size = start
    policy = ContinueAsNewPolicy(is_carried=start > 0)
    history.size, history.events, history.suggested = size, events, suggested
    assert (policy.is_due(), policy.is_due_while_waiting()) == (is_due, is_due)
    if not is_due:
        return
    policy.postpone()
    assert (policy.is_due(), policy.is_due_while_waiting()) == (False, True)
    history.size += limits.CONTINUE_AS_NEW_RETRY_BYTES - 1
    assert not policy.is_due()
    history.size += 1
    assert policy.is_due()


@pytest.mark.parametrize("fits", [True, False])
def test_a_state_that_was_too_large_while_waiting_is_tried_again_later(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    monkeypatch.setattr(workflow, "info", lambda: cast(workflow.Info, history))
    monkeypatch.setattr(workflow, "patched", lambda _: True)
    monkeypatch.setattr(workflow.unsafe, "is_replaying", lambda: False)
    policy = ContinueAsNewPolicy(is_carried=False)
    history.events = 4_000
    assert policy.may_continue_while_waiting(lambda: fits) is fits
    assert (policy.is_due_while_waiting(), policy.is_due()) == (fits, True)
    history.size += limits.CONTINUE_AS_NEW_RETRY_BYTES
    assert policy.is_due_while_waiting()


def test_a_state_is_what_carry_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"conversation": {}, "text": "é" * 1_000}
    encoded = encode_state(state)
    assert (decode_state(encoded), size_to_carry(encoded)) == (state, len(encoded))
    for wrong in (b"", b"{}", encode_state({"messages": []}), encoded[:-5], encode_state([])):  # type: ignore[arg-type]
        with pytest.raises(InvalidStateError):
            decode_state(wrong)
    monkeypatch.setattr(limits, "STATE_BYTES", 1_000)
    assert size_to_carry(encoded) > 10**9
    with pytest.raises(InvalidStateError):
        decode_state(encoded)
