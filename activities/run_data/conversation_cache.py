"""The cache of conversations in a worker's memory. With it, a model call's input contains new messages only."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from temporalio import activity

from mulligan.activities.models.fit_content import encoded, refs_needed
from mulligan.activities.models.protocol import Provider
from mulligan.content import Media
from mulligan.schema.shared_field_sets import has_shared_field_set, share_field_sets
from mulligan.values import AssistantMessage, Message, ToolMessage, UserMessage
from mulligan.wire.conversation_ref import CachedResult, ConversationRef, chain_digest
from mulligan.wire.run_context import RunContext

_PER_MESSAGE = 60
_PER_ENTRY = 1_200
"""Bytes beyond the values themselves: a message's digest and list entries; a cache entry's keys, lists and set."""
_PER_KEY = 16
"""Average bytes of a dict's key: most keys are shared."""

Miss = Literal["absent", "mismatch"]
"""The cache has nothing, or something else: after another worker's step, a reset, another run of the workflow id."""


@dataclass
class CachedConversation:
    """The first messages of a conversation, with the digest of each, and as the provider's own items.

    A message is encoded once, so a request's prefix has the same bytes at each step, which the provider's cache needs.
    """

    provider: Provider
    messages: list[Message] = field(default_factory=list)
    digests: list[str] = field(default_factory=lambda: [""])
    items: list[list[Any]] = field(default_factory=list)
    unread: dict[int, list[Media]] = field(default_factory=dict)
    """The parts of messages, by the messages' index, whose bytes are in the content storage and were not read yet: such a
    message has no items."""
    call_ids: set[str] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)
    size: int = 0
    """Bytes of memory of all messages; `sizes` has those of each."""
    counted: tuple[int, int] | None = None
    """How many messages there were with the newest answer that was counted, and their tokens by the model's provider."""

    def extend(self, messages: Sequence[Message]) -> int:
        """Add messages at the end; returns their bytes as JSON."""
        json_bytes = 0
        for message in messages:
            share_field_sets(message)
            digest, length = chain_digest(self.digests[-1], message)
            json_bytes += length
            self.messages.append(message)
            self.digests.append(digest)
            self.call_ids |= _calls(message)
            self._encode(message)
        return json_bytes

    def cut_back(self, count: int) -> None:
        """Remove all but the first `count` messages: an earlier attempt may have added more."""
        if count < len(self.messages):
            self.size -= sum(self.sizes[count:])
            del self.messages[count:], self.digests[count + 1 :], self.items[count:], self.sizes[count:]
            self.unread = {index: parts for index, parts in self.unread.items() if index < count}
            self.counted = self.counted if self.counted and self.counted[0] <= count else None
            self.call_ids = set().union(*map(_calls, self.messages))

    def encode_for(self, provider: Provider) -> None:
        """Encode the messages for a provider, if another one encoded them: a turn may use another model than the last."""
        if self.provider is not provider:
            self.provider, self.items, self.sizes, self.size, self.unread = provider, [], [], 0, {}
            for message in self.messages:
                self._encode(message)

    def open_calls(self) -> list[CachedResult]:
        """References to the results of the last message's calls."""
        last = self.messages[-1] if self.messages else None
        calls = last.tool_calls if isinstance(last, AssistantMessage) else []
        return [CachedResult(role="cached_result", call_id=call.id) for call in calls]

    @property
    def ref(self) -> ConversationRef:
        """The conversation's length and digest."""
        return ConversationRef(count=len(self.messages), digest=self.digests[-1])

    def _encode(self, message: Message) -> None:
        unread = refs_needed(message, self.provider)
        if unread:
            self.unread[len(self.items)] = unread
        self.items.append([] if unread else encoded(message, self.provider))
        self.sizes.append(memory_size(message, self.items[-1]) + _PER_MESSAGE)
        self.size += self.sizes[-1]

    def add_content(self, stored: Mapping[str, str]) -> None:
        """Encode the messages with `unread` parts. `stored`: the base64 of the content, by the parts' `ref`."""
        for index in self.unread:
            message = self.messages[index]
            self.items[index] = encoded(message, self.provider, stored)
            size = memory_size(message, self.items[index]) + _PER_MESSAGE
            self.size += size - self.sizes[index]
            self.sizes[index] = size
        self.unread = {}


def _calls(message: Message) -> set[str]:
    return {call.id for call in message.tool_calls} if isinstance(message, AssistantMessage) else set()


Key = tuple[str, str]
"""Workflow id and conversation. The run's id is not part of it, so that it stays the same after continue-as-new."""


