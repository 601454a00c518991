"""The handler of the update `response_ended`: a webhook of the provider says that a background response has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.wire.background_response import RESPONSE_ENDED, ResponseEnded
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.parse_update import parse_update

__all__ = ["ResponseHandler"]


class ResponseHandler:
    """`inboxes`: those of the workflow's agents, by their keys. `until_ready` ends when a continued run has its state.

    `trace_id` returns that of the open turn of the agent with a key; None if it has none.
    """

    def __init__(
        self,
        inboxes: Mapping[str, Inbox],
        trace_id: Callable[[str], str | None],
        is_ready: Callable[[], bool],
        until_ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._inboxes, self._trace_id = inboxes, trace_id
        self._is_ready, self._until_ready = is_ready, until_ready
        if workflow.get_update_handler(RESPONSE_ENDED) is None:
            workflow.set_update_handler(RESPONSE_ENDED, self.response_ended, validator=self._check)

    async def response_ended(self, argument: Any = None) -> dict[str, Any]:
        """Read the response now, and not at the next poll."""
        ended = parse_update(ResponseEnded, argument)
        await self._until_ready()
        self._note(ended)
        return {"accepted": True}

    def _check(self, argument: Any = None) -> None:
        ended = parse_update(ResponseEnded, argument)
        if self._is_ready() and not self._is_awaited(ended):
            raise UpdateRefusedError("The run does not wait for this response.")

    def _is_awaited(self, ended: ResponseEnded) -> bool:
        inbox = self._inboxes.get(ended.conversation)
        if inbox is None or not (inbox.response.is_creating or inbox.response.id == ended.response_id):
            return False
        return self._trace_id(ended.conversation) == ended.trace_id

    def _note(self, ended: ResponseEnded) -> None:
        if self._is_awaited(ended):
            self._inboxes[ended.conversation].response.note_ended(ended.response_id)
