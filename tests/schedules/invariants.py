"""What must hold at the end of each schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from mulligan.testing._activities import NAMESPACE
from mulligan.testing._engine import Run
from mulligan.testing._workflow_run import Recorded, WorkflowRun
from mulligan.wire.tool_call import CallTool, idempotency_key
from tests.schedules.cases import book, charge
from tests.schedules.replay import json_of, replay
from tests.schedules.world import ROOT, World

ONCE = {book.name, charge.name}
_STARTS_WORK = ("call_model", "call_tool")


def faults_of(world: World, live_from: int | None) -> tuple[list[str], str]:
    """A sentence for each rule that the schedule broke, and how the run ended.

    `live_from`: the number, modulo the number of activations, of the one up to which the run is replayed, as if the cache
    had lost it there. None: it is not replayed.
    """
    faults: list[str] = []
    for key, run in world.runs.items():
        faults += [f"{key}: {fault}" for fault in (*_of_run(run), *_of_once(run))]
        if live_from is not None:
            faults += [f"{key}: {fault}" for segment in run.segments for fault in _of_replay(segment, live_from)]
    root = world.runs[ROOT]
    ending = str(json_of(root.result)["status"]) if root.status == "completed" else root.status
    faults += _of_ending(world, ending)
    faults += _of_updates(world, ending)
    return faults, ending


def _of_run(run: Run) -> Iterator[str]:
    """Each call is scheduled at most once, and has one result, in the order of the calls."""
    scheduled = Counter(_scheduled_calls(run))
    for call, times in scheduled.items():
        if times > 1:
            yield f"{call} was scheduled {times} times"
    if not any(segment.recorded for segment in run.segments):
        return
    messages = json_of(run.segment.query("messages"))["messages"]
    asked = [call["id"] for message in messages if message["role"] == "assistant" for call in message["tool_calls"]]
    results = [message["call_id"] for message in messages if message["role"] == "tool"]
    if run.status == "completed" and results != asked:
        yield f"the calls {asked} have the results {results}"
    if not set(results) <= set(asked) or len(set(results)) != len(results):
        yield f"there are results {results} for the calls {asked}"
    if run.status != "completed":
        return
    result = json_of(run.result)
    steps = json_of(run.segment.query("steps"))["steps"]
    calls = sum(len(step["tool_calls"]) for step in steps)
    if (result["steps"], result["tool_calls"]) != (len(steps), calls):
        yield f"{result['steps']} steps and {result['tool_calls']} calls are counted; {len(steps)}, {calls} are recorded"


def _of_once(run: Run) -> Iterator[str]:
    """A tool with `once` does the same work once: while a call runs, and after it has succeeded, no equal one is started.

    The repeat of a call that was lost has its idempotency key; different work never has the same one. A call that a person
    has approved is started, unless an equal one has succeeded.
    """
    yield from _of_approvals(run)
    running: set[str] = set()
    succeeded: set[str] = set()
    keys: dict[str, str] = {}
    works: dict[str, str] = {}
    for segment in run.segments:
        calls: dict[int, tuple[str, str]] = {}
        for recorded in segment.recorded:
            for job in recorded.activation.jobs:
                resolved = job.resolve_activity
                if not job.HasField("resolve_activity") or resolved.seq not in calls:
                    continue
                work, key = calls.pop(resolved.seq)
                running.discard(work)
                outcome = json_of(resolved.result.completed.result) if resolved.result.HasField("completed") else None
                if outcome is None:
                    keys[work] = key
                elif outcome.get("error") is None:
                    succeeded.add(work)
            for number, call in _started_once(recorded):
                work = f"{call.call.name} {call.arguments}"
                key = call.first_key or idempotency_key(
                    NAMESPACE, segment.workflow_id, call.where, call.call.id, call.digest
                )
                if work in running or work in succeeded:
                    yield f"{work} was started again: it {'runs' if work in running else 'has succeeded'}"
                if keys.get(work, key) != key:
                    yield f"{work} was lost, and repeated with another idempotency key"
                if works.setdefault(key, work) != work:
                    yield f"{works[key]} and {work} have the same idempotency key"
                running.add(work)
                calls[number] = work, key


def _started_once(recorded: Recorded) -> Iterator[tuple[int, CallTool]]:
    """The calls of tools with `once` that an activation started, by the number of the activity."""
    for command in recorded.commands:
        request = _activity(command)
        if request is not None and request.activity_type == "call_tool":
            call = CallTool.model_validate(json_of(request.arguments[0]))
            if call.call.name in ONCE:
                yield request.seq, call


def _of_approvals(run: Run) -> Iterator[str]:
    """In a run that has ended by itself or was stopped, each approved call was started, or an equal one has succeeded."""
    if run.status != "completed":
        return
    calls: dict[str, Any] = {}
    for segment in run.segments:
        steps = json_of(segment.query("steps"))["steps"]
        calls |= {call["id"]: call for step in steps for call in step["tool_calls"] if call["name"] in ONCE}
    scheduled = set(_scheduled_calls(run))
    for call in calls.values():
        decision = call.get("decision")
        if decision is None or decision["decision"] != "approve" or call["id"] in scheduled:
            continue
        equal = (each for each in calls.values() if each is not call and _works(each) & _works(call))
        if not any(each["result"] and each["result"]["error"] is None for each in equal):
            yield f"{call['id']} was approved and not started, and no equal call has succeeded"


def _works(call: Any) -> set[str]:
    """The work that a call did, and the work that the model wanted, if a person has edited it."""
    decision = call.get("decision") or {}
    arguments = [call["arguments"], *([decision["before"]] if decision.get("edited") else [])]
    return {f"{call['name']} {each}" for each in arguments}


def _scheduled_calls(run: Run) -> Iterator[str]:
    for segment in run.segments:
        for recorded in segment.recorded:
            for command in recorded.commands:
                request = _activity(command)
                if request is not None and request.activity_type == "call_tool":
                    yield json_of(request.arguments[0])["call"]["id"]
                if command.HasField("start_child_workflow_execution"):
                    yield command.start_child_workflow_execution.workflow_id


def _activity(command: Any) -> Any:
    for kind in ("schedule_activity", "schedule_local_activity"):
        if command.HasField(kind):
            return getattr(command, kind)
    return None


def _of_replay(segment: WorkflowRun, live_from: int) -> Iterator[str]:
    """A worker that rebuilds the run from its history gets the same commands, and answers queries the same."""
    if not segment.recorded:
        return
    count = len(segment.recorded)
    difference, instance = replay(segment, live_from % count + 1)
    if difference:
        yield f"not deterministic: {difference}"
    else:
        for name in ("messages", "steps", "events", "progress", "pending"):
            if segment.query(name) != segment.query(name, instance=instance):
                yield f"the query {name} is answered differently after a replay"
    segment.close(instance)


def _of_ending(world: World, ending: str) -> Iterator[str]:
    """The run ends as what was sent to it allows, and starts nothing new after a request to stop or to cancel.

    A call that was approved before the request to stop is a running one.
    """
    allowed = set(world.case.others)
    recorded = [each for segment in world.runs[ROOT].segments for each in segment.recorded]
    for number, at in world.sent_at.items():
        sent = world.case.sent[number]
        is_stop = sent.name == "stop" and (sent.kind == "signal" or world.answers[str(number)] == "completed")
        if sent.kind != "cancel" and not is_stop:
            continue
        allowed.add("cancelled" if sent.kind == "cancel" else "stopped")
        approved = () if sent.kind == "cancel" else _approved_before(world, at)
        for later in recorded[at:]:
            for command in later.commands:
                new = _activity(command)
                if new is not None and new.activity_type in _STARTS_WORK:
                    call = json_of(new.arguments[0]).get("call", {}).get("id")
                    if call not in approved:
                        yield f"{new.activity_type} {call} started after {sent.kind} {sent.name}"
    if ending not in allowed:
        failure = world.runs[ROOT].failure
        yield f"the run ended as {ending}: {failure.message if failure else ''}"


def _approved_before(world: World, at: int) -> set[str]:
    sent = [world.case.sent[number] for number, when in world.sent_at.items() if when <= at]
    return {
        each.argument["call_id"] for each in sent if each.name == "decide" and each.argument["decision"] == "approve"
    }


def _of_updates(world: World, ending: str) -> Iterator[str]:
    """Each update is answered, with the same answer each time, and what was accepted is in the run."""
    yield from (f"the update {each} was answered differently when it was sent again" for each in world.changed_answers)
    scheduled = set(_scheduled_calls(world.runs[ROOT]))
    messages = json_of(world.runs[ROOT].segment.query("messages"))["messages"]
    for number, sent in enumerate(world.case.sent):
        answer = world.answers.get(str(number))
        if answer is None:
            continue
        if answer not in ("rejected", "completed"):
            yield f"the update {sent.name} was not answered: {answer}"
            continue
        if answer != "completed" or ending != "completed":
            continue
        if sent.name == "send_message" and sum(each["text"] == sent.argument["text"] for each in messages) != 1:
            yield "an accepted message is not in the conversation once"
        excluded = {each["call_id"] for each in messages if (each.get("error") or {}).get("kind") == "duplicate_call"}
        # `_of_once` says which approved calls may be excluded.
        if sent.name == "decide" and (
            sent.argument["call_id"] not in scheduled | excluded
            if sent.argument["decision"] == "approve"
            else sent.argument["call_id"] in scheduled
        ):
            yield f"the accepted decision {sent.argument} was not obeyed"
