"""Fixers repair a call's arguments before it runs: a user's function, or `ask_model`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mulligan.endpoint import Endpoint
from mulligan.endpoint_model import Model, model_name
from mulligan.errors import DeclarationError, InvalidToolInputError, StructuredOutputError

MAX_TIMEOUT = 60.0
"""Seconds for `ask_model`: the step waits for it, within the activity of the model call."""


@dataclass(frozen=True)
class InvalidToolInput:
    """What a fixer gets: arguments that are not valid for the tool or the type of output, and the error.

    `arguments` is the parsed JSON, or the raw text where it is not JSON; `schema` is the JSON schema of valid arguments.
    """

    tool_name: str
    """The name of the tool, or of the type of output."""
    arguments: Any
    raw_arguments: str
    """The text that the model wrote."""
    error: InvalidToolInputError | StructuredOutputError
    """What is wrong with it."""
    schema: dict[str, Any]


@dataclass(frozen=True)
class AskModel:
    """The options of `ask_model`. The worker makes the call, as it has the endpoint and the trace."""

    model: str
    """The model's name, `provider:NAME` or `provider@endpoint:NAME`."""
    instructions: str
    """What else it should know about the arguments."""
    timeout: float
    """Seconds."""
    endpoint: Endpoint | None = None
    """The model's endpoint, if it was declared with the model."""


Fixer = Callable[[InvalidToolInput], object | Awaitable[object | None] | None] | AskModel
"""Gets a call's invalid input and returns corrected arguments (a dict, or JSON text), or None to give up."""


def ask_model(model: str | Model, *, instructions: str = "", timeout: float | timedelta = 30) -> AskModel:
    """A `fix` of a tool, or the `repair` of an agent: a second model repairs the arguments, in one call.

    It gets the tool, the invalid arguments, and the error. Its answer is validated like any fixer's; if it fails, refuses,
    or takes too long, the arguments stay invalid. Its tokens count in the step's usage, and its call is a `chat` span.

    Args:
        model: A name such as `openai:NAME`, or a `Model`; a small one is enough.
        instructions: What else it should know about the arguments.
        timeout: Seconds, or a timedelta; 60 s at most.

    Raises:
        DeclarationError: the timeout is not in its range.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not 0 < limit <= MAX_TIMEOUT:
        raise DeclarationError(
            f"ask_model({model!r}): the timeout is {limit:g} s; it must be more than 0, {MAX_TIMEOUT:g} at most."
        )
    endpoint = model.endpoint if isinstance(model, Model) else None
    return AskModel(model_name(model), instructions, limit, endpoint)
