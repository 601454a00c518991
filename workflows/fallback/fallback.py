"""Calls the turn's models in order, each at most once, until one answers. The turn continues with that one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.values import ErrorInfo
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.workflows.feature import Feature

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.turn import Turn


class Fallback(Feature):
    """The models of one agent. Its state: the errors of those that have failed in the step whose model is being called."""

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._failures: list[str] = []

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """There is more than one model to call."""
        return len(turn.models) > 1

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Call the next model where one fails.

        Raises:
            ModelRequestError, ModelUnavailableError: no model answered. It is the last model's error; its message has the
                errors of all of them.
        """
        try:
            return await self._first_answer(call, then)
        finally:
            self._failures = []

    async def _first_answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        turn, models = self.agent.turn, len(self.agent.turn.models)
        while True:
            is_last = len(self._failures) == models - 1
            patience = None if is_last else turn.facts.fallback_patience
            attempt = call.model_copy(
                update={
                    "model": turn.model,
                    "fallback": len(self._failures),
                    "patience": call.patience if patience is None else min(patience, call.patience),
                }
            )
            try:
                return await then(attempt)
            except (ModelRequestError, ModelUnavailableError) as error:
                if self.agent.is_stopped:
                    raise
                self._failures.append(f"{turn.model}: {error.message}")
                turn.at = (turn.at + 1) % models
                if is_last:
                    raise _error_of_all(error, self._failures) from error
                info = ErrorInfo(kind=type(error).__name__, message=error.message)
                self.agent.conversation.event_log.model_fallback(turn.model, info)

    def dump(self) -> list[str] | None:
        """The errors, as JSON."""
        return self._failures or None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._failures = list(state)


def _error_of_all(last: ModelRequestError | ModelUnavailableError, failures: list[str]) -> Exception:
    message = f"None of the {len(failures)} models answered. {' '.join(failures)}"
    if isinstance(last, ModelRequestError):
        return ModelRequestError(message, status=last.status, request_id=last.request_id, is_overflow=last.is_overflow)
    return ModelUnavailableError(message)
