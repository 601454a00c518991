"""What a run has executed itself, for its undo (undo_workflow.py): the query that undos read it by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from temporalio import workflow

from mulligan.once import call_digest
from mulligan.values import AssistantMessage, ToolCall
from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.checked_result import MOST_INT
from mulligan.wire.shorten import json_size
from mulligan.wire.times import iso
from mulligan.wire.undo import (
    EXECUTED_QUERY,
    CallValues,
    ExecutedCall,
    ExecutedPage,
    ExecutedRequest,
    SubRunOfCall,
    UndoSchedule,
)
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.event_log import Entry
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.feature import Feature
from mulligan.workflows.turn import Turn
from mulligan.workflows.undo.undo_workflow import SCHEDULES, UndoWorkflow

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.workflow_agents import WorkflowAgents

FIRST_AGENT = "0"
_LOST = ("tool_lost", "tool_timeout", "denied")
"""Kinds of errors of a started call, after which nobody knows whether it has done its work: a deferred call whose run was
stopped is `denied`."""
_DONE = (None, "invalid_result")
"""Kinds after which it has: `invalid_result` has run, and only its result cannot be used."""


WORKFLOWS = (UndoWorkflow,)


class Undo(Feature):
    """Answers what a run has executed. A run does nothing else for its undo, so no turn uses it."""

    option_type = Annotated[int, Field(ge=1, le=MOST_INT)]

    schedules: ClassVar = SCHEDULES

    @classmethod
    def is_used(cls, turn: Turn) -> bool:  # noqa: ARG003
        """No method of a feature is needed."""
        return False

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the handler of the query."""

        def executed(request: ExecutedRequest) -> ExecutedPage:
            """A page of the calls that the run has executed itself, the newest first."""
            agent = agents.find(FIRST_AGENT)
            return ExecutedPage() if agent is None or not agent.has_turn else _ExecutedCalls(agent).page(request)

        if workflow.get_query_handler(EXECUTED_QUERY) is None:
            workflow.set_query_handler(EXECUTED_QUERY, executed)


class _ExecutedCalls:
    """The calls of the events that this workflow run of the chain has."""

    def __init__(self, agent: RunningAgent) -> None:
        self._agent = agent
        self._conversation: Conversation = agent.conversation
        self._log = self._conversation.event_log
        self._results = self._conversation.results()
        entries = self._log.entries
        self._settled = {(each.step, each.call) for each in entries if each.type == "tool_call_settled"}

    def page(self, request: ExecutedRequest) -> ExecutedPage:
        log, earlier = self._log, self._conversation.earlier
        page = ExecutedPage(where=self._agent.context, metadata=self._agent.turn.input.metadata)
        if not request.values:
            page.sub_runs = list(self._sub_runs())
        before = log.total if request.before is None else min(request.before, log.total)
        size = 0
        for offset in range(before - 1, log.first - 1, -1):
            entry = log.entries[offset - log.first]
            each = self._executed(entry, offset)
            if each is None:
                continue
            values = self._values(entry, offset) if request.values else None
            size += json_size((values or each).model_dump(mode="json"))
            if size > limits.PAGE_BYTES and page.calls:
                page.next = offset + 1
                return page
            page.calls.append(each)
            if values is not None:
                page.values.append(values)
        # What another workflow has is that of the run which this one was forked from, and is not this run's to undo.
        if log.first and earlier is not None and earlier.workflow_id is None:
            page.next, page.earlier = log.first, earlier.run_id
        return page

    def _sub_runs(self) -> Iterator[SubRunOfCall]:
        conversation = self._conversation
        for number, step in enumerate(conversation.steps, conversation.first_step + 1):
            if number <= conversation.shared_steps:
                continue
            answer = conversation.messages[step.at]
            assert isinstance(answer, AssistantMessage)
            own = [(call.id, record) for call, record in zip(answer.tool_calls, step.calls, strict=False)]
            for call_id, record in (*own, *((each.call.id, each.record) for each in step.inner)):
                if record.run is not None and record.run.run_id:
                    yield SubRunOfCall(id=record.run.id, run_id=record.run.run_id, step=number, call_id=call_id)

    def _executed(self, entry: Entry, offset: int) -> ExecutedCall | None:
        """The call of an event, if the run has executed it, and it stands for itself."""
        is_settled = entry.type == "tool_call_settled"
        is_cut_off = entry.type == "tool_call_started" and (entry.step, entry.call) not in self._settled
        if not (is_settled or is_cut_off) or (known := self._call(entry)) is None:
            return None
        call, record, agent, facts = known
        # The runs of sub-agents have calls of their own, and so have scripts. Tools of features change nothing outside.
        if record.run is not None or (facts is not None and (facts.agent or facts.feature)):
            return None
        kind: str | None = "tool_lost"
        if is_settled:
            result = self._results.get(call.id)
            kind = result.error.kind if result is not None and result.error is not None else None
            if kind not in (*_DONE, *_LOST) and record.attempts > 1:
                kind = "tool_lost"  # the last attempt did not do its work; an earlier one may have, and was lost
            if record.recorded or not record.attempts or kind not in (*_DONE, *_LOST):
                return None
        return ExecutedCall(
            offset=offset,
            at=iso(entry.at / 1000),
            call_id=call.id,
            name=call.name,
            agent=agent,
            step=entry.step,
            lost=kind if kind in _LOST else None,
            schedule=_schedule(facts),
            role=(record.decision.role if record.decision else None) or (facts.role if facts else None),
        )

    def _call(self, entry: Entry) -> tuple[ToolCall, CallRecord, str, ToolFacts | None] | None:
        conversation = self._conversation
        at = entry.step - 1 - conversation.first_step
        if entry.call is None or not 0 <= at < len(conversation.steps):
            return None
        step = conversation.steps[at]
        if entry.call < len(step.calls):
            answer = conversation.messages[step.at]
            assert isinstance(answer, AssistantMessage)
            call, record = answer.tool_calls[entry.call], step.calls[entry.call]
        else:
            inner = step.inner[entry.call - len(step.calls)]
            call, record = inner.call, inner.record
        agent = step.agent or self._agent.name
        facts = self._agent.turn.facts_of(agent)
        return call, record, agent, facts.tools.get(call.name) if facts else None

    def _values(self, entry: Entry, offset: int) -> CallValues:
        known = self._call(entry)
        assert known is not None
        call, record, *_ = known
        result = self._results.get(call.id)
        values = CallValues(
            offset=offset,
            digest=call_digest(call.name, record.digests[0]),
            arguments=record.arguments,
            text=result.text if result is not None and result.error is None else None,
            has_parts=result is not None and bool(result.content),
            is_cut=record.is_cut and result is not None and result.error is None,
        )
        if json_size(values.model_dump(mode="json")) > limits.EVENT_BYTES:
            return values.model_copy(update={"arguments": None, "text": None, "too_large": True})
        return values


def _schedule(facts: ToolFacts | None) -> UndoSchedule | None:
    attempts: Any = facts.features.get(Undo.feature) if facts else None
    if facts is None or attempts is None:
        return None
    return UndoSchedule(
        attempts=attempts,
        timeout=facts.timeout,
        task_queue=facts.task_queue,
        queue_timeout=facts.queue_timeout,
    )
