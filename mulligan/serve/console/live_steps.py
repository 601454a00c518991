"""The stream of a run's page: HTML of the step that changes, from the same events and templates as the page.

An id of the stream is the position before the step that is open: a browser that reconnects gets that step again as a whole,
and replaces what it has.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from mulligan.client.watch_run import WatchedEvent
from mulligan.serve.console.transcript import CallView, Entry, PriceOf, StepView, Transcript
from mulligan.serve.problems import problem_of
from mulligan.wire.event_types import (
    Answered,
    Event,
    RunEnded,
    StepStarted,
    SubRunEvent,
    TextDelta,
    TextVoid,
    ToolCallSettled,
    ToolCallStarted,
    ToolProgress,
)

__all__ = ["live_frames"]

STEPS_KEPT = 5
"""Steps before the open one that are kept: a call may correct a mistake in them."""


async def live_frames(
    watched: AsyncIterator[WatchedEvent], render_entry: Callable[[Entry], str], price_of: PriceOf
) -> AsyncIterator[bytes]:
    """The frames. `entry`: the HTML of an entry, new or changed; `text`: what a model writes, and `progress`, what a call
    reports, as JSON; `ended`: the last one.
    """
    transcript, checkpoint = Transcript(price_of), ""
    async with aclosing(watched) as events:  # type: ignore[type-var]
        try:
            async for each in events:
                event = each.event
                if isinstance(event, StepStarted):
                    transcript.forget_before(event.step - STEPS_KEPT)
                    checkpoint = str(event.offset)
                for kind, data in _changes(transcript, event, render_entry):
                    yield _frame(kind, data, checkpoint)
                if isinstance(event, RunEnded):
                    checkpoint = each.token
            yield _frame("ended", "", checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says that the stream ends
            yield _frame("problem", problem_of(error).detail, checkpoint)


def _changes(transcript: Transcript, event: Event, render_entry: Callable[[Entry], str]) -> list[tuple[str, str]]:
    match event:
        case TextDelta():
            fields = {"step": event.step, "attempt": event.attempt, "start": event.start, "text": event.text}
            return [("text", json.dumps(fields))]
        case TextVoid():
            return [("text", json.dumps({"step": event.step, "attempt": event.attempt + 1, "start": 0, "text": ""}))]
        case ToolProgress():
            return _progress(transcript, event.step, event.call_id, event.text)
        case SubRunEvent():
            step = transcript.steps[-1].number if transcript.steps else 0
            return (
                _progress(transcript, step, event.source.call_id, _of_sub_run(event)) if event.source.depth == 1 else []
            )
    entry = transcript.add(event)
    if entry is None:
        return []
    transcript.link_corrections()
    changed = [entry, *(_corrected_by(entry, event.call_id, transcript) if isinstance(event, ToolCallSettled) else [])]
    return [("entry", render_entry(each)) for each in changed]


def _corrected_by(entry: Entry, call_id: str, transcript: Transcript) -> list[Entry]:
    """The step with the mistake that a call has corrected: it now has a link to that call."""
    call = entry.calls.get(call_id) if isinstance(entry, StepView) else None
    mistake = call.corrects if call else None
    return [step for step in transcript.steps if mistake and step.number == mistake.step]


def _progress(transcript: Transcript, step: int, call_id: str, text: str) -> list[tuple[str, str]]:
    found: StepView | None = next((each for each in transcript.steps if each.number == step), None)
    call: CallView | None = found.calls.get(call_id) if found else None
    return [("progress", json.dumps({"call": call.anchor, "text": text}))] if call and text else []


def _of_sub_run(event: SubRunEvent) -> str:
    """A line on what a sub-agent does now."""
    match event.event:
        case StepStarted(step=step):
            return f"{event.source.agent}: step {step}"
        case ToolCallStarted(name=name, step=step):
            return f"{event.source.agent}: step {step}, calls {name}"
        case Answered(step=step):
            return f"{event.source.agent}: step {step}, answered"
    return ""


def _frame(kind: str, data: str, checkpoint: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    head = f"id: {checkpoint}\n" if checkpoint else ""
    return f"{head}event: {kind}\n{lines}\n".encode("utf-8", "replace")
