"""What a worker remembers of conversations, so that a model call need carry only what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from temporalio import activity

from mulligan.activities.models.protocol import Provider
from mulligan.activities.run_data.memory_size import memory_size
from mulligan.values import AssistantMessage, Message, ToolMessage, UserMessage
from mulligan.wire.conversation_ref import CachedResult, Ref, chain
from mulligan.wire.run_context import RunContext

_PER_MESSAGE = 160
_PER_ENTRY = 1_500
"""Bytes beside the values themselves: a message's digest and places in lists; an entry's keys, lists and set."""

Miss = Literal["absent", "mismatch"]
"""Nothing was held, or something else: another worker's step, a reset, another run of that workflow id."""


@dataclass
class CachedConversation:
    """A conversation up to some message, with the digest of each, and as the provider's own items.

    A message is encoded once, so the request's prefix is the same bytes at each step and the provider's cache works.
    """

    provider: Provider
    messages: list[Message] = field(default_factory=list)
    digests: list[str] = field(default_factory=lambda: [""])
    items: list[list[Any]] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)
    size: int = 0
    """Bytes in memory, of each message and of all."""

    def extend(self, messages: Sequence[Message]) -> int:
        """Add messages at the end; returns their bytes as JSON."""
        json_bytes = 0
        for message in messages:
            digest, length = chain(self.digests[-1], message)
            json_bytes += length
            self.messages.append(message)
            self.digests.append(digest)
            self.call_ids |= _calls(message)
            self._encode(message)
        return json_bytes

    def cut_back(self, count: int) -> None:
        """Forget all after the first `count`: an attempt before this one may have got further."""
        if count < len(self.messages):
            self.size -= sum(self.sizes[count:])
            del self.messages[count:], self.digests[count + 1 :], self.items[count:], self.sizes[count:]
            self.call_ids = set().union(*map(_calls, self.messages))

    def encode_for(self, provider: Provider) -> None:
        """Make the items those of a provider: a turn may name another model than the one before."""
        if self.provider is not provider:
            self.provider, self.items, self.sizes, self.size = provider, [], [], 0
            for message in self.messages:
                self._encode(message)

    def open_calls(self) -> list[CachedResult]:
        """The results that come next, by their calls' ids."""
        said = self.messages[-1] if self.messages else None
        calls = said.tool_calls if isinstance(said, AssistantMessage) else []
        return [CachedResult(role="held", call_id=call.id) for call in calls]

    @property
    def ref(self) -> Ref:
        """Its length and digest."""
        return Ref(count=len(self.messages), digest=self.digests[-1])

    def _encode(self, message: Message) -> None:
        self.items.append(self.provider.encode(message))
        self.sizes.append(memory_size(message, self.items[-1]) + _PER_MESSAGE)
        self.size += self.sizes[-1]


def _calls(message: Message) -> set[str]:
    return {call.id for call in message.tool_calls} if isinstance(message, AssistantMessage) else set()


Key = tuple[str, str]
"""Workflow id and conversation. The run's id is no part of it, so that it stays the same after continue-as-new."""


def conversation_key(context: RunContext) -> Key:
    """The key of a conversation of the workflow that the current activity belongs to."""
    return activity.info().workflow_id or "", context.conversation


class ConversationCache:
    """The conversations, and the results made here for them, that were used last: within a bound in bytes of memory.

    What a model call has taken out counts as well, but cannot be let go of: where that alone is more than the bound,
    nothing else is kept. What it grows by meanwhile counts from the next use of the cache on.
    """

    def __init__(self, max_bytes: int, changed: Callable[[int], None] = lambda _: None) -> None:
        self._max_bytes = max_bytes
        self._changed = changed
        self._entries: OrderedDict[tuple[Key, str | None], tuple[CachedConversation | ToolMessage, int]] = OrderedDict()
        """A conversation, or the result of the call with that id, and its bytes; last what was used last."""
        self._bytes = 0
        self._in_use: dict[int, CachedConversation] = {}
        self._told = 0

    @property
    def size(self) -> int:
        """Bytes of memory, about: what is kept and what is taken out."""
        return self._bytes + sum(prefix.size + _PER_ENTRY for prefix in self._in_use.values())

    def take(
        self, key: Key, provider: Provider, whole: Ref, known: int | None = None
    ) -> tuple[CachedConversation, Miss | None]:
        """The conversation up to `whole`, or else its first `known` messages, taken out; an empty one where neither is here.

        It must be put back. The second value says why it is empty. Of `known` messages nothing but their number was asked:
        what is made of them must be held against the digest of the whole.
        """
        found = self._pop(key, None)
        prefix = CachedConversation(provider)
        miss: Miss | None = "absent"
        if isinstance(found, CachedConversation):
            miss = "mismatch"
            is_whole = whole.count < len(found.digests) and found.digests[whole.count] == whole.digest
            count = whole.count if is_whole else known or 0
            if 0 < count < len(found.digests):
                found.cut_back(count)
                found.encode_for(provider)
                prefix, miss = found, None
        self._in_use[id(prefix)] = prefix
        self._settle()
        return prefix, miss

    def put(self, key: Key, prefix: CachedConversation) -> None:
        """Keep a conversation that was taken out, or one that is new."""
        self._in_use.pop(id(prefix), None)
        if prefix.messages:
            self._keep(key, None, prefix, prefix.size)
        self._settle()

    def hold(self, key: Key, result: ToolMessage) -> None:
        """Keep a result that was made here, until the next model call takes it up."""
        result.model_dump_json()  # as Temporal will: what is not ASCII keeps its UTF-8 beside it from then on
        self._keep(key, result.call_id, result, memory_size(result))
        self._settle()

    def resolve(
        self, key: Key, new: Sequence[UserMessage | AssistantMessage | ToolMessage | CachedResult]
    ) -> list[Message]:
        """The messages as far as they are known here: up to the first whose result another worker holds.

        A result is known by its call's id alone, so what comes of it must be held against the digest that was asked for.
        """
        known: list[Message] = []
        for message in new:
            if not isinstance(message, CachedResult | ToolMessage):
                known.append(message)
                continue
            result = self._pop(key, message.call_id)
            if isinstance(message, CachedResult):
                if not isinstance(result, ToolMessage):
                    break
                message = result
            known.append(message)
        self._settle()
        return known

    def _keep(self, key: Key, call_id: str | None, value: CachedConversation | ToolMessage, size: int) -> None:
        self._pop(key, call_id)
        size += _PER_ENTRY
        if size > self._max_bytes:
            return  # it would push out all others, and go then itself
        self._entries[key, call_id] = value, size
        self._bytes += size

    def _pop(self, key: Key, call_id: str | None) -> CachedConversation | ToolMessage | None:
        value, size = self._entries.pop((key, call_id), (None, 0))
        self._bytes -= size
        return value

    def _settle(self) -> None:
        """Let go of what was not used for the longest time, as far as the bound asks for it; then tell the size."""
        size = self.size
        while size > self._max_bytes and self._entries:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed
            size -= freed
        if size != self._told:
            self._changed(size - self._told)
            self._told = size
