"""What a change of a run is in a progress notification: one line for people."""

from __future__ import annotations

from mulligan.run_view import changes
from mulligan.schema.cut_text import beginning
from mulligan.wire import event_types as events

MOST_CHARS = 500


def progress_message(run_id: str, change: changes.Change) -> str | None:
    """The line for a change; None: it is not reported. Text that a model is writing is part of the result."""
    line = _line(run_id, change)
    return None if line is None else beginning(line, MOST_CHARS)


def _line(run_id: str, change: changes.Change) -> str | None:
    match change:
        case changes.StepOpened(step):
            return f"Step {step.number}: the model {step.model} is called."
        case changes.CallRunning(call):
            return f"{call.name} is running."
        case changes.CallSettled(call) if call.error is not None:
            return f"{call.name} has failed ({call.error.kind}); the model is told why."
        case changes.CallSettled(call):
            return f"{call.name} has finished."
        case changes.WaitOpened(call, wait):
            return f"{call.name} waits for a person: {wait.asked.text}"
        case changes.WaitEnded(call, _, decided):
            return f"{call.name}: {decided.decision}" + (f" by {decided.by}." if decided.by else ".")
        case changes.Ended(end):
            return f"The run has ended: {end.status}."
        case changes.Below(source, below):
            line = _line(source.id, below)
            return f"{source.agent}: {line}" if line else None
        case changes.Noted(event):
            return _line_of_event(run_id, event)
    return None


def _line_of_event(run_id: str, event: events.Event) -> str | None:
    match event:
        case events.RunStarted():
            return f"Run {run_id} of the agent {event.agent} has started."
        case events.ModelFallback():
            return f"Step {event.step}: the model {event.model} is tried next."
        case events.HandedOver():
            return f"The conversation was handed over to the agent {event.agent}."
        case events.AnswerRejected():
            return f"Step {event.step}: the answer was not accepted ({event.error.kind}); the model is told why."
        case events.Compacted():
            return "The older part of the conversation was summarized."
        case events.Stopping():
            return "The run is stopping."
        case events.ToolProgress():
            return f"{event.name}: {event.text}"
        case events.ToolCallRepaired():
            return f"{event.name}: the input was repaired ({', '.join(repair.by for repair in event.repairs)})."
    return None
