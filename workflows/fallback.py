"""Who is asked for a step: the turn's model, and where that refuses or is not to be had, the others of the list."""

from __future__ import annotations

from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.values import ErrorInfo
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.workflows import dispatch
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.turn import Turn


async def ask(order: ModelCall, turn: Turn, inbox: Inbox, log: EventLog) -> ModelAnswer:
    """Have one of the turn's models answer, each asked once at most; the turn stays with the one that does.

    Raises:
        ModelRequestError, ModelUnavailableError: none did. It is the last one's error, and says what each said.
    """
    models = len(turn.models)
    said: list[str] = []
    while True:
        is_last = len(said) == models - 1
        patience = None if is_last else turn.facts.fallback_patience
        asked = order.model_copy(
            update={
                "model": turn.model,
                "fallback": len(said),
                "patience": order.patience if patience is None else min(patience, order.patience),
            }
        )
        try:
            return await dispatch.call_model(asked, turn.facts, inbox)
        except (ModelRequestError, ModelUnavailableError) as error:
            if models == 1 or inbox.stop is not None:
                raise
            said.append(f"{turn.model}: {error.message}")
            turn.at = (turn.at + 1) % models
            if is_last:
                raise _none_answered(error, said) from error
            log.model_fallback(turn.model, ErrorInfo(kind=type(error).__name__, message=error.message))


def _none_answered(last: ModelRequestError | ModelUnavailableError, said: list[str]) -> Exception:
    message = f"None of the {len(said)} models answered. {' '.join(said)}"
    if isinstance(last, ModelRequestError):
        return ModelRequestError(message, status=last.status, request_id=last.request_id)
    return ModelUnavailableError(message)
