"""The handler of the update `response_ended`: a webhook of the provider says that a background response has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.wire.background import RESPONSE_ENDED, ResponseEnded
from mulligan.wire.parse_update import parse_update
from mulligan.workflows.background.open_response import OpenResponse

if TYPE_CHECKING:
    from mulligan.workflows.workflow_agents import WorkflowAgents


class ResponseHandler:
    """The handler of one workflow with agents."""

    def __init__(self, agents: WorkflowAgents) -> None:
        self._agents = agents
        if workflow.get_update_handler(RESPONSE_ENDED) is None:
            workflow.set_update_handler(RESPONSE_ENDED, self.response_ended, validator=self._check)

    async def response_ended(self, argument: Any = None) -> dict[str, Any]:
        """Read the response now, and not at the next poll."""
        ended = parse_update(ResponseEnded, argument)
        await self._agents.handlers.until_ready()
        if (response := self._awaited(ended)) is not None:
            response.note_ended(ended.response_id)
        return {"accepted": True}

    def _check(self, argument: Any = None) -> None:
        ended = parse_update(ResponseEnded, argument)
        if self._agents.handlers.is_ready and self._awaited(ended) is None:
            raise UpdateRefusedError("The run does not wait for this response.")

    def _awaited(self, ended: ResponseEnded) -> OpenResponse | None:
        agent = self._agents.find(ended.conversation)
        if agent is None or not agent.has_turn or agent.context.trace.split("-")[1] != ended.trace_id:
            return None
        response = agent.waits.find(OpenResponse, "")
        return response if response is not None and response.is_awaited(ended.response_id) else None
