"""The conversation and a worker's cache of it: digests agree, pages are complete, and what differs is a cache miss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import AssistantMessage, ErrorInfo, Message, Repair, Step, ToolCall, ToolMessage, Usage, UserMessage
from mulligan.activities.models.scripted import Scripted
from mulligan.activities.run_data.conversation_cache import CachedConversation, ConversationCache
from mulligan.values import StepCompaction
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.tool_call import tool_message
from mulligan.workflows.conversation.conversation import Conversation

PROVIDER = Scripted({})
KEY = ("run", "0")


def answer_with_calls(*ids: str, raw: str = '{"a": 1}') -> AssistantMessage:
    calls = [ToolCall(id=each, name="look", arguments=raw) for each in ids]
    return AssistantMessage(role="assistant", text="so", tool_calls=calls)


def result(call_id: str, text: str = "x" * 200) -> ToolMessage:
    return ToolMessage(role="tool", call_id=call_id, name="look", text=text)


def build_conversation(steps: int = 3, size: int = 200) -> Conversation:
    """A prompt, then steps of two calls each, of which the first is invalid."""
    conversation = Conversation()
    conversation.append(UserMessage(role="user", text="Go."))
    for n in range(steps):
        ids = [f"{n}a", f"{n}b"]
        wrong = PreparedCall(text="no", error=ErrorInfo(kind="invalid_arguments", message="no"))
        right = PreparedCall(arguments={"a": n}, repairs=[Repair(by="fix", before=1, after={"a": n})])
        conversation.begin_step(answer_with_calls(*ids), [wrong, right], Usage(input_tokens=n), "m")
        assert wrong.error is not None
        rejection = ToolMessage(role="tool", call_id=ids[0], name="look", text="no", error=wrong.error)
        conversation.end_step([rejection, result(ids[1], "x" * size)])
    return conversation


def test_a_step_shows_its_calls_repairs_and_results() -> None:
    [step, *_] = build_conversation().step_page(1, 10, 1_000_000)
    assert (step.step, step.text, step.usage.input_tokens) == (2, "so", 1)
    wrong, right = step.tool_calls
    assert (wrong.arguments, wrong.raw_arguments, right.arguments) == (None, '{"a": 1}', {"a": 1})
    assert [repair.by for repair in right.repairs] == ["fix"]
    assert wrong.result is not None
    assert wrong.result.error is not None
    assert (wrong.result.error.kind, right.result and right.result.error) == ("invalid_arguments", None)


def test_a_running_step_shows_the_results_that_it_has_so_far() -> None:
    """Results are added to the messages in the order of the calls, but the step shows each as soon as it is there."""
    conversation = Conversation()
    conversation.begin_step(answer_with_calls("1", "2"), [PreparedCall(arguments={"a": 1})] * 2, Usage(), "m")
    conversation.record_early_result(1, result("2", "fast"))
    [step] = conversation.step_page(0, 1, 1_000)
    assert [call.result and call.result.text for call in step.tool_calls] == [None, "fast"]
    assert step.tool_calls[0].arguments == {"a": 1}
    assert len(conversation.messages) == 1


@pytest.mark.parametrize("max_bytes", [1, 700, 3_000, 10**9])
def test_pages_stay_within_their_bytes_and_together_are_complete(max_bytes: int) -> None:
    conversation = build_conversation(10)
    messages: list[Message] = []
    steps: list[Step] = []
    while len(messages) < len(conversation.messages):
        page = conversation.page(len(messages), 4, max_bytes)
        assert page
        assert len(page) == 1 or sum(len(message.model_dump_json()) for message in page) <= max_bytes
        messages += page
    assert messages == conversation.messages
    while len(steps) < len(conversation.steps):
        steps += conversation.step_page(len(steps), 4, max_bytes)
    assert [step.step for step in steps] == list(range(1, 11))
    assert conversation.page(len(messages), 4, max_bytes) == []


def test_a_step_larger_than_a_page_is_shortened() -> None:
    [step] = build_conversation(1, size=1_000_000).step_page(0, 1, 100_000)
    assert len(step.model_dump_json()) < 100_000
    assert step.tool_calls[1].result is not None
    assert "more characters: query `messages`)" in step.tool_calls[1].result.text


@pytest.mark.parametrize(("chars", "is_whole"), [(998, True), (999, False)])
def test_a_text_of_a_step_larger_than_a_page_is_whole_if_it_fits_its_share(chars: int, is_whole: bool) -> None:
    """The step and each of its calls may have eight texts: with one call, each may take a sixteenth, with its quotes."""
    conversation = Conversation()
    arguments = [PreparedCall(arguments={"a": "x" * 50_000})]
    conversation.begin_step(answer_with_calls("1"), arguments, Usage(), "m")
    conversation.end_step([result("1", "y" * chars)])
    [step] = conversation.step_page(0, 1, 16_000)
    [call] = step.tool_calls
    assert call.result is not None
    assert (call.result.text == "y" * chars) is is_whole


def test_a_carried_conversation_is_complete() -> None:
    conversation = build_conversation(5)
    loaded = Conversation.load(conversation.dump())
    assert (loaded.messages, loaded.ref(), loaded.count_at_answer) == (
        conversation.messages,
        conversation.ref(),
        conversation.count_at_answer,
    )
    assert loaded.step_page(0, 99, 10**9) == conversation.step_page(0, 99, 10**9)


@pytest.mark.parametrize("error", [None, ErrorInfo(kind="refused", message="no")])
def test_a_compaction_that_no_step_shows_yet_is_carried_over(error: ErrorInfo | None) -> None:
    """The run may continue as new after a compaction, before the model has answered."""
    conversation = build_conversation()
    compaction = StepCompaction(messages=3, text="So far.", usage=Usage(input_tokens=7), error=error)
    conversation.pending_compaction = compaction
    loaded = Conversation.load(json.loads(json.dumps(conversation.dump("run"))))
    assert loaded.pending_compaction == compaction
    step = loaded.begin_step(answer_with_calls("a"), [PreparedCall(arguments={})], Usage(), "m")
    assert step.compaction == compaction
    assert loaded.pending_compaction is None


def test_a_worker_continues_from_its_cached_prefix_and_results() -> None:
    """Cache and workflow compute the same digests. Long results are sent as references to the cache of the tool's worker."""
    conversation, cache = build_conversation(2), ConversationCache(10**9)
    prefix = CachedConversation(PROVIDER)
    prefix.extend(conversation.messages[: conversation.count_at_answer])
    assert prefix.ref == conversation.ref(conversation.count_at_answer)
    cache.put(KEY, prefix)
    cache.put_result(KEY, result("1b"))
    new = conversation.new_since(conversation.count_at_answer, 10_000)
    assert new is not None
    assert [message.role for message in new] == ["tool", "cached_result"]
    cached, _ = cache.take(KEY, PROVIDER, conversation.ref(), conversation.count_at_answer)
    cached.extend(cache.resolve(KEY, new))
    assert cached.ref == conversation.ref()
    assert cached.call_ids == {"0a", "0b", "1a", "1b"}


