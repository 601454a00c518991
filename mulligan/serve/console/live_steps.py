"""The stream of a run's page: HTML of the step that changes, from the same reading and templates as the page.

An id of the stream is the position before the step that is open: a browser that reconnects gets that step again as a whole,
and replaces what it has.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from mulligan.client.watch_run import WatchedEvent
from mulligan.run_view import changes
from mulligan.run_view.run_view import Entry, PriceOf, RunView
from mulligan.run_view.step_view import CallView, StepView
from mulligan.schema.printable import printable
from mulligan.serve.console.rendering import anchor_of
from mulligan.serve.http_protocol import frame
from mulligan.serve.problems import problem_of
from mulligan.wire.event_types import Compacted, ToolProgress

STEPS_KEPT = 6
"""Steps that are kept with the open one: a call may correct a mistake in them."""


async def live_frames(
    watched: AsyncIterator[WatchedEvent], render_entry: Callable[[Entry], str], price_of: PriceOf
) -> AsyncIterator[bytes]:
    """The frames. `entry`: the HTML of an entry, new or changed; `text` and `input`: what a model writes, and `progress`,
    what a call reports, as JSON; `ended`: the last one.
    """
    view, checkpoint = RunView(price_of=price_of, most_steps=STEPS_KEPT), ""
    async with aclosing(watched) as events:  # type: ignore[type-var]
        try:
            async for each in events:
                changed = view.add(each.event)
                if any(isinstance(change, changes.StepOpened) for change in changed):
                    checkpoint = str(getattr(each.event, "offset", 0))
                for kind, data in _frames(view, changed, render_entry):
                    yield _frame(kind, data, checkpoint)
                if any(isinstance(change, changes.Ended) for change in changed):
                    checkpoint = each.token
            yield _frame("ended", "", checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says that the stream ends
            yield _frame("problem", problem_of(error).detail, checkpoint)


def _frames(
    view: RunView, changed: list[changes.Change], render_entry: Callable[[Entry], str]
) -> Iterator[tuple[str, str]]:
    for change in changed:
        match change:
            case changes.TextOpened(step) | changes.TextClosed(step, is_void=True) if not step.answered:
                yield "text", json.dumps({"step": step.number, "text": "", "begins": True})
            case changes.TextExtended(step, text, has_gap=has_gap) if not step.answered:
                yield "text", json.dumps({"step": step.number, "text": "…" * has_gap + text, "begins": False})
            case changes.InputOpened(call) | changes.InputExtended(call) | changes.InputVoid(call):
                if not view.steps[call.step].answered:
                    yield "input", json.dumps(_of_input(change))
            case changes.Noted(ToolProgress(text=text, call_id=call_id), step) if step:
                yield from _progress(step.calls.get(call_id), text)
            case changes.Below(source) if source.depth == 1 and view.newest_step:
                yield from _progress(view.newest_step.calls.get(source.call_id), _of_sub_run(change))
            case _:
                entries = [each for each in _changed(view, change) if not isinstance(each, StepView) or each.started]
                yield from (("entry", render_entry(entry)) for entry in entries)


def _changed(view: RunView, change: changes.Change) -> list[Entry]:
    """The entries that look different after a change."""
    match change:
        case changes.StepOpened(step):
            before = view.steps.get(step.number - 1)
            return [before, step] if before and before.corrected_in is step else [step]
        case changes.StepAnswered(step):
            return [step]
        case changes.WaitOpened(call) | changes.WaitEnded(call) | changes.CallRunning(call):
            return [view.steps[call.step]]
        case changes.CallSettled(call):
            # The step with the mistake that the call has corrected has a link to it.
            mistaken = view.steps.get(call.corrects.step) if call.corrects else None
            return [view.steps[call.step], *([mistaken] if mistaken else [])]
        case changes.Noted(event, step) if not isinstance(event, Compacted):
            return [step or event]
        case changes.Ended(end):
            return [end]
    return []


def _of_input(change: changes.InputChange) -> dict[str, Any]:
    """A call that the model begins, continues, or does not make after all (`void`)."""
    call = change.call
    fields = {"step": call.step, "index": call.index, "name": printable(call.name)}
    match change:
        case changes.InputOpened():
            return {**fields, "text": "…" * bool(call.start), "begins": True}
        case changes.InputExtended(text=text):
            return {**fields, "text": text, "begins": False}
    return {**fields, "text": "", "begins": False, "void": True}


def _progress(call: CallView | None, text: str) -> list[tuple[str, str]]:
    return [("progress", json.dumps({"call": anchor_of(call), "text": text}))] if call and text else []


def _of_sub_run(below: changes.Below) -> str:
    """A line on what a sub-agent does now."""
    agent = below.source.agent
    match below.change:
        case changes.StepOpened(step):
            return f"{agent}: step {step.number}"
        case changes.CallRunning(call):
            return f"{agent}: step {call.step}, calls {call.name}"
        case changes.StepAnswered(step):
            return f"{agent}: step {step.number}, answered"
    return ""


def _frame(kind: str, data: str, checkpoint: str) -> bytes:
    return frame(b"\ndata: ".join(data.encode("utf-8", "replace").splitlines()), kind, checkpoint)
