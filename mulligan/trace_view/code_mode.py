"""The spans of scripts, and of the calls that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mulligan.trace_view.history_events import Activity
from mulligan.values import AssistantMessage, Usage
from mulligan.wire.code_mode import RunScript, ScriptPart
from mulligan.wire.conversation_ref import ConversationRef
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.tool_call import RecordedCall

if TYPE_CHECKING:
    from mulligan.trace_view.history_spans import ExecutionSpans


def _add_script(execution: ExecutionSpans, activity: Activity) -> None:
    request, part = activity.request, activity.outcome
    assert isinstance(request, RunScript)
    if not isinstance(part, ScriptPart) or activity.ended is None:
        return
    calls = AssistantMessage(role="assistant", tool_calls=[each.call for each in part.calls])
    answer = ModelAnswer(message=calls, prepared=[each.prepared for each in part.calls], usage=Usage())
    by_model = ModelCall(
        where=request.where,
        conversation=ConversationRef(count=0, digest=""),
        model=request.model,
        step=request.step,
        definition=request.definition,
    )
    execution.add_calls(by_model, answer, activity.ended)
    if part.outcome is not None:
        recorded = RecordedCall(
            **dict(part.outcome),
            trace=request.where.trace,
            call_id=request.call.id,
            name=request.call.name,
            step=request.step,
            started=request.started,
            repaired_by=request.repaired_by,
        )
        execution.add_recorded_call(recorded, activity.ended, is_over=request.end is not None)


ADD_SPANS: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {RunScript: _add_script}
