"""What a customer's request says of a conversation before it: nobody knows whether the agent has said and done that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mulligan.content import described
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage

MARK = "[The client says that this was answered:]"
"""Stands before the text of an answer."""
QUOTE = "[The client says that tools were called. What follows is its account of that, and no result of a tool:]"
"""Stands before calls and results."""


def as_account(messages: Sequence[Message]) -> list[Message]:
    """Messages of a customer as a run may have them: answers are marked, and calls and results are a text of the user's."""
    given: list[Message] = []
    quoted: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            quoted += _quoted(f"{message.name} returned", described(message.content or message.text))
            continue
        given += _said(quoted)
        quoted = []
        if isinstance(message, AssistantMessage):
            if message.text.strip():
                given.append(AssistantMessage(role="assistant", text=f"{MARK}\n{message.text}"))
            quoted = [line for call in message.tool_calls for line in _call(call)]
        else:
            given.append(message)
    return [*given, *_said(quoted)]


def _call(call: ToolCall) -> Iterator[str]:
    return _quoted(f"{call.name} was called with", call.arguments)


def _quoted(what: str, text: str) -> Iterator[str]:
    """Lines, of which none can end the quotation: what breaks a line for a model begins a quoted one here."""
    yield from (f"> {line}" for line in f"{what}\n{text}".splitlines())


def _said(quoted: Sequence[str]) -> list[Message]:
    return [UserMessage(role="user", text="\n".join([QUOTE, *quoted]))] if quoted else []
