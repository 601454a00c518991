"""A page of a run's events: what the log says, with what the conversation says of it."""

from __future__ import annotations

from typing import Any

from mulligan.values import RunResult, Step, ToolCall
from mulligan.wire import event_types
from mulligan.wire.shorten import shortened, size
from mulligan.wire.updates import iso
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.event_log import Entry


def event_page(
    conversation: Conversation, key: str, result: RunResult | None, since: int, limit: int
) -> dict[str, Any]:
    """The answer of the query `events`: as many as fit into it.

    `key`: the conversation's, as its activities are told it. `result`: what the newest turn came to.
    """
    log = conversation.log
    since = max(0, since)
    open_step = log.writing
    about: dict[str, Any] = {"total": log.total, "writing": None}
    if open_step is not None:
        at = _time(open_step)
        about["writing"] = {"conversation": key, "step": open_step.step, "at": at}
    if since < log.first and conversation.earlier is not None:
        return {"events": [], "next": log.first, "earlier": {"run_id": conversation.earlier.run_id}, **about}
    teller = _Teller(conversation, result)
    page: list[dict[str, Any]] = []
    left = limits.PAGE_BYTES
    start = max(0, since - log.first)
    for index in range(start, min(start + max(1, limit), len(log.entries))):
        event = teller.event(log.entries[index], log.first + index)
        taken = size(event)
        if taken > left and page:
            break
        page.append(event if taken <= left else shortened(event, left))
        left -= taken
    end = max(since, log.first) + len(page)
    return {"events": page, "next": end if end < log.total else None, **about}


class _Teller:
    """Says what was said. Each step is put together once for a page."""

    def __init__(self, conversation: Conversation, result: RunResult | None) -> None:
        self._conversation = conversation
        self._result = result
        self._steps: dict[int, Step] = {}

    def event(self, entry: Entry, offset: int) -> dict[str, Any]:
        about = {"type": entry.type, "offset": offset, "at": _time(entry), **(entry.said or {}), **self._said(entry)}
        return event_types.EVENT.dump_python(event_types.EVENT.validate_python(about), mode="json")  # type: ignore[no-any-return]

    def _said(self, entry: Entry) -> dict[str, Any]:
        match entry.type:
            case "run_started" | "stopping":
                return {}
            case "run_ended":
                is_newest = entry is self._conversation.log.entries[-1]
                return {"result": self._result} if is_newest else {}
            case "message":
                number = (entry.said or {})["number"]
                return {"text": self._conversation.page(number, 1, limits.PAGE_BYTES)[0].text}
            case "step_started" | "model_fallback":
                return {"step": entry.step}
            case "compacted":
                step = self._step(entry.step)
                found = step.compaction if step else self._conversation.compaction
                return {"step": entry.step, **(found.model_dump() if found else {"messages": 0})}
        step = self._step(entry.step)
        assert step is not None
        match entry.type:
            case "answered":
                calls = [ToolCall(id=c.id, name=c.name, arguments=c.raw_arguments) for c in step.tool_calls]
                return {"step": step.step, "text": step.text, "tool_calls": calls, "usage": step.usage}
            case "answer_rejected":
                return {"step": step.step, "error": step.error}
        assert entry.call is not None
        call = step.tool_calls[entry.call]
        about = {"step": step.step, "call_id": call.id, "name": call.name}
        match entry.type:
            case "tool_call_repaired":
                return {**about, "repairs": call.repairs}
            case "tool_call_settled":
                return {**about, "result": call.result, "attempts": call.attempts}
            case "decided" if call.decision is not None:
                return {**about, **call.decision.model_dump(include={"decision", "by", "reason", "edited"})}
            case "waiting" if call.decision is not None and call.decision.edited:
                return {**about, "arguments": call.decision.before}
        return {**about, "arguments": call.arguments}

    def _step(self, number: int) -> Step | None:
        if number not in self._steps:
            found = self._conversation.step_page(number - 1, 1, limits.PAGE_BYTES)
            if not found:
                return None
            self._steps[number] = found[0]
        return self._steps[number]


def _time(entry: Entry) -> str:
    return iso(entry.at / 1000)
