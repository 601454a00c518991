"""`handle_errors`: one policy for what happens on a model's mistake or a tool's failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.errors import MulliganError, ToolCallError, from_json

HandleErrors = bool | str | type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], str]
"""True: the standard text. False: the run fails. A text: that one. Exception types: those are told, others fail the run.
A function of the typed error: its text is told, and what it raises fails the run."""

MODELS_OWN_MISTAKES = frozenset(
    {"unknown_tool", "invalid_json", "invalid_arguments", "truncated_call", "duplicate_call"}
)
"""The kinds that a run's `on_invalid_tool_input` speaks of."""


def tell(error: ToolCallError, policy: HandleErrors, standard: str) -> str:
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
        if isinstance(error, policy) or isinstance(error.source, policy):
            return standard
        raise error
    try:
        return str(policy(error))
    except MulliganError:
        raise
    except Exception as raised:
        raise with_reason(error, raised) from raised


def with_reason(error: ToolCallError, raised: BaseException) -> MulliganError:
    """The typed error with what a policy's function raised as its reason: so the run fails (contract, section 2)."""
    return from_json({**error.to_json(), "message": str(raised) or type(raised).__name__})
