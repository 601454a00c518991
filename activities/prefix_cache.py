"""What a worker remembers of conversations, so that a model call need carry only what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.providers.protocol import Provider
from mulligan.handoff import Held, Ref, chain
from mulligan.values import AssistantMessage, Message, ToolMessage, UserMessage

_PER_BYTE = 3
"""A message is held as itself and as the provider's items: about three times its JSON."""


@dataclass
class Prefix:
    """A conversation up to some message, with the digest of each, and as the provider's own items.

    A message is encoded once, so the request's prefix is the same bytes at each step and the provider's cache works.
    """

    provider: Provider
    messages: list[Message] = field(default_factory=list)
    digests: list[str] = field(default_factory=lambda: [""])
    items: list[list[Any]] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    size: int = 0

    def extend(self, messages: Sequence[Message]) -> None:
        """Add messages at the end."""
        for message in messages:
            digest, size = chain(self.digests[-1], message)
            self.messages.append(message)
            self.digests.append(digest)
            self.items.append(self.provider.encode(message))
            self.call_ids |= _calls(message)
            self.size += size

    def cut_back(self, count: int) -> None:
        """Forget all after the first `count`: an attempt before this one may have got further."""
        if count < len(self.messages):
            for message in self.messages[count:]:
                self.size -= chain("", message)[1]
                self.call_ids -= _calls(message)
            del self.messages[count:], self.digests[count + 1 :], self.items[count:]

    @property
    def ref(self) -> Ref:
        """Its length and digest."""
        return Ref(count=len(self.messages), digest=self.digests[-1])


def _calls(message: Message) -> set[str]:
    return {call.id for call in message.tool_calls} if isinstance(message, AssistantMessage) else set()


Key = tuple[str, str]
"""Workflow id and conversation: not the run's id, so that continue-as-new stays a hit."""


class PrefixCache:
    """The conversations, and the results made here for them, that were used last: within a bound in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Key, Prefix] = OrderedDict()
        self._held: OrderedDict[tuple[Key, str], ToolMessage] = OrderedDict()
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self._bytes

    def take(self, key: Key, provider: Provider, *refs: Ref) -> Prefix | None:
        """The conversation up to the first of `refs` that it reaches, taken out.

        None where what is held is not that: another worker's step, a reset, a fork.
        """
        prefix = self._kept.pop(key, None)
        if prefix is None:
            return None
        self._bytes -= prefix.size * _PER_BYTE
        if prefix.provider is not provider:
            return None
        for ref in refs:
            if ref.count < len(prefix.digests) and prefix.digests[ref.count] == ref.digest:
                prefix.cut_back(ref.count)
                return prefix
        return None

    def put(self, key: Key, prefix: Prefix) -> None:
        """Keep a conversation, and let go of those not used for the longest time."""
        if (old := self._kept.pop(key, None)) is not None:
            self._bytes -= old.size * _PER_BYTE
        self._kept[key] = prefix
        self._bytes += prefix.size * _PER_BYTE
        while self._bytes > self._max_bytes and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size * _PER_BYTE

    def hold(self, key: Key, result: ToolMessage) -> None:
        """Keep a result that was made here, until the next model call takes it up."""
        if (old := self._held.pop((key, result.call_id), None)) is not None:
            self._bytes -= len(old.text)
        self._held[(key, result.call_id)] = result
        self._bytes += len(result.text)
        while self._bytes > self._max_bytes and self._held:
            self._bytes -= len(self._held.popitem(last=False)[1].text)

    def resolve(self, key: Key, new: Sequence[UserMessage | AssistantMessage | ToolMessage | Held]) -> list[Message]:
        """The messages as far as they are known here: up to the first whose result another worker holds."""
        known: list[Message] = []
        for message in new:
            if isinstance(message, Held):
                result = self._held.pop((key, message.call_id), None)
                if result is None:
                    break
                self._bytes -= len(result.text)
                message = result
            known.append(message)
        return known
