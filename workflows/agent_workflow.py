"""`AgentWorkflow`: the door that clients start. Input checks, queries, continue-as-new; the loop is DurableAgent's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from mulligan.run_input import check
from mulligan.wire.compressed_input import decompressed
from mulligan.wire.resume_page import RESUME_STATE_QUERY
from mulligan.workflows import limits
from mulligan.workflows.agent_registry import WorkflowAgents
from mulligan.workflows.conversation.continue_as_new_state import InvalidStateError
from mulligan.workflows.conversation.records import Earlier
from mulligan.workflows.durable_agent import DurableAgent
from mulligan.workflows.people.update_handlers import FIRST

NO_INPUT = RawValue(Payload())


# No code of users runs in it (theirs runs in activities) and ours is tried in the sandbox by tests/replay. Without it a
# step takes a third less of the worker's time, and an open run a third less of its memory.
@workflow.defn(name="AgentWorkflow", sandboxed=False)
class AgentWorkflow:
    """One run of an agent.

    Its one argument is taken raw: whatever a client in any language sends is looked at inside, so that wrong input
    fails the run with a sentence, and never a workflow task for ever. JSON is a RunInput, also where it is compressed
    with zstd; other bytes are what the run before carried over (one argument for both, as the SDK drops all type hints
    where their count does not match).
    """

    def __init__(self) -> None:
        self._agent: DurableAgent | None = None
        # Before the agent is there, as people may speak to the run in the moment of its beginning.
        self._handlers = WorkflowAgents.of_this_workflow().handlers
        self._handlers.inbox(FIRST)

    @workflow.run
    async def run(self, start: RawValue = NO_INPUT) -> dict[str, Any]:
        """RunInput in, RunResult out, both as JSON objects."""
        is_bytes = start.payload.metadata.get("encoding") == b"binary/plain"
        agent: DurableAgent | None = None
        if is_bytes and start.payload.data and workflow.info().continued_run_id is not None:
            # A cron's next run, or one that is tried again, is a continued one too: it is given the first one's input.
            with suppress(InvalidStateError):
                agent = self._agent = DurableAgent(state=start.payload.data)
        if agent is None:
            run_input = check(decompressed(start.payload.data))
            agent = self._agent = DurableAgent(run_input.agent)
            resumed_from = run_input.resumed_from
            memo = {"agent": run_input.agent}
            workflow.upsert_memo(memo | ({"resumed_from": resumed_from.model_dump()} if resumed_from else {}))
            await agent.begin(run_input)
        while not await agent.step():
            if agent.is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(agent.carry())
        self._handlers.close()
        result = await agent.finish()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result.model_dump(mode="json")

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """Where the run stands."""
        return self._agent.progress.model_dump(mode="json") if self._agent else {"status": "failed"}

    @workflow.query
    def messages(self, since: int = 0, limit: int = 100) -> dict[str, Any]:
        """The conversation, from message `since` on: as many as fit into an answer."""
        if self._agent is None:
            return {"messages": [], "next": None, "total": 0}
        conversation = self._agent.conversation
        since, first = max(0, since), conversation.first
        if conversation.earlier and since < first:
            return _earlier("messages", first, first + len(conversation.messages), conversation.earlier)
        page = conversation.page(since, max(1, limit), limits.PAGE_BYTES)
        return _page("messages", page, since, first + len(conversation.messages))

    @workflow.query
    def steps(self, since: int = 0, limit: int = 100) -> dict[str, Any]:
        """The run's steps, from number `since` (counted from 0) on: as many as fit into an answer."""
        if self._agent is None:
            return {"steps": [], "next": None, "total": 0}
        conversation = self._agent.conversation
        since, first = max(0, since), conversation.first_step
        if conversation.earlier and since < first:
            return _earlier("steps", first, first + len(conversation.steps), conversation.earlier)
        page = conversation.step_page(since, max(1, limit), limits.PAGE_BYTES)
        return _page("steps", page, since, first + len(conversation.steps))

    @workflow.query(name=RESUME_STATE_QUERY)
    def left(self, since: int = 0) -> dict[str, Any] | None:
        """What another run can go on with, from message `since` on; None where there was nothing to begin with."""
        left = self._agent.left(since) if self._agent else None
        return left.model_dump(mode="json") if left else None

    @workflow.query
    def events(self, since: int = 0, limit: int = 100) -> dict[str, Any]:
        """What happened, from event `since` on: as much as fits into an answer."""
        return self._agent.events(since, limit) if self._agent else {"events": [], "next": None, "total": 0}


def _page(name: str, page: Sequence[BaseModel], since: int, total: int) -> dict[str, Any]:
    """A page of a query's answer; `next` is where to go on, null at the end."""
    end = since + len(page)
    shown = [item.model_dump(mode="json") for item in page]
    return {name: shown, "next": end if end < total else None, "total": total}


def _earlier(name: str, first: int, total: int, earlier: Earlier) -> dict[str, Any]:
    """An empty page: what was asked for was summed up, and a run before this one holds it, all that is before `next`."""
    return {name: [], "next": first, "total": total, "earlier": {"run_id": earlier.run_id}}
