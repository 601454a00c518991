"""The answers to the newest updates of a workflow: an update that is sent again is answered as it was the first time."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.workflows import limits
from mulligan.workflows.newest_that_fit import newest_that_fit

_REFUSAL_CHARS = 1_000
_DIGEST_CHARS = 24
"""Hexadecimal digits that stand for an id, which may have 1,000 characters."""
Answer = dict[str, Any]


class AnsweredUpdates:
    """Sets the handlers of updates, and carries the answers of the newest updates over continue-as-new.

    Clients send an update again, with its id, when they have lost its answer. The server answers the repeated update of one
    workflow run; a continued run gets it as if it were new. The refusal of a validator is not remembered, as it is in no
    history, and has had no effect: the repeated update is validated.

    `until_ready` ends when a continued run has its state.
    """

    def __init__(self, until_ready: Callable[[], Awaitable[None]]) -> None:
        self._until_ready = until_ready
        self._answers: dict[str, Answer] = {}
        """By the digest of the update's id, the newest last. A refusal has the keys `refused` and `ended_by`."""

    def set_handler(
        self,
        name: str,
        handle: Callable[[Any], Awaitable[Answer]],
        check: Callable[[Any], None],
        *,
        needs_state: bool = True,
    ) -> None:
        """Handle the updates with a name, unless the workflow itself does.

        `needs_state`: whether they wait until a continued run has its state. Others must change nothing if they are handled
        twice.
        """
        if workflow.get_update_handler(name) is not None:
            return

        async def answer(argument: Any = None) -> Answer:
            if needs_state:
                await self._until_ready()
            key = _digest_of_id()
            if key not in self._answers:
                try:
                    self._remember(key, await handle(argument))
                except UpdateRefusedError as refusal:
                    text = refusal.message[:_REFUSAL_CHARS]
                    self._remember(key, {"refused": text, "ended_by": refusal.ended_by})
                    raise
            known = self._answers[key]
            if "refused" in known:
                raise UpdateRefusedError(known["refused"], ended_by=known["ended_by"])
            return known

        def validate(argument: Any = None) -> None:
            if _digest_of_id() not in self._answers:
                check(argument)

        workflow.set_update_handler(name, answer, validator=validate)

    def _remember(self, key: str, answer: Answer) -> None:
        self._answers[key] = answer
        if len(self._answers) > limits.UPDATE_ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]

    def dump(self) -> dict[str, Any]:
        """The newest answers that continue-as-new carries, as JSON. Each agent of a workflow carries all of them."""
        return newest_that_fit(self._answers, limits.UPDATE_ANSWERS_BYTES)

    def load(self, state: dict[str, Any]) -> None:
        """Put what `dump` returned before the answers of this workflow run."""
        answers = {**state, **self._answers}
        self._answers = dict(list(answers.items())[-limits.UPDATE_ANSWERS_KEPT :])


def _digest_of_id() -> str:
    info = workflow.current_update_info()
    assert info is not None
    return hashlib.sha256(info.id.encode()).hexdigest()[:_DIGEST_CHARS]
