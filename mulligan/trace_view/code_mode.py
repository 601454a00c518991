"""The spans of scripts, and of the calls that they make."""

from __future__ import annotations

from mulligan.trace_view.history_events import Activity
from mulligan.trace_view.history_spans import AddSpans, ExecutionSpans
from mulligan.values import AssistantMessage, ToolCall, Usage
from mulligan.wire.code_mode import RunScript, ScriptFacts, ScriptPart
from mulligan.wire.model_call import ModelAnswer
from mulligan.wire.tool_call import RecordedCall


def _add_script(execution: ExecutionSpans, activity: Activity) -> None:
    request, part = activity.request, activity.outcome
    assert isinstance(request, RunScript)
    facts = request.facts or _facts(execution, request)
    if not isinstance(part, ScriptPart) or activity.ended is None or facts is None:
        return
    calls = [
        ToolCall(id=f"{request.call_id}.{number}", name=each.name, arguments=each.arguments)
        for number, each in enumerate(part.calls, request.asked + 1)
    ]
    message = AssistantMessage(role="assistant", tool_calls=calls)
    answer = ModelAnswer(message=message, prepared=[each.prepared for each in part.calls], usage=Usage())
    execution.add_calls(facts.as_model_call, answer, activity.ended)
    if part.outcome is not None:
        record = facts.recorded(RecordedCall, started=facts.started, is_unread=request.end is not None)
        execution.add_record(record.with_outcome(part.outcome), activity.ended)


def _facts(execution: ExecutionSpans, request: RunScript) -> ScriptFacts | None:
    """What the first part of a script in this workflow run says of all of its parts."""
    parts = (each.request for each in execution.execution.activities if isinstance(each.request, RunScript))
    of_script = (each for each in parts if (each.conversation, each.call_id) == (request.conversation, request.call_id))
    return next((each.facts for each in of_script if each.facts is not None), None)


ADD_SPANS: AddSpans = {RunScript: _add_script}