def test_a_prefix_that_differs_is_a_cache_miss() -> None:
    conversation, other = build_conversation(2), build_conversation(2, size=201)
    for key, ref, miss in [(KEY, other.ref(), "mismatch"), (("run", "1"), conversation.ref(), "absent")]:
        cache = ConversationCache(10**9)
        prefix = CachedConversation(PROVIDER)
        prefix.extend(conversation.messages)
        cache.put(KEY, prefix)
        assert cache.take(key, PROVIDER, ref) == (CachedConversation(PROVIDER), miss)
    assert (
        ConversationCache(10**9).resolve(KEY, conversation.new_since(conversation.count_at_answer, 10_000) or [])
        == conversation.messages[conversation.count_at_answer :][:1]
    )


def test_a_retried_attempt_truncates_the_cached_prefix() -> None:
    """An attempt whose completion was lost added messages to the cache, which the next attempt removes."""
    conversation, cache = build_conversation(3), ConversationCache(10**9)
    prefix = CachedConversation(PROVIDER)
    prefix.extend(conversation.messages)
    size = prefix.size
    prefix.extend([answer_with_calls("9")])
    cache.put(KEY, prefix)
    cached, _ = cache.take(KEY, PROVIDER, conversation.ref())
    assert (cached.ref, cached.size, "9" in cached.call_ids, len(cached.items)) == (conversation.ref(), size, False, 10)


def test_worker_and_workflow_build_the_same_result_message() -> None:
    call = ToolCall(id="1", name="look", arguments="{}")
    assert tool_message(call, "x" * 200, None) == result("1")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=50), max_size=12), st.integers(1, 5), st.integers(0, 300), st.integers(0, 15))
