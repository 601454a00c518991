"""`handle_errors`: one policy for what happens on a model's mistake or a tool's failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mulligan.errors import MulliganError, RemoteSource, StructuredOutputError, ToolCallError, from_json

Mistake = ToolCallError | StructuredOutputError
"""What a policy decides on: a call or an answer that went wrong, with its `kind`."""
MISTAKES = (ToolCallError, StructuredOutputError)
"""The same, for `except`."""
HandleErrors = (
    bool | str | type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], str | Awaitable[str]]
)
"""True: the standard text. False: the run fails. A text: that one. Exception types: those are told, others fail the run.
A function of the typed error: its text is told, and what it raises fails the run."""

MODELS_OWN_MISTAKES = frozenset(
    {"unknown_tool", "invalid_json", "invalid_arguments", "truncated_call", "duplicate_call"}
)
"""The kinds that a run's `on_invalid_tool_input` speaks of."""


def text_for_model(error: Mistake, policy: HandleErrors, standard: str) -> str | Awaitable[str]:
    """The text for the model.

    Raises:
        MulliganError: the policy does not handle this error, so the run fails with it.
    """
    if policy is True:
        return standard
    if policy is False:
        raise error
    if isinstance(policy, str):
        return policy
    if isinstance(policy, (type, tuple)):
        if isinstance(error, policy) or _is_one(error_source(error), policy):
            return standard
        raise error
    try:
        text = policy(error)
        # An `async def` is awaited by the caller.
        return text if isinstance(text, Awaitable) else str(text)
    except MulliganError:
        raise
    except Exception as raised:
        raise with_message_of(error, raised) from raised


def _is_one(source: BaseException | None, policy: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether it is of one of these types. Of one raised in another process its type's name is all that is known."""
    if not isinstance(source, RemoteSource):
        return isinstance(source, policy)
    kinds = list(policy) if isinstance(policy, tuple) else [policy]
    for kind in kinds:
        kinds += [derived for derived in kind.__subclasses__() if derived not in kinds]
    return source.type_name in {kind.__name__ for kind in kinds}


def error_source(error: Mistake) -> BaseException | None:
    """What is behind an error: a `pydantic.ValidationError`, the tool's own exception; None where there is nothing."""
    return getattr(error, "source", None)


def with_message_of(error: Mistake, raised: BaseException) -> MulliganError:
    """The typed error with what a policy's function raised as its reason: so the run fails (contract, section 2)."""
    return from_json({**error.to_json(), "message": str(raised) or type(raised).__name__})
