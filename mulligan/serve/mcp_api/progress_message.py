"""What an event of a run is in a progress notification: one line for people."""

from __future__ import annotations

from mulligan.wire.event_types import (
    AnswerRejected,
    Compacted,
    Decided,
    Event,
    ModelFallback,
    RunEnded,
    RunStarted,
    StepStarted,
    Stopping,
    SubRunEvent,
    ToolCallRepaired,
    ToolCallSettled,
    ToolCallStarted,
    ToolProgress,
    Waiting,
)

__all__ = ["progress_message"]

MOST_CHARS = 500


def progress_message(run_id: str, event: Event) -> str | None:
    """The line for an event; None: it is not reported. Text that a model is writing is part of the result."""
    line = _line(run_id, event)
    return line if line is None or len(line) <= MOST_CHARS else line[:MOST_CHARS] + "…"


def _line(run_id: str, event: Event) -> str | None:
    match event:
        case RunStarted():
            return f"Run {run_id} of the agent {event.agent} has started."
        case StepStarted():
            return f"Step {event.step}: the model {event.model} is called."
        case ModelFallback():
            return f"Step {event.step}: the model {event.model} is tried next."
        case AnswerRejected():
            return f"Step {event.step}: the answer was not accepted ({event.error.kind}); the model is told why."
        case Compacted():
            return "The older part of the conversation was summarized."
        case Stopping():
            return "The run is stopping."
        case RunEnded():
            return f"The run has ended: {event.status}."
        case SubRunEvent():
            line = _line(event.source.id, event.event)
            return f"{event.source.agent}: {line}" if line else None
    return _line_of_call(event)


def _line_of_call(event: Event) -> str | None:
    match event:
        case ToolCallStarted():
            return f"{event.name} is running."
        case ToolProgress():
            return f"{event.name}: {event.text}"
        case ToolCallRepaired():
            return f"{event.name}: the input was repaired ({', '.join(repair.by for repair in event.repairs)})."
        case ToolCallSettled() if event.result.error is not None:
            return f"{event.name} has failed ({event.result.error.kind}); the model is told why."
        case ToolCallSettled():
            return f"{event.name} has finished."
        case Waiting():
            return f"{event.name} waits for a person: {event.text}"
        case Decided():
            return f"{event.name}: {event.decision}" + (f" by {event.by}." if event.by else ".")
    return None
