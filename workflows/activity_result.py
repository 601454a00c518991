"""Reads the result of an activity, which a worker of another version, or another program, may have written.

The SDK would read it before any code of the workflow runs, and what it cannot read fails the workflow task again and again.
Here it is a failed activity, with `InvalidActivityResultError` as its cause.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar, cast

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from mulligan.errors import InvalidActivityResultError
from mulligan.run_input import TRACEPARENT
from mulligan.schema.json_limits import JsonMeter
from mulligan.values import RunResult, Took, Usage
from mulligan.wire.agent_facts import AgentFacts, OpenedRun
from mulligan.wire.agent_list import AgentList
from mulligan.wire.background_response import ResponseState, StartedResponse
from mulligan.wire.compaction_request import Compacted
from mulligan.wire.model_call import ModelAnswer
from mulligan.wire.read_payload import read_payloads
from mulligan.wire.tool_call import ToolOutcome

__all__ = ["can_be_added", "read_result"]

Result = TypeVar("Result", bound=BaseModel)

MOST_DEPTH = 180
"""Levels of JSON. pydantic reads about 200, and what the run carries adds some."""
MOST_COUNT = 10**15
"""Tokens, attempts, steps, bytes: more is no count, and a larger integer cannot be multiplied by a price."""
MOST_INT = 2**31 - 1
"""Temporal's counts have 32 bits."""
MOST_SECONDS = 10**10
"""About 300 years: Temporal's timeouts cannot be longer."""
MOST_USD = 10**12
NAME_BYTES = 1_000
"""UTF-8 bytes of a task queue: Temporal refuses commands with a longer one."""


def read_result(activity: str, raw: RawValue | None, result_type: type[Result]) -> Result:
    """The result of an activity, or of the workflow of a sub-agent.

    Raises:
        ActivityError: it is not such a result, or one that the run cannot use; its cause is an InvalidActivityResultError.
    """
    if raw is None:
        raise _as_failed_activity(activity, "there is none")
    fault = _fault_of_json(raw.payload.data)
    if fault is None:
        try:
            [result] = read_payloads(workflow.payload_converter(), [raw.payload], [result_type])
            fault = _fault_of(result) if isinstance(result, result_type) else "it is of another type"
        except ValueError as error:
            fault = str(error)
    if fault is None:
        return cast("Result", result)
    raise _as_failed_activity(activity, fault)


def can_be_added(used: RunResult | Took) -> bool:
    """Whether the numbers of another run can be added to this one's."""
    return (
        _are_tokens(used.usage)
        and _are_between(0, MOST_COUNT, [used.steps, used.sub_runs])
        and (_are_between(0, MOST_USD, [used.cost]))
    )


def _as_failed_activity(activity: str, fault: str) -> ActivityError:
    error = ActivityError(
        f"The result of the activity {activity} cannot be used",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=activity,
        activity_id="",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    message = (
        f"The result of the activity {activity!r} cannot be used: {fault}. A worker of another version, or another "
        "program, has written it."
    )
    # Not the error itself: a caller that raises it from this one would close a circle of causes.
    error.__cause__ = ApplicationError(message, type=InvalidActivityResultError.__name__, non_retryable=True)
    return error


def _fault_of_json(data: bytes) -> str | None:
    meter = JsonMeter()
    meter.add(data)
    return f"it is nested more than {MOST_DEPTH} levels deep" if meter.depth > MOST_DEPTH else None


def _fault_of(result: BaseModel) -> str | None:
    """Why the workflow could not use a result, though each of its fields has the right type; None if it can."""
    if isinstance(result, OpenedRun):
        return _fault_of_facts(result.facts) if TRACEPARENT.fullmatch(result.trace) else "it has no trace"
    if isinstance(result, ModelAnswer):
        return _fault_of_answer(result)
    if isinstance(result, StartedResponse):
        return None if result.id and 0 < result.attempt <= MOST_INT else "the response has no id, or no attempt"
    if isinstance(result, ResponseState):
        if (result.status == "completed") != (result.answer is not None):
            return "a response has an answer exactly if it is completed"
        return _fault_of_answer(result.answer) if result.answer else None
    if isinstance(result, ToolOutcome):
        return None if 0 <= result.attempts <= MOST_INT else "its attempts are no count"
    if isinstance(result, Compacted):
        return None if _are_tokens(result.usage) else "its usage is no number of tokens"
    if isinstance(result, RunResult):
        return None if can_be_added(result) else "its numbers cannot be added up"
    if isinstance(result, AgentList):
        return None if all(isinstance(each.get("name"), str) for each in result.agents) else "an agent has no name"
    return None


def _fault_of_facts(facts: AgentFacts) -> str | None:
    tools = facts.tools.values()
    # These are compared only; the others go to Temporal, or are counted down to.
    large = [facts.max_total_tokens, facts.carry_bytes, facts.compact_at, *(tool.max_total_tokens for tool in tools)]
    small = [facts.max_steps, facts.max_repeats, facts.max_sub_runs, facts.model_attempts]
    small += [count for tool in tools for count in (tool.attempts, tool.max_depth)]
    seconds = [facts.model_timeout, facts.model_patience, facts.fallback_patience, facts.background_timeout]
    seconds += [each for tool in tools for each in (tool.timeout, tool.queue_timeout)]
    seconds += [each for tool in tools for each in (tool.approval_timeout, tool.approval_reminder)]
    queues = [facts.model_task_queue, *(tool.task_queue for tool in tools)]
    if not _are_between(0, MOST_COUNT, large) or not _are_between(0, MOST_INT, small):
        return "a limit is no count"
    if not _are_between(0, MOST_SECONDS, seconds):
        return "a time is no number of seconds"
    if not _are_between(0, MOST_USD, [facts.max_cost, *(tool.max_cost for tool in tools)]):
        return "a limit is no number of USD"
    if not all(queue is None or 0 < len(queue.encode()) <= NAME_BYTES for queue in queues):
        return "a task queue has no name, or one that is too long"
    return None


def _are_tokens(usage: Usage) -> bool:
    return _are_between(0, MOST_COUNT, usage.model_dump().values())


def _are_between(least: int, most: int, values: Iterable[float | None]) -> bool:
    return all(value is None or least <= value <= most for value in values)  # NaN is not


def _fault_of_answer(answer: ModelAnswer) -> str | None:
    calls = answer.message.tool_calls
    if len(answer.prepared) != len(calls):
        return "it does not say for each call what came of it"
    if not all(call.id for call in calls) or len({call.id for call in calls}) < len(calls):
        return "two calls have the same id, or one has none"
    if not all(map(_are_tokens, [answer.usage, *answer.others.values()])):
        return "its usage is no number of tokens"
    # Arguments that are left out are those of the message's text.
    texts = [
        call.arguments
        for call, prepared in zip(calls, answer.prepared, strict=True)
        if prepared.arguments is None and prepared.error is None
    ]
    if (output := answer.output) is not None and output.as_said:
        if output.call is None:
            texts.append(answer.message.text)
        elif not 0 <= output.call < len(calls):
            return "its output is that of a call which it does not have"
    return None if all(map(_is_json, texts)) else "arguments that it calls valid are not JSON"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
