"""The person of a run without a server: a function that is asked about each call that waits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError

from mulligan.wire.updates import ANSWER, DECIDE, PENDING, Answer, Decide, Pending

if TYPE_CHECKING:
    from mulligan.testing._engine import Engine

__all__ = ["Person"]

Said = Decide | Answer | None
Person = Callable[[Pending], Said | Awaitable[Said]]
"""What a person says to a call that waits: `Decide` or `Answer`; None: nothing, and its time goes by."""


class PersonDriver:
    """One person, for a run and its sub-agents."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self._asked: set[tuple[str, str, int]] = set()

    async def ask(self, engine: Engine) -> bool:
        """Ask about what waits and was not asked about; whether anything was said.

        Raises:
            AssertionError: what was said is refused, as a client would be.
        """
        try:
            waits = [Pending.model_validate(wait) for wait in await engine.query(PENDING)]
        except WorkflowQueryFailedError:  # a workflow without agents
            return False
        for wait in waits:
            key = (engine.workflow_id, wait.call_id, wait.step)
            if key in self._asked:
                continue
            self._asked.add(key)
            said = self._person(wait)
            said = await said if inspect.isawaitable(said) else said
            if said is None:
                continue
            try:
                update = ANSWER if isinstance(said, Answer) else DECIDE
                await engine.update(update, said.model_dump(mode="json", exclude_unset=True))
            except WorkflowUpdateFailedError as refused:
                raise AssertionError(f"What the person said to {wait.text!r} was refused: {refused.cause}") from None
            return True
        return False
