"""`find_record`: the result that an equal call had in the run from which this one was forked.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, JsonValue

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.values import Decision
from mulligan.wire.recorded_outcome import RecordedOutcome
from mulligan.wire.tool_call import CallRequest, ToolOutcome

FIND_RECORD = "find_record"
"""Temporal's activity type."""


class RecordSource(BaseModel):
    """The run whose calls are compared: its ids, the number of its agent (`conversation`), and the first `step` of them."""

    workflow_id: str
    run_id: str
    conversation: str
    step: int


class FindRecord(CallRequest):
    """Input of `find_record`: find the record of a valid call, and write the call's span.

    `source`: the run that is read for it; None: `record` is the record, or there is none.
    `digest`: of the tool's name and the validated arguments. `number`: how many equal calls this run made before, from 0.
    `unrecorded`: what becomes of the call if there is no record; with `live`, the call is run, and has no span yet.
    """

    source: RecordSource | None = optional_field()
    record: RecordedOutcome | None = optional_field()
    arguments: JsonValue
    digest: str
    number: int
    unrecorded: Literal["diverge", "error", "live"]


class FoundRecord(ToolOutcome):
    """Result of `find_record`. `found`: whether there is a record. `edited`: the arguments as a person had changed them;
    `edited_digest`: that of their normal form. `decision`: a person's on the recorded call.
    """

    found: bool = optional_field(False)
    edited: JsonValue = optional_field()
    edited_digest: str | None = optional_field()
    decision: Decision | None = optional_field()


WORDS = FeatureWords(activities=(FIND_RECORD,))
