"""Whatever an activity or a sub-agent's run returns or fails with, no activation of the run fails: the run fails with a typed error.

A worker of another version may have returned it, or somebody has completed the activity by hand (`temporal activity complete`).
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1.workflow_pb2 import TIMEOUT_TYPE_START_TO_CLOSE
from temporalio.api.failure.v1 import ActivityFailureInfo, ApplicationFailureInfo, Failure, TimeoutFailureInfo
from temporalio.bridge.proto.activity_result import ActivityResolution, Success
from temporalio.bridge.proto.activity_result import Failure as ActivityFailed
from temporalio.bridge.proto.child_workflow import ChildWorkflowResult
from temporalio.bridge.proto.child_workflow import Failure as ChildFailed
from temporalio.bridge.proto.child_workflow import Success as ChildSuccess
from temporalio.bridge.proto.workflow_activation import (
    FireTimer,
    ResolveActivity,
    ResolveChildWorkflowExecution,
    ResolveChildWorkflowExecutionStart,
    ResolveChildWorkflowExecutionStartSuccess,
)

from mulligan import wire
from mulligan.wire.budgets import OVER_BUDGET
from mulligan.wire.model_call import NOT_CALLED
from mulligan.workflows.conversation.continue_as_new import encode_state
from tests.support.examples import examples
from tests.unit.test_entrances import Instance, as_json, deep, payload

USAGE = {"input_tokens": 10, "output_tokens": 5}
FACTS: dict[str, Any] = {
    "model": "openai:a",
    "fallbacks": ["openai:b"],
    "fallback_patience": 10.0,
    "max_cost": 10.0,
    "prices": {"openai:a": {"input": 1.0, "output": 2.0, "cached_input": 0.5}},
    "max_steps": 4,
    "max_repeats": 5,
    "max_total_tokens": 100_000,
    "max_sub_runs": 10,
    "model_timeout": 60.0,
    "model_patience": 60.0,
    "model_attempts": 3,
    "features": {"compaction": {"at": 20, "model": None}},
    "carry_bytes": None,
    "tools": {
        "plain": {"timeout": 5.0, "attempts": 2, "queue_timeout": 9.0, "task_queue": "q"},
        "own": {"timeout": 5.0, "local": True},
        "ask": {"timeout": 5.0, "may_ask_person": True, "features": {"approvals": {"timeout": 60.0}}},
        "sub": {"timeout": 50.0, "agent": "other", "max_depth": 3, "share_budget": True, "max_total_tokens": 50, "max_cost": 1.0},
    },
    "definition": {"instructions": "i", "tools": [{"name": "plain", "description": "d", "parameters": {"type": "object"}}]},
    "digest": "d",
}  # fmt: skip
OPENED = {"facts": FACTS, "trace": f"00-{'a' * 32}-{'b' * 16}-01"}
CALLS = [
    {"id": "c0", "name": "plain", "arguments": '{"b":  1}'},
    {"id": "c1", "name": "own", "compact": {"prompt": "p"}},
    {"id": "c2", "name": "ask", "spaced": {"prompt": "p"}},
    {"id": "c3", "name": "sub", "spaced": {"prompt": "p"}},
    {"id": "c4", "name": "gone", "arguments": '{"prompt": "p"}'},
]
ANSWER = {
    "message": {"role": "assistant", "text": "t", "tool_calls": CALLS, "provider_data": {"items": [{"a": 1}]}},
    "prepared": [
        {"arguments": {"a": 1}, "repairs": [{"by": "fix", "before": {"b": 1}, "after": {"a": 1}}]},
        {},
        {"waits_for": "approval"},
        {},
        {"text": "no such tool", "error": {"kind": "unknown_tool", "message": "no such tool"}, "key": "k"},
    ],
    "usage": USAGE,
    "usage_of_repairs": {"openai:b": USAGE},
}
LAST = {
    "message": {"role": "assistant", "text": '{"a": 1}'},
    "usage": USAGE,
    "finish_reason": "stop",
    "output": {"type": "A", "is_verbatim": True},
}
ERROR = {"kind": "tool_error", "message": "m"}
TYPED = {"type": "UnknownToolError", "message": "m", "fields": {"kind": "unknown_tool", "available": ["a"], "call_id": "c", "source": {"type": "T", "message": "m"}}}  # fmt: skip
OUTCOME = {"text": "done", "error": ERROR, "attempts": 1}
ASKS = {"text": "", "questions": {"questions": [{"key": "k", "text": "?", "answer_schema": {"type": "object", "properties": {}}}], "state": "s"}}  # fmt: skip
NAMED = {"trace": OPENED["trace"], "call_id": "c", "name": "n", "step": 1, "started": 1.0}
DECISION = {"kind": "approval", "decision": "approve", "since": "2026-11-22T00:00:00Z", "at": "2026-11-22T00:00:00Z"}
RUN_RESULT = {"status": "completed", "output": "o", "steps": 1, "usage": USAGE, "cost": 0.1, "sub_runs": 1}
GOOD_RESULTS: dict[str, list[Any]] = {
    "open_run": [OPENED],
    "call_model": [ANSWER, LAST, {**LAST, "rejected": {"text": "t", "error": ERROR}, "output": None}],
    "call_tool": [OUTCOME, ASKS, {"attempts": 1, "failure_without_policy": TYPED}, {"failure": TYPED}],
    "record_failed_call": [OUTCOME, {"failure": TYPED}],
    "record_sub_run": [{**OUTCOME, **NAMED, "is_text_unchanged": True}],
    "record_decision": [{**OUTCOME, **NAMED, "decision": DECISION}],
    "check_edit": [{"arguments": {"a": 1}}, {"refused": "no"}],
    "check_answer": [{"content": {"a": 1}}, {"refused": "no"}],
    "compact_conversation": [{"heading": "h", "summary": "s", "usage": USAGE}],
    "finish_run": [None],
    "AgentWorkflow": [RUN_RESULT],
}

EARLIER = [
    {"role": role, "text": "x" * 100}
    for role in ("user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant")
]


@dataclass(frozen=True)
class Deep:
    """A list of lists. Hypothesis cannot print a real one."""

    levels: int


def as_payload(value: Any) -> Payload:
    return payload(json.dumps(value, default=lambda given: json.loads(deep(given.levels))).encode())


VALUES = (
    st.sampled_from([None, True, -1, 0, 10**19, 10**400, -(10**400), 1e308, -0.5, "", "x", "\ud800", "x" * 3_000, [], {}, [[]]])
    | st.builds(Deep, st.sampled_from([90, 170, 185, 250]))
    | st.sampled_from([TYPED, ERROR, USAGE, CALLS, ANSWER, FACTS, '{"a":', "c1", {"type": ["a"], "fields": 5}])
    | st.text(max_size=3)
)  # fmt: skip


def paths_in(value: Any) -> Iterator[list[Any]]:
    yield []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        for path in paths_in(inner):
            yield [key, *path]


@st.composite
def mutated(draw: st.DrawFn, bases: Sequence[Any]) -> Any:
    """A result with up to three parts replaced or removed."""
    value = copy.deepcopy(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(paths_in(value))))
        if not path:
            return draw(VALUES)
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.booleans()):
            del inner[path[-1]]
        else:
            inner[path[-1]] = copy.deepcopy(draw(VALUES))
    return value


def results(activity: str) -> st.SearchStrategy[Payload | None]:
    """Payloads for an activity: most are near to a good one."""
    near = mutated(GOOD_RESULTS[activity]).map(as_payload)
    odd = st.sampled_from(
        [deep(150), deep(5_000), b"1e400", b"9" * 5_000, b"NaN", b"", b"\xff", encode_state({"a": 1})]
    )
    encodings = st.sampled_from([b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf", b"unheard-of", b""])
    return near | st.builds(payload, odd, encodings) | st.none()


def failure_with(details: Payload | None, kind: str) -> Failure:
    found = Payloads(payloads=[details] if details else [])
    if kind == "timeout":
        cause = Failure(
            message="m",
            timeout_failure_info=TimeoutFailureInfo(
                timeout_type=TIMEOUT_TYPE_START_TO_CLOSE, last_heartbeat_details=found
            ),
        )
    else:
        cause = Failure(message="m", application_failure_info=ApplicationFailureInfo(type=kind, details=found))
    return Failure(message="failed", activity_failure_info=ActivityFailureInfo(), cause=cause)


KINDS_NOT_CALLED = sorted(
    {
        value
        for module in pkgutil.iter_modules(wire.__path__, f"{wire.__name__}.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, str) and value.startswith(NOT_CALLED)
    }
)
"""All reasons for which a worker does not call a model; one of them, the bare prefix, no feature knows."""
FAILURES = st.builds(
    failure_with,
    results("call_model"),
    st.sampled_from(["timeout", "Any", "UnknownToolError", "ModelRequestError", "MultipleStructuredOutputsError", "AgentNotServed", *KINDS_NOT_CALLED]),
)  # fmt: skip
REPLIES = {name: st.lists(results(name) | FAILURES, min_size=1, max_size=3) for name in GOOD_RESULTS}


class Worker:
    """Resolves what the workflow schedules: with `replies` by their activity, then with good ones."""

    def __init__(self, run: Instance, replies: Mapping[str, Sequence[Payload | Failure | None]]) -> None:
        self._run = run
        self._replies = {name: list(given) for name, given in replies.items()}
        self._done = 0
        self._good = {name: iter(bases) for name, bases in GOOD_RESULTS.items()}

    def work(self, rounds: int = 40, *, fires: bool = True) -> None:
        """Until the run ends, waits for a person only, or an activation fails. `fires`: whether timers end."""
        for _ in range(rounds):
            commands, self._done = self._run.commands[self._done :], len(self._run.commands)
            if not commands or self._run.failed:
                return
            for command in commands:
                if fires or not command.HasField("start_timer"):
                    self._resolve(command)

    def _next(self, name: str) -> Payload | Failure | None:
        given = self._replies.get(name)
        return given.pop(0) if given else as_json(next(self._good[name], GOOD_RESULTS[name][-1]))

    def _resolve(self, command: Any) -> None:
        variant = command.WhichOneof("variant")
        if variant in ("schedule_activity", "schedule_local_activity"):
            activity = getattr(command, variant)
            reply = self._next(activity.activity_type)
            if isinstance(reply, Failure):
                result = ActivityResolution(failed=ActivityFailed(failure=reply))
            else:
                result = ActivityResolution(completed=Success(result=reply))
            is_local = variant == "schedule_local_activity"
            self._run.send(resolve_activity=ResolveActivity(seq=activity.seq, result=result, is_local=is_local))
        elif variant == "start_child_workflow_execution":
            seq, child = command.start_child_workflow_execution.seq, self._next("AgentWorkflow")
            started = ResolveChildWorkflowExecutionStartSuccess(run_id="r")
            self._run.send(
                resolve_child_workflow_execution_start=ResolveChildWorkflowExecutionStart(seq=seq, succeeded=started)
            )
            if isinstance(child, Failure):
                ended = ChildWorkflowResult(failed=ChildFailed(failure=child))
            else:
                ended = ChildWorkflowResult(completed=ChildSuccess(result=child))
            self._run.send(resolve_child_workflow_execution=ResolveChildWorkflowExecution(seq=seq, result=ended))
        elif variant == "start_timer":
            self._run.send(fire_timer=FireTimer(seq=command.start_timer.seq))


def run_with(
    replies: Mapping[str, Sequence[Payload | Failure | None]], *, decides: bool = True, **fields: Any
) -> Instance:
    """A run whose activities give these replies. `fields`: more of its input. Queries are answered at its end, as before."""
    run = Instance()
    with contextlib.closing(run):
        run.start(as_json({"agent": "a", "prompt": "hello", "messages": EARLIER, **fields}))
        worker = Worker(run, replies)
        worker.work(fires=False)
        if decides and not run.failed:
            run.update("decide", as_json({"call_id": "c2", "decision": "approve", "arguments": {"a": 2}}))
            worker.work()
        for query in ("progress", "messages", "steps", "events", "pending"):
            run.query(query)
    return run


def test_a_run_whose_activities_give_good_results_completes() -> None:
    """What the tests below change does something: every kind of activity is scheduled in such a run."""
    run = run_with({"call_tool": [as_json({"text": "done"})], "check_edit": [as_json({"arguments": {"a": 2}})]})
    assert run.failed == []
    assert any(each.HasField("complete_workflow_execution") for each in run.commands)
    scheduled = {
        each.schedule_activity.activity_type or each.schedule_local_activity.activity_type for each in run.commands
    }
    assert scheduled >= {"open_run", "call_model", "call_tool", "record_sub_run", "record_decision", "check_edit", "finish_run", "compact_conversation"}  # fmt: skip
    assert any(each.HasField("start_child_workflow_execution") for each in run.commands)


@pytest.mark.parametrize("activity", ["open_run", "call_model"])
@pytest.mark.parametrize("data", [b"[]", b'{"facts": 5}', b"{", deep(5_000)], ids=["list", "field", "no JSON", "deep"])
def test_a_result_that_cannot_be_read_fails_the_run_with_a_typed_error(activity: str, data: bytes) -> None:
    run = run_with({activity: [payload(data)]})
    assert run.failed == []
    failure = run.failure()
    while failure.HasField("cause"):
        failure = failure.cause
    assert failure.application_failure_info.type == "InvalidActivityResultError"
    assert f"The result of the activity '{activity}' cannot be used" in failure.message
    assert failure.application_failure_info.non_retryable  # another attempt would get the same result from history


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "agent: String should have at least 1 character"),
        ("x" * 2_000, "agent: String should have at most 1000 characters"),
    ],
    ids=["empty", "long"],
)
def test_a_sub_agent_whose_run_can_have_no_valid_input_is_not_started(name: str, fault: str) -> None:
    """Another worker has declared it. The call has a result that says so, and the run goes on."""
    tools = {**FACTS["tools"], "sub": {**FACTS["tools"]["sub"], "agent": name}}
    opened = as_json({**OPENED, "facts": {**FACTS, "tools": tools}})
    run = run_with(
        {
            "open_run": [opened],
            "call_tool": [as_json({"text": "done"})],
            "check_edit": [as_json({"arguments": {"a": 2}})],
        }
    )
    assert run.failed == []
    assert not any(each.HasField("start_child_workflow_execution") for each in run.commands)
    [recorded] = [
        json.loads(each.schedule_local_activity.arguments[0].data)
        for each in run.commands
        if each.schedule_local_activity.activity_type == "record_sub_run"
    ]
    assert f"its input is invalid ({fault})" in json.dumps(recorded)
    assert any(each.HasField("complete_workflow_execution") for each in run.commands)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(replies=st.fixed_dictionaries({}, optional=REPLIES))
def test_no_activation_fails_whatever_an_activity_returns(
    replies: Mapping[str, Sequence[Payload | Failure | None]],
) -> None:
    assert run_with(replies).failed == []


@pytest.mark.parametrize("tenant", [None, "acme"], ids=["no tenant", "a tenant"])
@pytest.mark.parametrize("kind", [f"{NOT_CALLED}.Unheard", OVER_BUDGET])
@pytest.mark.parametrize("activity", ["call_model", "compact_conversation"])
def test_a_model_that_was_not_called_for_an_unknown_reason_fails_the_run(
    activity: str, kind: str, tenant: str | None
) -> None:
    """With a typed error that names the reason. A worker of another version has features that this one does not have, and
    other details of those that it has.
    """
    run = run_with({activity: [failure_with(None, kind)]}, tenant=tenant)
    assert run.failed == []
    failure = run.failure()
    assert failure.application_failure_info.type == "ModelUnavailableError"
    assert failure.message == f"openai:a was not called ({kind})."


def test_the_failures_have_each_reason_for_which_a_model_is_not_called() -> None:
    """That of a tenant's budget, and one that no feature of the worker knows."""
    assert {NOT_CALLED, OVER_BUDGET} <= set(KINDS_NOT_CALLED)
    for kind in KINDS_NOT_CALLED:
        find(FAILURES, lambda failure, kind=kind: failure.cause.application_failure_info.type == kind)  # type: ignore[misc]
