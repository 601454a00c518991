"""What a worker remembers of conversations, so that a model call need carry only what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.providers.protocol import Provider
from mulligan.handoff import Ref, chain
from mulligan.values import AssistantMessage, Message

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


class PrefixCache:
    """The conversations used last, within a bound in bytes. Keyed by workflow id, so that continue-as-new stays a hit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str], Prefix] = OrderedDict()
        self._bytes = 0

    def take(self, key: tuple[str, str], ref: Ref, provider: Provider) -> Prefix | None:
        """The conversation up to `ref`, taken out; None where what is held is not that (a reset, a fork, another worker)."""
        prefix = self._kept.pop(key, None)
        if prefix is None:
            return None
        self._bytes -= prefix.size * _PER_BYTE
        if prefix.provider is not provider or len(prefix.digests) <= ref.count:
            return None
        if prefix.digests[ref.count] != ref.digest:
            return None
        prefix.cut_back(ref.count)
        return prefix

    def put(self, key: tuple[str, str], prefix: Prefix) -> None:
        """Keep a conversation, and let go of those not used for the longest time."""
        self._kept[key] = prefix
        self._bytes += prefix.size * _PER_BYTE
        while self._bytes > self._max_bytes and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size * _PER_BYTE
