"""`AgentWorkflow`: the workflow that clients start. It checks input, answers queries and continues as new."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from mulligan.client.converter import REFUSED
from mulligan.errors import InvalidRunInputError
from mulligan.wire.compressed_input import decompress_input
from mulligan.wire.resume_page import RESUME_STATE_QUERY
from mulligan.wire.start_input import parse_start_input
from mulligan.wire.start_memo import start_memo
from mulligan.workflows.conversation.continue_as_new import InvalidStateError, carried_state, continue_as_new
from mulligan.workflows.durable_agent import DurableAgent
from mulligan.workflows.listed_status import list_version
from mulligan.workflows.people.person_wait import FIRST_AGENT_KEY
from mulligan.workflows.workflow_agents import WorkflowAgents

NO_INPUT = RawValue(Payload())
_ARGUMENT_COUNT = "mulligan-arguments"
"""The key in a payload's metadata of the number of arguments that the run was started with."""


def several_arguments(count: int) -> Payload:
    """The only argument of a run that was started with several: the run fails, and the error says how many."""
    return Payload(metadata={"encoding": b"binary/null", _ARGUMENT_COUNT: str(count).encode()})


# The sandbox is off: users' code runs in activities only, and tests/replay runs this workflow in the sandbox. Without it,
# a step takes a third less of the worker's time, and an open run a third less of its memory.
@workflow.defn(name="AgentWorkflow", sandboxed=False)
class AgentWorkflow:
    """One run of an agent. The loop is in DurableAgent.

    Its argument is a raw payload, checked inside the workflow: wrong input from a client in any language fails the run
    with a message, and never makes a workflow task fail again and again. A JSON payload is a StartInput, which may be
    compressed with zstd. A binary payload is the state of the run before this one. Both are one argument, as the SDK drops
    all type hints if the number of arguments does not match.
    """

    def __init__(self) -> None:
        # The inbox must exist before the agent does, as an update may arrive before `run` begins.
        self._agents = WorkflowAgents.of_this_workflow()
        self._queries, self._handlers = self._agents.queries, self._agents.handlers
        self._handlers.inbox(FIRST_AGENT_KEY)
        self._handlers.is_continued = workflow.info().continued_run_id is not None
        self._handlers.is_ready = not self._handlers.is_continued

    @workflow.run
    async def run(self, start: RawValue = NO_INPUT) -> dict[str, Any]:
        """Run the agent to its end. StartInput in, RunResult out, both as JSON objects."""
        try:
            return await self._run(start)
        except (FailureError, asyncio.CancelledError):
            if not workflow.all_handlers_finished():
                await self._handlers.end()
            raise

    async def _run(self, start: RawValue) -> dict[str, Any]:
        agent: DurableAgent | None = None
        if state := carried_state(start.payload):
            with suppress(InvalidStateError):
                agent = DurableAgent(state=state)
        self._handlers.is_ready = True
        if agent is None:
            if count := start.payload.metadata.get(_ARGUMENT_COUNT):
                raise InvalidRunInputError(
                    f"The run was started with {count.decode(errors='replace')[:20]} arguments; give it one JSON object."
                )
            if start.payload.metadata.get("encoding") == REFUSED:
                raise InvalidRunInputError(f"The run's input cannot be read. {start.payload.data.decode()}")
            run_input = parse_start_input(decompress_input(start.payload.data))
            agent = DurableAgent(run_input.agent)
            workflow.upsert_memo(start_memo(run_input))
            await agent.begin(run_input)
            list_version(self._agents.agent(FIRST_AGENT_KEY).facts.version)
        self._agents.agent(FIRST_AGENT_KEY).may_leave = True
        while not await agent.step():
            if await agent.can_continue_as_new():
                continue_as_new(agent.carry())
        self._handlers.close()
        result = await agent.finish()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result.model_dump(mode="json")

    @workflow.query
    def progress(self, conversation: str | None = None) -> dict[str, Any]:
        """The status of the run, its numbers so far, and what it waits for."""
        return self._queries.progress(conversation)

    @workflow.query
    def messages(self, since: int = 0, limit: int = 100, conversation: str | None = None) -> dict[str, Any]:
        """The conversation's messages from number `since` on: as many as fit."""
        return self._queries.messages(since, limit, conversation)

    @workflow.query
    def steps(self, since: int = 0, limit: int = 100, conversation: str | None = None) -> dict[str, Any]:
        """The run's steps from index `since` on: as many as fit."""
        return self._queries.steps(since, limit, conversation)

    @workflow.query
    def events(
        self, since: int = 0, limit: int = 100, conversation: str | None = None, step: int | None = None
    ) -> dict[str, Any]:
        """The run's events from offset `since` on: as many as fit. `step`: only those of one step."""
        return self._queries.events(since, limit, conversation, step)

    @workflow.query(name=RESUME_STATE_QUERY)
    def resume_state(self, since: int = 0, at: int | None = None, conversation: str | None = None) -> Any:
        """A page of what another run needs to begin with messages of this one, from message `since` on."""
        return self._queries.resume_state(since, at, conversation)
