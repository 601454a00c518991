"""The states of an inspected call, and their form in history (`PreparedCall`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from mulligan.activities.answers.failure_policy import FailsRun, ReturnedToModel
from mulligan.activities.models._legal_calls import is_json_object
from mulligan.values import Repair, ToolCall
from mulligan.wire.model_call import PreparedCall


@dataclass(frozen=True)
class ValidCall:
    """The tool can run. `arguments` is None where the model's own text already says just that."""

    arguments: JsonValue
    repairs: Sequence[Repair]


@dataclass(frozen=True)
class PausedCall:
    """The call is valid, and waits until a person approves of it, or answers its question."""

    call: ValidCall
    waits_for: Literal["approval", "question"]


@dataclass(frozen=True)
class OutputCall:
    """The call was the structured output, and it is accepted. No tool runs: `text` is the call's result."""

    call: ValidCall
    text: str


CallState = ValidCall | PausedCall | OutputCall | ReturnedToModel | FailsRun


def arguments_to_record(state: CallState) -> JsonValue:
    """The arguments that are recorded beside the model's own text; None where there are none."""
    match state:
        case ValidCall():
            return state.arguments
        case PausedCall() | OutputCall():
            return state.call.arguments
        case ReturnedToModel() | FailsRun():
            return None


def as_executed(call: ToolCall, prepared: PreparedCall) -> tuple[ToolCall, PreparedCall]:
    """The call as the model reads it from now on, with the arguments after repairs; and what history has beside it.

    A call that needed no repair stays as the model wrote it: that is also what its provider has in its cache.
    """
    if prepared.arguments is None or not (prepared.repairs or not is_json_object(call.arguments)):
        return call, prepared
    executed = ToolCall(id=call.id, name=call.name, arguments=json.dumps(prepared.arguments, ensure_ascii=False))
    return executed, prepared.model_copy(update={"arguments": None, "raw": call.arguments})


def prepared_call(state: CallState) -> PreparedCall:
    """The state in the form that the workflow reads."""
    match state:
        case ValidCall():
            return PreparedCall(arguments=state.arguments, repairs=list(state.repairs))
        case PausedCall(call, waits_for):
            return PreparedCall(arguments=call.arguments, repairs=list(call.repairs), waits_for=waits_for)
        case OutputCall(call, text):
            return PreparedCall(arguments=call.arguments, repairs=list(call.repairs), text=text)
        case ReturnedToModel() | FailsRun():
            return PreparedCall(text=state.text, error=state.error, failure=state.failure)
