"""What the runtime asks of a provider. A new one is one file with a class that has these two methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from mulligan.values import Message, ToolCall, Usage
from mulligan.wire.agent_facts import Definition

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]


@dataclass(frozen=True)
class Request:
    """One model call. `items` are the conversation's messages as this provider's `encode` made them, in order."""

    model: str
    definition: Definition
    items: Sequence[Any]
    messages: Sequence[Message]
    settings: Mapping[str, Any] = field(default_factory=dict)
    parallel_tool_calls: bool = True
    calls_in_text: bool = False
    """Calls are looked for in the text, so that it is no matter whether the server takes tools."""
    timeout: float = 300.0
    summed_up: int = 0
    """How many answers of the model were before these messages, and are summed up in them."""
    on_text: Callable[[str], None] | None = None
    """Told each piece of the answer's text as the model writes it; without it, the answer may come whole."""


@dataclass(frozen=True)
class Reply:
    """What the model said. Calls are as it wrote them: any name, any text as arguments, any id.

    `provider_data` is what must go back to this provider with the message, as JSON.
    """

    text: str
    calls: Sequence[ToolCall]
    finish_reason: FinishReason
    usage: Usage
    response_id: str = ""
    model: str = ""
    provider_data: dict[str, JsonValue] | None = None


class Unavailable(Exception):
    """The endpoint is down, limits us, or answers what nobody understands: worth another try.

    `retry_after` is what it asked for, in seconds.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Provider(Protocol):
    """A provider of models."""

    name: str
    """For `gen_ai.provider.name`."""

    def encode(self, message: Message) -> list[Any]:
        """A message as the provider's own items. A pure function of the message: the same prefix gives the same bytes."""
        ...

    async def complete(self, request: Request) -> Reply:
        """Ask the model.

        Raises:
            ModelRequestError: it refuses, and would refuse again.
            Unavailable: worth another try.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
