"""The cache of conversations, checked by random use against a simple model of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mulligan import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.scripted import Scripted
from mulligan.activities.run_data.conversation_cache import CachedConversation, ConversationCache
from mulligan.wire.conversation_ref import CachedResult, ConversationRef, chain_digest
from tests.support.examples import examples

ONE: Any = Scripted({})
OTHER: Any = OpenAIChat()
Key = tuple[str, str]
KEY: Key = ("run", "0")
MUCH = 10**9


def user_message(text: str) -> UserMessage:
    return UserMessage(role="user", text=text)


def assistant_with_call(call_id: str) -> AssistantMessage:
    return AssistantMessage(role="assistant", tool_calls=[ToolCall(id=call_id, name="look", arguments="{}")])


def result(call_id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(role="tool", call_id=call_id, name="look", text=text)


def prefix(*messages: Message, provider: Any = ONE) -> CachedConversation:
    made = CachedConversation(provider)
    made.extend(messages)
    return made


def size_of(what: CachedConversation | ToolMessage) -> int:
    """Its size in a cache without other entries."""
    cache = ConversationCache(MUCH)
    cache.put(KEY, what) if isinstance(what, CachedConversation) else cache.put_result(KEY, what)
    return cache.size


def has(cache: ConversationCache, key: Key, text: str = "a") -> bool:
    """Whether the cache has the conversation of that message."""
    found, _ = cache.take(key, ONE, prefix(user_message(text)).ref)
    cache.put(key, found)
    return bool(found.messages)


def test_digests_items_and_size_of_a_conversation_follow_its_messages() -> None:
    """After cutting back, other messages can be added."""
    first, second, third = user_message("Go – é."), assistant_with_call("c1"), result("c1")
    made, short = prefix(first, second, third), prefix(first)
    assert made.ref == ConversationRef(count=3, digest=made.digests[-1])
    assert (made.digests[0], len(set(made.digests)), made.digests[1]) == ("", 4, short.ref.digest)
    assert (made.size, len(made.items), made.call_ids) == (sum(made.sizes), 3, {"c1"})
    made.cut_back(1)
    assert made == short
    made.cut_back(5)
    assert made == short
    assert made.extend([second, third]) == sum(len(each.model_dump_json().encode()) for each in (second, third))
    assert made == prefix(first, second, third)


def test_cutting_back_keeps_call_ids_that_are_still_used() -> None:
    made = prefix(assistant_with_call("c1"), result("c1"), assistant_with_call("c1"))
    made.cut_back(2)
    assert made.call_ids == {"c1"}


def test_a_cached_conversation_is_encoded_again_for_another_provider() -> None:
    """A turn may name another model: the messages are in the cache, and are not fetched again."""
    cache = ConversationCache(MUCH)
    messages: list[Message] = [user_message("a"), assistant_with_call("c1"), result("c1")]
    cache.put(KEY, prefix(*messages))
    assert cache.take(KEY, OTHER, prefix(*messages).ref) == (prefix(*messages, provider=OTHER), None)


def test_messages_in_another_order_have_another_digest() -> None:
    assert prefix(user_message("a"), user_message("b")).ref != prefix(user_message("b"), user_message("a")).ref
    assert chain_digest("", user_message("a"))[0] != chain_digest("x", user_message("a"))[0]


AB = prefix(user_message("a"), user_message("b"))


@pytest.mark.parametrize(
    ("whole", "known", "found"),
    [
        (AB.ref, None, 2),
        (prefix(user_message("a")).ref, None, 1),
        (prefix(user_message("a")).ref, 2, 1),
        (ConversationRef(count=0, digest=""), None, None),
        (prefix(user_message("a"), user_message("b"), user_message("c")).ref, 1, 1),
        (prefix(user_message("a"), user_message("b"), user_message("c")).ref, 2, 2),
        (prefix(user_message("a"), user_message("b"), user_message("c")).ref, 3, None),
        (prefix(user_message("a"), user_message("b"), user_message("c")).ref, None, None),
        (prefix(user_message("a"), user_message("c")).ref, None, None),
        (prefix(user_message("a"), user_message("c")).ref, 1, 1),
        (ConversationRef(count=2, digest=""), None, None),
    ],
    ids=[
        "whole", "shorter", "shorter than known", "nothing of it", "what is known", "all that is known", "too short",
        "unknown", "a fork", "before a fork", "digest",
    ],
)  # fmt: skip
def test_take_returns_the_conversation_cut_back_to_the_reference_and_removes_it(
    whole: ConversationRef, known: int | None, found: int | None
) -> None:
    """Also after a miss."""
    cache = ConversationCache(MUCH)
    cache.put(KEY, prefix(*AB.messages))
    for other in (("run", "1"), ("other", "0")):
        assert cache.take(other, ONE, whole, known) == (prefix(), "absent")
    expected = (prefix(), "mismatch") if found is None else (prefix(*AB.messages[:found]), None)
    assert cache.take(KEY, ONE, whole, known) == expected
    assert cache.take(KEY, ONE, whole, known) == (prefix(), "absent")


def test_the_least_recently_used_entry_is_evicted() -> None:
    """Conversations and results alike."""
    text = "a" * 500  # a conversation is larger than a result: one that is evicted makes room for it
    assert size_of(prefix(user_message(text))) > size_of(result("c1"))
    cache = ConversationCache(2 * size_of(prefix(user_message(text))) + 2 * size_of(result("c1")))
    cache.put(("a", "0"), prefix(user_message(text)))
    cache.put_result(KEY, result("c1"))
    cache.put(("b", "0"), prefix(user_message(text)))
    cache.put_result(KEY, result("c2"))
    used, _ = cache.take(("a", "0"), ONE, prefix(user_message(text)).ref)
    cache.put(("a", "0"), used)
    cache.put_result(KEY, result("c3"))
    cache.put_result(KEY, result("c4"))
    held = [CachedResult(role="cached_result", call_id=f"c{n}") for n in (1, 2, 3, 4)]
    assert [len(cache.resolve(KEY, [each])) for each in held] == [0, 1, 1, 1]
    assert has(cache, ("a", "0"), text)
    assert not has(cache, ("b", "0"), text)


def test_an_entry_larger_than_the_cache_evicts_nothing() -> None:
    cache = ConversationCache(size_of(prefix(user_message("a"))) + size_of(result("c1")))
    cache.put(KEY, prefix(user_message("a")))
    cache.put_result(KEY, result("c1"))
    cache.put(("large", "0"), prefix(user_message("a" * 10_000)))
    cache.put_result(("large", "0"), result("c1", "a" * 10_000))
    assert has(cache, KEY)
    assert len(cache.resolve(KEY, [CachedResult(role="cached_result", call_id="c1")])) == 1


def test_a_conversation_in_use_counts_towards_the_size() -> None:
    """It cannot be evicted, so others are. Its growth counts when it is put back, at the latest."""
    cache = ConversationCache(size_of(prefix(user_message("a"), user_message("b"))) + 10)
    cache.put(KEY, prefix(user_message("a"), user_message("b")))
    used, _ = cache.take(KEY, ONE, prefix(user_message("a"), user_message("b")).ref)
    assert cache.size == size_of(used)
    cache.put(("other", "0"), prefix(user_message("a")))
    assert not has(cache, ("other", "0"))
    cache.put(KEY, used)
    assert cache.size == size_of(used)
    assert has(cache, KEY)


def test_an_empty_conversation_does_not_replace_a_cached_one() -> None:
    """As after a model call that could not query the workflow, while another attempt has cached the conversation."""
    cache = ConversationCache(MUCH)
    empty, _ = cache.take(KEY, ONE, AB.ref)
    cache.put(KEY, prefix(user_message("a")))
    cache.put(KEY, empty)
    assert has(cache, KEY)


@pytest.mark.parametrize("bound", [0, 1])
def test_a_cache_of_size_zero_keeps_nothing(bound: int) -> None:
    cache = ConversationCache(bound)
    cache.put(KEY, prefix(user_message("a")))
    cache.put_result(KEY, result("c1"))
    assert cache.size == 0
    assert cache.take(KEY, ONE, prefix(user_message("a")).ref) == (prefix(), "absent")
    assert cache.resolve(KEY, [CachedResult(role="cached_result", call_id="c1")]) == []


def test_a_cached_result_replaces_its_reference_once() -> None:
    """Up to the first missing one. A result that was sent inline is removed from the cache."""
    cache = ConversationCache(MUCH)
    for call_id in ("c1", "c3"):
        cache.put_result(KEY, result(call_id, f"of {call_id}"))
    new: list[Any] = [
        user_message("a"),
        *(CachedResult(role="cached_result", call_id=call_id) for call_id in ("c1", "c2", "c3")),
        user_message("b"),
    ]
    assert cache.resolve(("run", "1"), new) == [user_message("a")]
    assert cache.resolve(KEY, new) == [user_message("a"), result("c1", "of c1")]
    assert cache.resolve(KEY, new) == [user_message("a")]
    assert cache.resolve(KEY, new[3:]) == [result("c3", "of c3"), user_message("b")]
    cache.put_result(KEY, result("c1"))
    assert cache.resolve(KEY, [result("c1")]) == [result("c1")]
    assert cache.size == 0


def test_a_result_cached_twice_is_counted_once() -> None:
    """As after an attempt whose completion was lost."""
    cache = ConversationCache(MUCH)
    for text in ("the first, which is longer", "second"):
        cache.put_result(KEY, result("c1", text))
    assert cache.resolve(KEY, [CachedResult(role="cached_result", call_id="c1")]) == [result("c1", "second")]
    assert cache.size == 0


class Use(RuleBasedStateMachine):
    """Random use as by model calls and tools of several runs: the cache returns the requested data or nothing."""

    BOUND = 12_000
    KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("01"))
    TEXTS = st.lists(st.sampled_from(["x", "é", "y" * 100, "😀" * 50]), max_size=4)
    CALLS = st.sampled_from(["c1", "c2", "c3"])

    def __init__(self) -> None:
        super().__init__()
        self.told = 0
        self.cache = ConversationCache(self.BOUND, self._tell)
        self.kept: list[tuple[Key, str | None, Any]] = []
        """The model: entries in the order of their last use; the key of a conversation has no call id."""
        self.in_use: list[tuple[Key, CachedConversation]] = []

    def _tell(self, change: int) -> None:
        self.told += change

    def size(self) -> int:
        """The size, counted again over all entries."""
        return sum(size_of(each) for *_, each in self.kept) + self.size_in_use()

    def size_in_use(self) -> int:
        return sum(size_of(used) if used.messages else EMPTY for _, used in self.in_use)

    def keep(self, key: Key, call_id: str | None, what: Any) -> None:
        self.forget(key, call_id)
        if size_of(what) <= self.BOUND:
            self.kept.append((key, call_id, what))

    def settle(self) -> None:
        while self.kept and self.size() > self.BOUND:
            self.kept.pop(0)
        assert self.told == self.cache.size <= max(self.BOUND, self.size_in_use())

    def forget(self, key: Key, call_id: str | None) -> Any:
        found = [each for *at, each in self.kept if at == [key, call_id]]
        self.kept = [entry for entry in self.kept if entry[:2] != (key, call_id)]
        return found[0] if found else None

    @rule(key=KEYS, texts=TEXTS, longer=TEXTS, provider=st.sampled_from([ONE, ONE, OTHER]))
    def take(self, key: Key, texts: list[str], longer: list[str], provider: Any) -> None:
        whole = prefix(*map(user_message, texts + longer), provider=provider)
        found, miss = self.cache.take(key, provider, whole.ref, len(texts))
        known = self.forget(key, None)
        messages = known.messages if known else []
        is_whole = messages[: len(whole.messages)] == whole.messages
        fits = messages[: len(whole.messages) if is_whole else len(texts)] if len(messages) >= len(texts) else []
        assert found == prefix(*fits, provider=provider)
        assert miss == (None if fits else "mismatch" if known else "absent")
        self.in_use.append((key, found))
        self.settle()

    @rule(texts=TEXTS, which=st.integers(0, 3))
    def extend(self, texts: list[str], which: int) -> None:
        for _, used in self.in_use[which : which + 1]:
            used.extend([user_message(text) for text in texts])

    @rule(count=st.integers(0, 5), which=st.integers(0, 3))
    def cut_back(self, count: int, which: int) -> None:
        for _, used in self.in_use[which : which + 1]:
            used.cut_back(count)
            assert used == prefix(*used.messages, provider=used.provider)

    @rule(which=st.integers(0, 3))
    def put(self, which: int) -> None:
        for key, used in self.in_use[which : which + 1]:
            del self.in_use[which]
            self.cache.put(key, used)
            if used.messages:
                self.keep(key, None, used)
            self.settle()

    @rule(key=KEYS, call_id=CALLS, size=st.integers(0, 3000))
    def hold(self, key: Key, call_id: str, size: int) -> None:
        message = result(call_id, "x" * size)
        self.cache.put_result(key, message)
        self.keep(key, call_id, message)
        self.settle()

    @rule(key=KEYS, calls=st.lists(st.tuples(CALLS, st.booleans()), max_size=3))
    def resolve(self, key: Key, calls: list[tuple[str, bool]]) -> None:
        inline = result("inline", "inline")
        new = [
            CachedResult(role="cached_result", call_id=name) if by_ref else result(name, "inline")
            for name, by_ref in calls
        ]
        expected: list[Message] = []
        for name, by_ref in calls:
            known = self.forget(key, name)
            if by_ref and known is None:
                break
            expected.append(known if by_ref else inline.model_copy(update={"call_id": name}))
        assert self.cache.resolve(key, new) == expected
        self.settle()

    @invariant()
    def counts(self) -> None:
        assert self.cache.size == self.size() >= 0


EMPTY = size_of(prefix(user_message("a"))) - prefix(user_message("a")).size
Use.TestCase.settings = settings(derandomize=True, deadline=None, max_examples=examples(50), stateful_step_count=30)
TestUse = Use.TestCase
