"""`handle_errors`: the policy for a model's mistakes and a tool's failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mulligan.errors import MulliganError, RemoteSource, StructuredOutputError, ToolCallError, from_json
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.exception_group import all_causes

Mistake = ToolCallError | StructuredOutputError
"""What a policy decides on: a failed call or a rejected answer, with its `kind`."""
MISTAKES = (ToolCallError, StructuredOutputError)
"""The same, for `except`."""
HandleErrors = (
    bool | str | type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], str | Awaitable[str]]
)
"""What the model gets. True: the standard text. False: nothing, the run fails. A text: that text. Exception types: the
standard text for those, other errors fail the run. A function of the typed error: its text; if it raises, the run fails."""

MODELS_OWN_MISTAKES = frozenset(
    {"unknown_tool", "invalid_json", "invalid_arguments", "truncated_call", "duplicate_call", "invalid_code"}
)
"""The kinds that a run's `on_invalid_tool_input` applies to."""


def text_for_model(error: Mistake, policy: HandleErrors, standard: str) -> str | Awaitable[str]:
    """The feedback for the model: what the policy says, or `standard`; awaitable where the policy is an `async def`.

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
        if isinstance(error, policy) or _is_of_type(error_source(error), policy):
            return standard
        raise error
    try:
        text = policy(error)
        return text if isinstance(text, Awaitable) else str(text)
    except MulliganError:
        raise
    except Exception as raised:
        raise with_message_of(error, raised) from raised


def _is_of_type(source: BaseException | None, policy: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether a source is of one of the types. Of one raised in another process only its type's name is known."""
    if source is None:
        return False
    if not isinstance(source, RemoteSource):
        return all_causes(source, lambda each: isinstance(each, policy))
    kinds = list(policy) if isinstance(policy, tuple) else [policy]
    for kind in kinds:
        kinds += [derived for derived in kind.__subclasses__() if derived not in kinds]
    return source.type_name in {kind.__name__ for kind in kinds}


def error_source(error: Mistake) -> BaseException | None:
    """The exception behind an error: a `pydantic.ValidationError`, or the tool's own; None where there is none."""
    return getattr(error, "source", None)


def with_message_of(error: Mistake, raised: BaseException) -> MulliganError:
    """The typed error with the message of what a policy's function raised: the run fails with it (docs/options.md)."""
    return from_json({**error.to_json(), "message": error_text(raised) or type_name(raised)})
