"""A page of a run's events, built from the event log and from the messages and steps of the conversation."""

from __future__ import annotations

from typing import Any

from mulligan.content import shown_content
from mulligan.values import RunResult, Step, StepCall, ToolCall, UserMessage
from mulligan.wire import event_types
from mulligan.wire.shorten import json_size, shorten
from mulligan.wire.times import iso
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.event_log import Entry

MOST_SUB_RUNS = 200
"""Open runs of sub-agents that a page names."""


def event_page(
    conversation: Conversation,
    key: str,
    result: RunResult | None,
    since: int,
    limit: int,
    most_bytes: int = limits.EVENT_BYTES,
    step: int | None = None,
) -> dict[str, Any]:
    """The answer of the query `events`: as many events as fit.

    `key`: the agent's in its workflow. `result`: the result of the newest turn. `most_bytes`: of an event that is larger
    than a page, and so is a page alone; beyond that its texts are cut. `step`: None for the events of all steps.
    """
    log = conversation.event_log
    first, last = (log.first, log.total) if step is None else log.offsets_of(step)
    since = max(0, since) if step is None else max(first, since)
    model_call = log.writing
    header: dict[str, Any] = {"total": log.total, "steps": log.newest_step, "writing": None}
    if model_call is not None:
        header["writing"] = {"conversation": key, "step": model_call.step, "at": iso(model_call.at / 1000)}
    if sub_runs := _open_sub_runs(conversation):
        header["sub_runs"] = sub_runs
    if since < log.first and conversation.earlier is not None:
        following = log.first if step is None else None
        return {"events": [], "next": following, "earlier": conversation.earlier.place, **header}
    builder = _EventBuilder(conversation, result)
    page: list[dict[str, Any]] = []
    bytes_left = limits.PAGE_BYTES
    start = max(0, since - log.first)
    for index in range(start, min(start + max(1, limit), last - log.first)):
        event = builder.build(log.entries[index], log.first + index)
        event_bytes = json_size(event)
        if event_bytes > bytes_left and page:
            break
        page.append(event if event_bytes <= max(bytes_left, most_bytes) else shorten(event, most_bytes))
        bytes_left -= event_bytes
    end = max(since, log.first) + len(page)
    return {"events": page, "next": end if end < last else None, **header}


def _open_sub_runs(conversation: Conversation) -> list[dict[str, Any]]:
    """The runs of sub-agents that the newest step has started, and whose calls have no result yet."""
    if not conversation.steps or not any(call.run for call in conversation.steps[-1].calls):
        return []
    step = conversation.step(conversation.next_step - 1)
    calls = [call for call in step.tool_calls if call.run and call.run.id and not call.result] if step else []
    return [
        {"call_id": call.id, "id": call.run.id, "run_id": call.run.run_id, "agent": call.run.agent}
        for call in calls[:MOST_SUB_RUNS]
        if call.run
    ]


class _EventBuilder:
    """Builds the events of one page. Each step is put together once, and whole: it may be larger than a page of steps."""

    def __init__(self, conversation: Conversation, result: RunResult | None) -> None:
        self._conversation = conversation
        self._result = result
        self._steps: dict[int, Step] = {}

    def build(self, entry: Entry, offset: int) -> dict[str, Any]:
        fields = {
            "type": entry.type,
            "offset": offset,
            "at": iso(entry.at / 1000),
            **(entry.data or {}),
            **self._fields(entry),
        }
        return event_types.EVENT.dump_python(event_types.EVENT.validate_python(fields), mode="json")  # type: ignore[no-any-return]

    def _fields(self, entry: Entry) -> dict[str, Any]:
        """The fields of an event that its type has beside those of its log entry."""
        match entry.type:
            case "run_started" | "stopping":
                return {}
            case "run_ended":
                is_newest = entry is self._conversation.event_log.entries[-1]
                return {"result": self._result} if is_newest else {}
            case "message":
                number = (entry.data or {})["number"]
                message = self._conversation.page(number, 1, limits.PAGE_BYTES)[0]
                content = message.content if isinstance(message, UserMessage) else None
                return {"text": message.text, "content": shown_content(content)}
            case "step_started" | "model_fallback":
                return {"step": entry.step}
            case "compacted":
                shown_by = self._step(entry.step)
                compaction = shown_by.compaction if shown_by else self._conversation.pending_compaction
                return {"step": entry.step, **(compaction.model_dump() if compaction else {"messages": 0})}
        step = self._step(entry.step)
        if step is None:
            return {"step": entry.step}
        match entry.type:
            case "answered":
                calls = [ToolCall(id=c.id, name=c.name, arguments=c.raw_arguments) for c in step.tool_calls]
                hosted = {"hosted_calls": step.hosted_calls, "citations": step.citations, "files": step.files}
                return {"step": step.step, "text": step.text, "tool_calls": calls, "usage": step.usage, **hosted}
            case "answer_rejected":
                return {"step": step.step, "error": step.error}
        if entry.call is None:
            return {"step": entry.step}
        call = self._call(step, entry.call)
        if _says_all(entry):
            return {"step": step.step, "call_id": call.id, "name": call.name}
        return _call_fields(entry.type, step.step, call)

    def _call(self, step: Step, index: int) -> StepCall:
        """The call with an index: those that calls make come after the calls of the answer."""
        if index < len(step.tool_calls):
            return step.tool_calls[index]
        record = self._conversation.steps[step.step - 1 - self._conversation.first_step]
        inner = record.inner[index - len(record.calls)]
        return next(each for each in step.tool_calls[inner.of].calls if each.id == inner.call.id)

    def _step(self, number: int) -> Step | None:
        if number not in self._steps:
            step = self._conversation.step(number)
            if step is None:
                return None
            self._steps[number] = step
        return self._steps[number]


def _says_all(entry: Entry) -> bool:
    """Whether an event of a call needs nothing of the call's record.

    The arguments of an edit, and those of which people are reminded after it, may be others than the record's.
    """
    data = entry.data or {}
    return entry.type in ("handed_over", "edited") or (entry.type == "decided" and bool(data)) or "edited" in data


def _call_fields(event_type: str, step: int, call: StepCall) -> dict[str, Any]:
    fields = {"step": step, "call_id": call.id, "name": call.name}
    match event_type:
        case "tool_call_repaired":
            return {**fields, "repairs": call.repairs}
        case "tool_call_settled":
            return {**fields, "result": call.result, "attempts": call.attempts, "run": call.run}
        case "tool_call_deferred":
            return {**fields, "deferred": call.deferred}
        case "decided" if call.decision is not None:
            return {
                **fields,
                **call.decision.model_dump(include={"decision", "by", "reason", "edited", "edited_by", "rule"}),
            }
        case "waiting" | "reminder" if call.decision is not None and call.decision.edited:
            return {**fields, "arguments": call.decision.before}
    return {**fields, "arguments": call.arguments}
