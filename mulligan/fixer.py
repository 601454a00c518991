"""Fixers: what mends a call's arguments before it runs. A function of one's own, or `ask_model`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mulligan.errors import DeclarationError, InvalidToolInputError, StructuredOutputError

__all__ = ["AskModel", "Fixer", "InvalidToolInput", "ask_model"]

LONGEST = 60.0
"""Seconds for `ask_model`: the step waits for it, and its activity ends some time after the model's own call."""


@dataclass(frozen=True)
class InvalidToolInput:
    """What a fixer sees: arguments that the tool, or the type of output, cannot take, and why.

    `arguments` is the parsed JSON, or the raw text where it is no JSON; `schema` is the JSON schema of what is taken.
    """

    tool_name: str
    arguments: Any
    raw_arguments: str
    error: InvalidToolInputError | StructuredOutputError
    schema: dict[str, Any]


@dataclass(frozen=True)
class AskModel:
    """What `ask_model` declares. The worker does the asking: a function has neither the endpoint nor the trace."""

    model: str
    instructions: str
    timeout: float


Fixer = Callable[[InvalidToolInput], object | Awaitable[object | None] | None] | AskModel
"""Sees a call's invalid input and returns corrected arguments (a dict, or JSON text), or None to give up."""


def ask_model(model: str, *, instructions: str = "", timeout: float | timedelta = 30) -> AskModel:
    """A `fix` of a tool, or the `repair` of an agent: a second model mends the arguments, in one call.

    It is shown the tool, what was written, and the error. What it gives is validated like any fixer's; one that fails,
    refuses, or takes too long has given up. Its tokens count in the step's usage, and its call is a `chat` span.

    Args:
        model: `openai:NAME`, `openai-chat:NAME` or `scripted:NAME`; a small one will do.
        instructions: What else it should know of the arguments.
        timeout: Seconds, or a timedelta; 60 s at most.

    Raises:
        DeclarationError: the timeout makes no sense.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not 0 < limit <= LONGEST:
        raise DeclarationError(
            f"ask_model({model!r}): the timeout is {limit:g} s; it must be more than 0, {LONGEST:g} at most."
        )
    return AskModel(model, instructions, limit)
