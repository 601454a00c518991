"""Asks a person about a call before it runs, and records the decision: also that nobody is asked any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.foreign_results import described
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.updates import RECORD_DECISION, RecordDecision
from mulligan.workflows import limits
from mulligan.workflows.people.person_wait import PersonWait, decision_text
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent


async def refuse_if_stopped(agent: RunningAgent, call: StepCall) -> ToolOutcome | None:
    """After a request to stop nothing starts: the result of a call that nobody has approved. None if it may run."""
    if not agent.is_stopped or (call.record.decision and call.record.decision.decision == "approve"):
        return None
    return await decide_on_call(agent, call)


async def decide_on_call(agent: RunningAgent, call: StepCall) -> ToolOutcome | None:
    """Wait for a person's decision. Returns None if the call may run, with the arguments that are then in its record."""
    wait = agent.waits.carried(PersonWait, call.call.id) or _wait(agent, call)
    decision = call.record.decision = await wait.decided(agent.waits, agent.conversation.event_log, agent.inbox.stop)
    call.is_stopped = decision.decision == "stopped"
    agent.conversation.event_log.decided(call.index)
    if wait.edited_arguments is not None:
        agent.conversation.edit_call(call.index, wait.edited_arguments, wait.edited_digest)
    return await record_decision(agent, call, step=wait.step, started=wait.since, answer=wait.answer)


async def record_decision(
    agent: RunningAgent, call: StepCall, *, step: int, started: float, answer: str | None = None
) -> ToolOutcome | None:
    """Write the span of a decision that the call's record has. Returns its result, or None if the call may run.

    `started`: when the call began to wait, in seconds since the epoch. `answer`: of a person, if it has asked a question.
    """
    assert call.decision is not None
    decision = call.decision.decision
    is_approved = decision == "approve"
    request = RecordDecision.like(
        agent.call_request(call),
        call=call.call,
        step=step,
        answer=answer,
        run=is_approved,
        started=started,
        with_request=call.waits_for != call.prepared.waits_for or not call.is_request_written,
    )
    summary = f"{call.call.name}: {decision}"
    recorded = await agent.activity(RECORD_DECISION, request, ToolOutcome, summary=summary)
    return None if is_approved else recorded


def _wait(agent: RunningAgent, call: StepCall) -> PersonWait:
    reason, facts = call.waits_for or "approval", call.facts
    text = decision_text(call.call, call.record.arguments, is_question=reason == "question")
    if (foreign := call.foreign_results) is not None:
        text = f"{text}\n{described(foreign.results, foreign.count)}"
    return PersonWait(
        key=call.call.id,
        call=call.call,
        index=call.index,
        reason=reason,
        arguments=call.record.arguments,
        digest=next(iter(call.record.argument_digests), None),
        text=text,
        role=call.role,
        user=agent.turn.input.user,
        untrusted=foreign.results if foreign else [],
        earlier=agent.conversation.earlier_decisions(call.call.name, limits.EARLIER_DECISIONS),
        step=agent.turn.result.steps,
        timeout=call.timeout,
        reminder=call.reminder,
        runs_elsewhere=facts is not None and (facts.task_queue is not None or facts.agent is not None),
    )