def test_a_page_has_as_many_messages_as_fit(texts: list[str], count: int, max_bytes: int, since: int) -> None:
    """In order, at most `count`, and as many as the bytes allow, but one even if it is too large."""
    conversation = Conversation()
    for text in texts:
        conversation.append(UserMessage(role="user", text=text))
    page = conversation.page(since, count, max_bytes)
    rest = conversation.messages[since : since + count]
    assert page == rest[: len(page)]
    assert bool(page) is bool(rest)
    sizes = [len(message.model_dump_json().encode()) for message in rest]
    assert len(page) <= 1 or sum(sizes[: len(page)]) <= max_bytes
    assert len(page) == len(rest) or sum(sizes[: len(page) + 1]) > max_bytes


def test_each_digest_depends_on_all_messages_before_it() -> None:
    """A reference to the first messages does not change when others follow."""
    conversation = build_conversation(2)
    refs = [conversation.ref(count) for count in range(len(conversation.messages) + 1)]
    assert len({ref.digest for ref in refs}) == len(refs)
    assert (refs[0].digest, refs[-1]) == ("", conversation.ref())
    conversation.append(UserMessage(role="user", text="More."))
    assert [conversation.ref(ref.count) for ref in refs] == refs
    other = Conversation()
    for message in [UserMessage(role="user", text="Stop."), *conversation.messages[1:]]:
        other.append(message)
    assert not {ref.digest for ref in refs[1:]} & {other.ref(ref.count).digest for ref in refs[1:]}


def test_new_messages_are_inline_only_up_to_a_size() -> None:
    """References do not count, however large their results are."""
    conversation = build_conversation(1, size=10_000)
    assert conversation.size(0) > 10_000
    assert conversation.new_since(conversation.count_at_answer, 1_000) is not None
    assert conversation.new_since(0, 100) is None
    assert conversation.new_since(len(conversation.messages), 0) is None


@pytest.mark.parametrize("carry", [False, True])
def test_a_rejected_answer_is_shown_in_its_step(carry: bool) -> None:
    conversation = Conversation()
    record = conversation.begin_step(AssistantMessage(role="assistant", text="so"), [], Usage(output_tokens=3), "m")
    record.error = ErrorInfo(kind="missing_output", message="no")
    if carry:
        conversation = Conversation.load(json.loads(json.dumps(conversation.dump())))
    [step] = conversation.step_page(0, 9, 10**6)
    assert (step.error, step.usage, step.tool_calls) == (record.error, Usage(output_tokens=3), [])


def test_early_results_are_shown_in_their_own_step_only() -> None:
    """A result that is shown early is not shown again for a call of the next step."""
    conversation = build_conversation(1)
    conversation.steps[0].calls[1].attempts = 3
    conversation.begin_step(answer_with_calls("9"), [PreparedCall(arguments={"a": 1})], Usage(), "m")
    conversation.record_early_result(0, result("9", "fast"))
    first, second = conversation.step_page(0, 9, 10**6)
    assert [call.attempts for call in first.tool_calls] == [0, 3]
    assert [call.result and call.result.text for call in second.tool_calls] == ["fast"]
    conversation.end_step([result("9", "fast")])
    conversation.begin_step(answer_with_calls("10"), [PreparedCall(arguments={"a": 1})], Usage(), "m")
    assert conversation.step_page(2, 1, 10**6)[0].tool_calls[0].result is None


@pytest.mark.parametrize(
    ("raw", "repaired"),
    [(json.dumps({"items": ["x" * 100] * 20_000}), None), (json.dumps({"n": [1] * 500_000}), None), ("{}", {"a": "x" * 10**6})],
    ids=["texts", "numbers", "a fixer's"],
)  # fmt: skip
def test_a_step_of_any_shape_is_shortened(raw: str, repaired: Any) -> None:
    conversation = Conversation()
    repairs = [Repair(by="fix", before={}, after=repaired)] if repaired else []
    conversation.begin_step(
        answer_with_calls("1", raw=raw),
        [PreparedCall(arguments=repaired or json.loads(raw), repairs=repairs)],
        Usage(),
        "m",
    )
    [step] = conversation.step_page(0, 1, 100_000)
    assert len(step.model_dump_json()) <= 100_000