def conversation_key(context: RunContext) -> Key:
    """The key of a conversation of the workflow that the current activity belongs to."""
    return activity.info().workflow_id or "", context.conversation


class ConversationCache:
    """A cache of conversations, and of results for them, limited in bytes of memory. The least recently used go first.

    A conversation that a model call has taken out counts too, but cannot be evicted: if those exceed the limit alone, the
    cache keeps nothing else. What they grow by counts from the next use of the cache on. `changed` gets each change of the
    size in bytes.
    """

    def __init__(self, max_bytes: int, changed: Callable[[int], None] = lambda _: None) -> None:
        self._max_bytes = max_bytes
        self._changed = changed
        self._entries: OrderedDict[tuple[Key, str | None], tuple[CachedConversation | ToolMessage, int]] = OrderedDict()
        """A conversation, or the result of the call with that id, and its bytes, in the order of their last use."""
        self._bytes = 0
        self._in_use: dict[int, CachedConversation] = {}
        self._reported_size = 0

    @property
    def size(self) -> int:
        """Bytes of memory, approximately: of the entries and of the conversations that are taken out."""
        return self._bytes + sum(prefix.size + _PER_ENTRY for prefix in self._in_use.values())

    def take(
        self, key: Key, provider: Provider, whole: ConversationRef, known: int | None = None
    ) -> tuple[CachedConversation, Miss | None]:
        """Take out the conversation up to `whole`, or else its first `known` messages, or else an empty one.

        The caller must put it back. The second value says why it is empty. The first `known` messages are identified by
        their number alone, so the caller must compare the completed conversation with the digest of `whole`.
        """
        cached = self._pop(key, None)
        prefix = CachedConversation(provider)
        miss: Miss | None = "absent"
        if isinstance(cached, CachedConversation):
            miss = "mismatch"
            is_whole = whole.count < len(cached.digests) and cached.digests[whole.count] == whole.digest
            count = whole.count if is_whole else known or 0
            if 0 < count < len(cached.digests):
                cached.cut_back(count)
                cached.encode_for(provider)
                prefix, miss = cached, None
        self._in_use[id(prefix)] = prefix
        self._evict()
        return prefix, miss

    def put(self, key: Key, prefix: CachedConversation) -> None:
        """Put back a conversation that was taken out, or add a new one."""
        self._in_use.pop(id(prefix), None)
        if prefix.messages:
            self._keep(key, None, prefix, prefix.size)
        self._evict()

    def put_result(self, key: Key, result: ToolMessage) -> None:
        """Keep a call's result until the next model call adds it to its conversation."""
        share_field_sets(result)
        result.model_dump_json()  # As Temporal will: from then on a string that is not ASCII keeps its UTF-8 form too.
        self._keep(key, result.call_id, result, memory_size(result))
        self._evict()

    def resolve(
        self, key: Key, new: Sequence[UserMessage | AssistantMessage | ToolMessage | CachedResult]
    ) -> list[Message]:
        """The messages up to the first result that this worker does not have.

        A result is identified by its call's id alone, so the caller must compare the conversation with its digest.
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
        self._evict()
        return known

    def _keep(self, key: Key, call_id: str | None, value: CachedConversation | ToolMessage, size: int) -> None:
        self._pop(key, call_id)
        size += _PER_ENTRY
        if size > self._max_bytes:
            return  # It would evict all others, and then itself.
        self._entries[key, call_id] = value, size
        self._bytes += size

    def _pop(self, key: Key, call_id: str | None) -> CachedConversation | ToolMessage | None:
        value, size = self._entries.pop((key, call_id), (None, 0))
        self._bytes -= size
        return value

    def _evict(self) -> None:
        """Remove the least recently used entries until the size is within the limit; then report the size."""
        size = self.size
        while size > self._max_bytes and self._entries:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed
            size -= freed
        if size != self._reported_size:
            self._changed(size - self._reported_size)
            self._reported_size = size


def memory_size(*values: Any) -> int:
    """Bytes of memory that messages, or a provider's items, need. A shared object counts once.

    The keys of dicts count little: the readers of JSON and of pydantic share most short strings in the whole process.
    """
    seen: set[int] = set()
    pending: list[Any] = list(values)
    size = 0
    while pending:
        value = pending.pop()
        if value is None or isinstance(value, bool) or id(value) in seen:
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        if isinstance(value, BaseModel):
            size += 0 if has_shared_field_set(value) else sys.getsizeof(value.model_fields_set)
            pending.append(value.__dict__)
        elif isinstance(value, dict):
            size += _PER_KEY * len(value)
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value
    return size
