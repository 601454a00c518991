"""The person of a run without a server: a function that is called for each call that waits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError

from mulligan.wire.updates import ANSWER, DECIDE, PENDING, Answer, Decide, Pending

__all__ = ["Person", "PersonDriver"]

Reply = Decide | Answer | None
"""None: no reply."""
Person = Callable[[Pending], Reply | Awaitable[Reply]]
"""What a person replies to a call that waits: `Decide`, `Answer`, or None for no reply, so that its timeout passes."""


class Workflow(Protocol):
    """The workflow that waits for the person."""

    workflow_id: str

    async def query(self, name: str, *arguments: Any) -> Any:
        """Return the result of a query."""

    async def update(self, name: str, argument: Any) -> Any:
        """Send an update, and return its result."""


class PersonDriver:
    """Calls the function of one person, for a run and its sub-agents."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self._seen: set[tuple[str, ...]] = set()
        """The calls for which the function was called: workflow id, call id, step; since when, as a call may ask twice; how
        often it was edited, as it waits for somebody else then."""

    async def reply_to(self, workflow: Workflow) -> bool:
        """Call the person for the next call that waits and was not seen yet. Returns whether they replied.

        Raises:
            AssertionError: the workflow refused the reply.
        """
        try:
            pending = [Pending.model_validate(call) for call in await workflow.query(PENDING)]
        except WorkflowQueryFailedError:  # a workflow without agents
            return False
        for call in pending:
            key = (workflow.workflow_id, call.call_id, str(call.step), call.since, call.text, str(call.edits))
            if key in self._seen:
                continue
            self._seen.add(key)
            reply = self._person(call)
            reply = await reply if inspect.isawaitable(reply) else reply
            if reply is None:
                continue
            try:
                update = ANSWER if isinstance(reply, Answer) else DECIDE
                await workflow.update(update, reply.model_dump(mode="json", exclude_unset=True))
            except WorkflowUpdateFailedError as refused:
                raise AssertionError(f"The person's reply to {call.text!r} was refused: {refused.cause}") from None
            return True
        return False
