"""A request while it is made: the features of a run change what is sent, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import JsonValue

from mulligan.activities.models.protocol import Provider, ToolsOnDemand
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.features import installed
from mulligan.values import Message
from mulligan.wire.agent_facts import Definition


@dataclass(frozen=True)
class RequestDraft:
    """What a request is made of.

    Attributes:
        provider: Whose items these are.
        definition: The instructions, the tools and the output format.
        messages: The conversation.
        items: The provider's items of each message.
        fixed: The indexes of messages that the other features must leave as they are.
        unseen: The tools that the model finds by a call.
    """

    provider: Provider
    definition: Definition
    messages: Sequence[Message]
    items: Sequence[Sequence[Any]]
    fixed: frozenset[int] = field(default=frozenset())
    unseen: ToolsOnDemand | None = None


PrepareRequest = Callable[[RequestDraft, JsonValue], RequestDraft]
"""Changes what is sent, by what the feature's part in the workflow has put into the model call."""


def draft_of(
    definition: Definition, conversation: CachedConversation, features: Mapping[str, JsonValue]
) -> RequestDraft:
    """The request for a conversation. `features`: what the workflow's features say of this call, by their names."""
    draft = RequestDraft(conversation.provider, definition, conversation.messages, conversation.items)
    if features:
        for name, prepare in _by_feature().items():
            if name in features:
                draft = prepare(draft, features[name])
    return draft


@cache
def _by_feature() -> Mapping[str, PrepareRequest]:
    """Loaded when it is needed: a feature's module may import what needs this one."""
    return installed("request")
