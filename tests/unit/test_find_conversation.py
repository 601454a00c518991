"""Which messages a model call has: those in the worker's cache, and the rest from its workflow, which may have moved on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from mulligan import Message, UserMessage
from mulligan.activities.models.scripted import Scripted
from mulligan.activities.run_data import find_conversation
from mulligan.activities.run_data.conversation_cache import CachedConversation, ConversationCache
from mulligan.wire.conversation_ref import ConversationRef, Page, PageRequest
from mulligan.wire.model_call import ModelRequest
from tests.support.core_parts import TRACE

PROVIDER: Any = Scripted({})


def said(*texts: str) -> list[Message]:
    return [UserMessage(role="user", text=text) for text in texts]


def ref_of(*texts: str) -> ConversationRef:
    conversation = CachedConversation(PROVIDER)
    conversation.extend(said(*texts))
    return conversation.ref


class At:
    """A worker, and the workflow that it asks: which has these messages, and is `asked` for those from a number on."""

    def __init__(self, *texts: str) -> None:
        self.messages = said(*texts)
        self.asked: list[int] = []
        self.lookups: list[str] = []
        self.cache = ConversationCache(10**6)

    async def query(self, _name: str, wanted: PageRequest, _type: type[Page]) -> Page:
        self.asked.append(wanted.since)
        return Page(messages=self.messages[wanted.since :][: wanted.count])

    def count_cache_lookup(self, result: str, _queried: int) -> None:
        self.lookups.append(result)

    async def find(self, conversation: ConversationRef) -> list[Message]:
        """What a call has that is for this conversation, whose last message is new."""
        context: Any = {"agent": "a", "trace": TRACE}
        request = ModelRequest(where=context, conversation=conversation, model="m", step=1)
        services: Any = SimpleNamespace(conversations=self.cache, telemetry=SimpleNamespace(metrics=self))
        heartbeat: Any = None

        async def found() -> list[Message]:
            async with find_conversation.conversation_of(request, PROVIDER, services, heartbeat) as conversation:
                return [*conversation.messages]

        messages: list[Message] = await ActivityEnvironment().run(found)
        return messages


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    there = At("a", "b")
    monkeypatch.setattr(find_conversation, "query_this_workflow", there.query)
    return there


async def test_the_workflow_is_asked_for_what_the_cache_does_not_have(at: At) -> None:
    assert await at.find(ref_of("a")) == said("a")
    assert await at.find(ref_of("a", "b")) == said("a", "b")
    assert await at.find(ref_of("a", "b")) == said("a", "b")
    assert (at.asked, at.lookups) == ([0, 1], ["absent", "partial", "hit"])


async def test_the_history_of_before_a_reset_is_read_anew(at: At) -> None:
    assert await at.find(ref_of("a", "b")) == said("a", "b")
    at.messages = said("x", "y", "z")
    assert await at.find(ref_of("x", "y", "z")) == said("x", "y", "z")
    assert (at.asked, at.lookups) == ([0, 2, 0], ["absent", "mismatch"])


async def test_what_a_call_has_read_that_its_workflow_no_longer_means_is_not_kept(at: At) -> None:
    """It takes no memory, and the next attempt does not begin with it."""
    at.messages = said("x", "y")
    with pytest.raises(ApplicationError, match="moved on"):
        await at.find(ref_of("a", "b"))
    assert at.cache.size == 0
    at.messages, at.asked = said("a", "b"), []
    assert await at.find(ref_of("a", "b")) == said("a", "b")
    assert at.asked == [0]
