"""A request while it is made: the features of a run change what is sent, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from pydantic import JsonValue

from mulligan.activities.models.protocol import Provider, ToolsOnDemand
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.features import parts
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


class PreparesRequests(Protocol):
    """What a feature's module in `activities/` defines, if it changes what is sent."""

    def prepare_request(self, draft: RequestDraft, said: JsonValue) -> RequestDraft:
        """The changed request. `said`: what the feature's part in the workflow has put into the model call."""
        ...


def draft_of(
    definition: Definition, conversation: CachedConversation, features: Mapping[str, JsonValue]
) -> RequestDraft:
    """The request for a conversation. `features`: what the workflow's features say of this call, by their names."""
    draft = RequestDraft(conversation.provider, definition, conversation.messages, conversation.items)
    if features:
        for name, module in _by_feature().items():
            if name in features:
                draft = module.prepare_request(draft, features[name])
    return draft


@cache
def _by_feature() -> Mapping[str, PreparesRequests]:
    """Loaded when it is needed: a feature's module may import what needs this one."""
    modules: dict[str, Any] = {module.__name__.rpartition(".")[2]: module for module in parts("activities")}
    return {name: module for name, module in modules.items() if hasattr(module, "prepare_request")}
