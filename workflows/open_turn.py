"""Opens a turn: an activity resolves the agent on a worker, pins its facts, and opens the trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

from mulligan.errors import InvalidRunInputError, error_of
from mulligan.run_input import TRACEPARENT, check_run_input
from mulligan.wire.agent_facts import OPEN_RUN, OpenedRun, OpenRun
from mulligan.wire.compressed_input import LONGEST_MESSAGE
from mulligan.wire.run_context import CALL_MEMO, TRACE_HEADER
from mulligan.wire.run_priority import run_priority
from mulligan.wire.shorten import json_size
from mulligan.wire.start_input import StartInput
from mulligan.workflows import limits
from mulligan.workflows.agent_route import is_declined
from mulligan.workflows.feature_facts import check_feature_facts
from mulligan.workflows.fork_point import begin_fork
from mulligan.workflows.kept_cancellation import kept_cancellation
from mulligan.workflows.memo import memo_json
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.shown_wait import WorkerWait
from mulligan.workflows.turn import Turn

_CALL_ID_CHARS = 1_000


async def open_turn(agent: RunningAgent, run_input: StartInput) -> Turn:
    """Add the messages of a turn's input to the conversation, and open the turn.

    Raises:
        InvalidRunInputError: the turn before is open, there is no such agent, its model is not a valid one, a part of the
            input is too large, or what it says of another run is not true.
    """
    check_run_input(run_input)
    if agent.is_turn_open or agent.is_closing:
        raise InvalidRunInputError(
            f"A turn of this conversation with the agent {agent.name!r} is open, and a conversation has one turn at a time: "
            "wait for its end before the next one, or use a DurableAgent for each of them."
        )
    agent.input = run_input
    for feature in agent.with_method("begin_turn"):
        agent.input = run_input = feature.begin_turn(run_input)
    agent.status = "running"
    agent.route.priority = run_priority(run_input)
    agent.inbox.begin_turn()
    first_new = len(agent.conversation.messages)
    agent.conversation.append_request(run_input.new_messages)
    number = agent.turn.number + 1 if agent.has_turn else 1
    request = _request(agent, run_input, number, first_new)
    try:
        with kept_cancellation(), agent.waits.entered(WorkerWait(key="", agent=agent.name, opens=True)):
            opened = await agent.activity(OPEN_RUN, request, OpenedRun, summary=run_input.agent)
            agent.take_features(opened.facts)
            check_feature_facts(agent.features, opened.facts, OPEN_RUN)
        turn = Turn.opened(number, run_input, opened)
        turn.first_step = agent.conversation.next_step
        if run_input.fork is not None:
            begin_fork(agent, turn, run_input.fork)
    except (FailureError, asyncio.CancelledError) as error:
        agent.add_new_messages()
        agent.status = "cancelled" if is_cancelled_exception(error) else "failed"
        agent.inbox.fail_turn()
        _raise_typed(error)
        raise
    agent.turn = turn
    return turn


def _request(agent: RunningAgent, run_input: StartInput, number: int, first_new: int) -> OpenRun:
    """The activity's input. A run's input that is large is left out: the worker queries for it."""
    conversation, info = agent.conversation, workflow.info()
    added = range(first_new, len(conversation.messages))
    longest = max((conversation.size(index, index + 1) for index in added), default=0)
    facts = run_input.carried.facts
    size = conversation.size(first_new) + limits.metadata_bytes(run_input)
    size += json_size(facts) if facts else 0
    return OpenRun(
        agent=run_input.agent,
        conversation=agent.key,
        turn=number,
        input=run_input.for_opening if size <= limits.INLINE_BYTES else None,
        first_run_id=info.first_execution_run_id,
        parent=run_input.traceparent or _traceparent_in(info.headers),
        call_id=_call_id_in_memo() if info.parent else None,
        longest_message=longest if longest > LONGEST_MESSAGE else None,
    )


def _raise_typed(error: BaseException) -> None:
    """Raise the typed error of an activity that has failed, if there is one."""
    if not isinstance(error, ActivityError):
        return
    if is_declined(error):
        message = f"{getattr(error.cause, 'message', '')} Nor do the other workers of the task queue serve it."
        raise InvalidRunInputError(message) from None
    if (typed := error_of(error)) is not None:
        raise typed from error


def _call_id_in_memo() -> str | None:
    """The id of the sub-agent's call that started the run, from the memo; None if another program started it."""
    call_id = memo_json(CALL_MEMO)
    return call_id if isinstance(call_id, str) and len(call_id) <= _CALL_ID_CHARS else None


def _traceparent_in(headers: Mapping[str, Payload]) -> str | None:
    """The W3C traceparent in the headers that the client sent, by our interceptor or by the SDK's own."""
    payload = headers.get(TRACE_HEADER)
    if payload is None:
        return None
    try:
        carrier = json.loads(payload.data)
    except (ValueError, RecursionError):
        return None
    traceparent = carrier.get("traceparent") if isinstance(carrier, dict) else None
    return traceparent if isinstance(traceparent, str) and TRACEPARENT.fullmatch(traceparent) else None
