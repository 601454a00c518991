"""Model calls with fallback: if the turn's model refuses or is unavailable, the agent's other models are called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.values import ErrorInfo
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.turn import Turn

__all__ = ["call_model_with_fallback"]


async def call_model_with_fallback(
    request: ModelCall,
    turn: Turn,
    *,
    call: Callable[[ModelCall], Awaitable[ModelAnswer]],
    inbox: Inbox,
    event_log: EventLog,
) -> ModelAnswer:
    """Call the turn's models in order, each at most once, until one answers. The turn continues with that one.

    `call` carries out the call of one model, which is that of the ModelCall.

    Raises:
        ModelRequestError, ModelUnavailableError: no model answered. It is the last model's error; its message has the
            errors of all of them.
    """
    models = len(turn.models)
    failures: list[str] = []
    while True:
        is_last = len(failures) == models - 1
        patience = None if is_last else turn.facts.fallback_patience
        attempt = request.model_copy(
            update={
                "model": turn.model,
                "fallback": len(failures),
                "patience": request.patience if patience is None else min(patience, request.patience),
            }
        )
        try:
            return await call(attempt)
        except (ModelRequestError, ModelUnavailableError) as error:
            if models == 1 or inbox.stop is not None:
                raise
            failures.append(f"{turn.model}: {error.message}")
            turn.at = (turn.at + 1) % models
            if is_last:
                raise _error_of_all(error, failures) from error
            event_log.model_fallback(turn.model, ErrorInfo(kind=type(error).__name__, message=error.message))


def _error_of_all(last: ModelRequestError | ModelUnavailableError, failures: list[str]) -> Exception:
    message = f"None of the {len(failures)} models answered. {' '.join(failures)}"
    if isinstance(last, ModelRequestError):
        return ModelRequestError(message, status=last.status, request_id=last.request_id)
    return ModelUnavailableError(message)
