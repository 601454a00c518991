"""What every provider implements: a provider is one file in this folder with a class that has these three methods."""

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
    """One model call."""

    model: str
    """The model's name without its provider."""
    definition: Definition
    """The instructions, the tools and the output format."""
    items: Sequence[Any]
    """The conversation's messages as this provider's `encode` returned them, in order."""
    messages: Sequence[Message]
    """The same messages, unencoded."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The agent's `model_settings`."""
    parallel_tool_calls: bool = True
    calls_in_text: bool = False
    """Whether calls are also read from the answer's text, so that a server without tools can be used."""
    timeout: float = 300.0
    """Seconds for the whole answer."""
    summed_up: int = 0
    """How many of the model's answers a summary has replaced: they came before these messages."""
    on_text: Callable[[str], None] | None = None
    """Called with each piece of the answer's text as the model writes it. None: the answer need not be streamed."""


@dataclass(frozen=True)
class Reply:
    """A model's answer. Its calls are exactly as the model wrote them: any name, any text as arguments, any id."""

    text: str
    calls: Sequence[ToolCall]
    finish_reason: FinishReason
    usage: Usage
    response_id: str = ""
    model: str = ""
    """The name of the model that answered, by the provider."""
    provider_data: dict[str, JsonValue] | None = None
    """JSON that must be sent back to this provider with the message."""


class Unavailable(Exception):
    """The endpoint cannot be reached, limits us, or sent an invalid answer: the request may be retried.

    Args:
        status: The HTTP status, where there was a response.
        retry_after: Seconds that the endpoint asks to wait.
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
        """Return the message as the provider's own items.

        A pure function: a conversation's beginning is the same bytes in each request, so that the provider's cache works.
        """
        ...

    async def complete(self, request: Request) -> Reply:
        """Request an answer.

        Raises:
            ModelRequestError: the provider refuses the request, and would refuse it again.
            Unavailable: the request may be retried.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
