"""What an event of a run is in a progress notification: one line for people."""

from __future__ import annotations

from mulligan.wire import event_types as events

MOST_CHARS = 500


def progress_message(run_id: str, event: events.Event) -> str | None:
    """The line for an event; None: it is not reported. Text that a model is writing is part of the result."""
    line = _line(run_id, event)
    return line if line is None or len(line) <= MOST_CHARS else line[:MOST_CHARS] + "…"


def _line(run_id: str, event: events.Event) -> str | None:
    match event:
        case events.RunStarted():
            return f"Run {run_id} of the agent {event.agent} has started."
        case events.StepStarted():
            return f"Step {event.step}: the model {event.model} is called."
        case events.ModelFallback():
            return f"Step {event.step}: the model {event.model} is tried next."
        case events.AnswerRejected():
            return f"Step {event.step}: the answer was not accepted ({event.error.kind}); the model is told why."
        case events.Compacted():
            return "The older part of the conversation was summarized."
        case events.Stopping():
            return "The run is stopping."
        case events.RunEnded():
            return f"The run has ended: {event.status}."
        case events.SubRunEvent():
            line = _line(event.source.id, event.event)
            return f"{event.source.agent}: {line}" if line else None
    return _line_of_call(event)


def _line_of_call(event: events.Event) -> str | None:
    match event:
        case events.ToolCallStarted():
            return f"{event.name} is running."
        case events.ToolProgress():
            return f"{event.name}: {event.text}"
        case events.ToolCallRepaired():
            return f"{event.name}: the input was repaired ({', '.join(repair.by for repair in event.repairs)})."
        case events.ToolCallSettled() if event.result.error is not None:
            return f"{event.name} has failed ({event.result.error.kind}); the model is told why."
        case events.ToolCallSettled():
            return f"{event.name} has finished."
        case events.Waiting():
            return f"{event.name} waits for a person: {event.text}"
        case events.Decided():
            return f"{event.name}: {event.decision}" + (f" by {event.by}." if event.by else ".")
    return None
