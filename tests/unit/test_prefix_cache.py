"""What a worker remembers of conversations: checked by random use against a plain model of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from activities.prefix_cache import _PER_BYTE, Prefix, PrefixCache
from activities.providers.openai_chat import OpenAIChat
from activities.providers.scripted import Scripted
from mulligan import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from mulligan.handoff import Held, Ref, chain

ONE: Any = Scripted({})
OTHER: Any = OpenAIChat()
Key = tuple[str, str]
KEY: Key = ("run", "0")
MUCH = 10**9


def said(text: str) -> UserMessage:
    return UserMessage(role="user", text=text)


def asks(call_id: str) -> AssistantMessage:
    return AssistantMessage(role="assistant", tool_calls=[ToolCall(id=call_id, name="look", arguments="{}")])


def result(call_id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(role="tool", call_id=call_id, name="look", text=text)


def prefix(*messages: Message, provider: Any = ONE) -> Prefix:
    made = Prefix(provider)
    made.extend(messages)
    return made


def bytes_of(*messages: Message) -> int:
    return sum(len(message.model_dump_json().encode()) for message in messages)


def test_a_prefix_is_its_messages() -> None:
    """Digest, items and size go with them; what is cut back is gone from each, and can be said anew."""
    first, second, third = said("Go – é."), asks("c1"), result("c1")
    made, short = prefix(first, second, third), prefix(first)
    assert made.ref == Ref(count=3, digest=made.digests[-1])
    assert (made.digests[0], len(set(made.digests)), made.digests[1]) == ("", 4, short.ref.digest)
    assert (made.size, len(made.items), made.call_ids) == (bytes_of(first, second, third), 3, {"c1"})
    made.cut_back(1)
    assert made == short
    made.cut_back(5)
    assert made == short
    made.extend([second, third])
    assert made == prefix(first, second, third)


def test_the_same_messages_in_another_order_are_another_conversation() -> None:
    assert prefix(said("a"), said("b")).ref != prefix(said("b"), said("a")).ref
    assert chain("", said("a"))[0] != chain("x", said("a"))[0]


@pytest.mark.parametrize(
    ("held", "asked", "found"),
    [
        (prefix(said("a"), said("b")), [prefix(said("a"), said("b")).ref], 2),
        (prefix(said("a"), said("b")), [prefix(said("a")).ref], 1),
        (prefix(said("a"), said("b")), [Ref(count=0, digest="")], 0),
        (prefix(said("a"), said("b")), [prefix(said("a"), said("b"), said("c")).ref, prefix(said("a")).ref], 1),
        (prefix(said("a"), said("b")), [prefix(said("a")).ref, prefix(said("a"), said("b")).ref], 1),
        (prefix(said("a"), said("b")), [prefix(said("a"), said("c")).ref], None),
        (prefix(said("a"), said("b")), [Ref(count=2, digest="")], None),
        (prefix(said("a"), said("b")), [], None),
        (prefix(said("a"), provider=OTHER), [prefix(said("a")).ref], None),
    ],
    ids=["whole", "shorter", "nothing of it", "the second of two", "the first of two", "a fork", "digest", "none", "provider"],
)  # fmt: skip
def test_take(held: Prefix, asked: list[Ref], found: int | None) -> None:
    """What fits is cut back to what was asked for. Hit or miss, it is out of the cache then, and its bytes with it."""
    cache, expected = PrefixCache(MUCH), prefix(*held.messages[:found])
    cache.put(KEY, held)
    assert cache.take(("run", "1"), ONE, *asked) is None
    assert cache.take(("other", "0"), ONE, *asked) is None
    assert cache.size == bytes_of(*held.messages) * _PER_BYTE
    assert cache.take(KEY, ONE, *asked) == (None if found is None else expected)
    assert cache.size == 0
    assert cache.take(KEY, ONE, *asked) is None


def test_the_one_not_used_for_the_longest_time_goes() -> None:
    one = bytes_of(said("a")) * _PER_BYTE
    cache, ref = PrefixCache(3 * one), prefix(said("a")).ref
    for name in "abc":
        cache.put((name, "0"), prefix(said("a")))
    used = cache.take(("a", "0"), ONE, ref)
    assert used is not None
    cache.put(("a", "0"), used)
    cache.put(("d", "0"), prefix(said("a")))
    assert cache.size == 3 * one
    assert [name for name in "abcd" if cache.take((name, "0"), ONE, ref)] == ["a", "c", "d"]


@pytest.mark.parametrize("bound", [0, 1])
def test_without_room_nothing_is_kept(bound: int) -> None:
    cache = PrefixCache(bound)
    cache.put(KEY, prefix(said("a")))
    cache.hold(KEY, result("c1"))
    assert cache.size == 0
    assert cache.take(KEY, ONE, prefix(said("a")).ref) is None
    assert cache.resolve(KEY, [Held(role="held", call_id="c1")]) == []


def test_results_are_handed_over_once() -> None:
    """To their own conversation, in the place of their reference, up to the first that is not here."""
    cache = PrefixCache(MUCH)
    for call_id in ("c1", "c3"):
        cache.hold(KEY, result(call_id, f"of {call_id}"))
    new: list[Any] = [said("a"), *(Held(role="held", call_id=call_id) for call_id in ("c1", "c2", "c3")), said("b")]
    assert cache.resolve(("run", "1"), new) == [said("a")]
    assert cache.resolve(KEY, new) == [said("a"), result("c1", "of c1")]
    assert cache.resolve(KEY, new) == [said("a")]
    assert cache.resolve(KEY, new[3:]) == [result("c3", "of c3"), said("b")]
    assert cache.size == 0


def test_a_result_that_is_made_again_is_counted_once() -> None:
    """As after an attempt whose completion was lost."""
    cache = PrefixCache(MUCH)
    for text in ("the first, which is longer", "second"):
        cache.hold(KEY, result("c1", text))
    assert cache.resolve(KEY, [Held(role="held", call_id="c1")]) == [result("c1", "second")]
    assert cache.size == 0


class Use(RuleBasedStateMachine):
    """Random use. The model is two lists, the newest last; a result's id is its own, as in a run."""

    BOUND = 2_000

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(self.BOUND)
        self.kept: list[tuple[Key, list[Message]]] = []
        self.held: list[tuple[Key, ToolMessage]] = []
        self.count = 0

    def size(self) -> int:
        conversations = sum(bytes_of(*messages) * _PER_BYTE for _, messages in self.kept)
        return conversations + sum(len(message.text) for _, message in self.held)

    KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("01"))
    TEXTS = st.lists(st.sampled_from(["x", "é", "y" * 100]), max_size=4)

    @rule(key=KEYS, texts=TEXTS)
    def put(self, key: Key, texts: list[str]) -> None:
        messages: list[Message] = [said(text) for text in texts]
        self.cache.put(key, prefix(*messages))
        self.kept = [*(each for each in self.kept if each[0] != key), (key, messages)]
        while self.size() > self.BOUND and self.kept:
            self.kept.pop(0)

    @rule(key=KEYS, texts=TEXTS, provider=st.sampled_from([ONE, ONE, OTHER]))
    def take(self, key: Key, texts: list[str], provider: Any) -> None:
        asked = prefix(*map(said, texts))
        found = self.cache.take(key, provider, asked.ref)
        known = [messages for each, messages in self.kept if each == key]
        self.kept = [each for each in self.kept if each[0] != key]
        hits = bool(known) and provider is ONE and known[0][: len(texts)] == asked.messages
        assert found == (asked if hits else None)

    @rule(key=KEYS, size=st.integers(0, 600))
    def hold(self, key: Key, size: int) -> None:
        self.count += 1
        message = result(str(self.count), "x" * size)
        self.cache.hold(key, message)
        self.held.append((key, message))
        while self.size() > self.BOUND and self.held:
            self.held.pop(0)

    @rule(key=KEYS, back=st.integers(0, 5))
    def resolve(self, key: Key, back: int) -> None:
        call_id = str(self.count - back)
        known = [message for each, message in self.held if (each, message.call_id) == (key, call_id)]
        assert self.cache.resolve(key, [Held(role="held", call_id=call_id)]) == known
        self.held = [each for each in self.held if (each[0], each[1].call_id) != (key, call_id)]

    @invariant()
    def counts(self) -> None:
        assert self.cache.size == self.size() <= self.BOUND


Use.TestCase.settings = settings(derandomize=True, deadline=None, max_examples=100, stateful_step_count=30)
TestUse = Use.TestCase
