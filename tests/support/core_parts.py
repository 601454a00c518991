"""Values of the wire, for tests of what the workflow decides by them: each is valid, and says nothing but what a test gives."""

from __future__ import annotations

from typing import Any

from mulligan.values import AssistantMessage, RunResult, ToolCall, Usage
from mulligan.wire.agent_facts import AgentFacts, Definition, ToolFacts
from mulligan.wire.model_call import ModelAnswer, PreparedCall
from mulligan.wire.start_input import StartInput
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.turn import Turn

TRACE = f"00-{1:032x}-{2:016x}-01"


def agent_facts(**fields: Any) -> AgentFacts:
    """The facts of an agent without tools, whose limits are large."""
    given: dict[str, Any] = {
        "model": "scripted:first",
        "max_steps": 20,
        "max_sub_runs": 10,
        "model_timeout": 60,
        "model_patience": 60,
        "tools": {},
        "definition": Definition(instructions="", tools=[]),
        "digest": "d",
    }
    return AgentFacts.model_validate({**given, **fields})


def open_turn(facts: AgentFacts | None = None, used: dict[str, Any] | None = None, **fields: Any) -> Turn:
    """A turn of such an agent. `used`: fields of its result; the others are those of its input."""
    return Turn(
        number=1,
        input=StartInput(agent="clerk", **fields),
        facts=facts or agent_facts(),
        trace=TRACE,
        result=RunResult(status="completed", **(used or {})),
    )


def answer_of(*calls: str, text: str = "", usage: Usage | None = None, **fields: Any) -> ModelAnswer:
    """An answer with a call for each name, with valid arguments."""
    message = AssistantMessage(role="assistant", text=text, tool_calls=[tool_call(each) for each in calls])
    prepared = [PreparedCall(arguments={}) for _ in calls]
    return ModelAnswer(message=message, prepared=prepared, usage=usage or Usage(), **fields)


def tool_call(name: str = "pay", arguments: str = "{}", call_id: str = "c") -> ToolCall:
    """A call of a tool."""
    return ToolCall(id=call_id, name=name, arguments=arguments)


def step_call(call: ToolCall | None = None, facts: ToolFacts | None = None, **prepared: Any) -> StepCall:
    """A call as features see it. `prepared`: what its inspection says."""
    inspected = PreparedCall(**{"arguments": {}, **prepared})
    record = CallRecord.of(inspected)
    return StepCall(index=0, call=call or tool_call(), prepared=inspected, record=record, facts=facts, is_carried=False)
