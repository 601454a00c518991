"""The errors of model calls, as an activity that has failed brings them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from mulligan.errors import ModelUnavailableError, error_of
from mulligan.wire.model_call import NOT_CALLED, ModelCall


class ModelNotCalled(Exception):
    """A worker did not call the model, for a reason that a feature knows. `kind`: the type of the activity's failure."""

    def __init__(self, kind: str, details: Sequence[Any]) -> None:
        super().__init__(kind)
        self.kind, self.details = kind, details


def raise_if_not_called(error: ActivityError) -> None:
    """Raise ModelNotCalled if the activity has failed with such a type."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and (cause.type or "").startswith(NOT_CALLED):
        raise ModelNotCalled(cause.type or "", cause.details) from None


def raise_model_error(request: ModelCall, error: ActivityError) -> NoReturn:
    """Raise the error of a model call whose activity has failed; a cancellation as it is, not as its own cause.

    Raises:
        ModelNotCalled: the model was not called.
    """
    if is_cancelled_exception(error):
        raise error
    raise_if_not_called(error)
    unavailable = ModelUnavailableError(f"The call of {request.model} failed: {error.cause or error}")
    raise error_of(error) or unavailable from error
