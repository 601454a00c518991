"""`run_script`: a part of a script, until it waits for calls or ends.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer, model_validator

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import ErrorInfo, Usage
from mulligan.wire.checked_result import CheckedResult, are_tokens
from mulligan.wire.conversation_ref import ConversationRef
from mulligan.wire.model_call import GuardContext, ModelCall, PreparedCall, with_text, with_value
from mulligan.wire.tool_call import CallRequest, ToolOutcome

RUN_SCRIPT = "run_script"
"""Temporal's activity type."""
RUN_CODE = "run_code"
"""The name of the tool."""
SCRIPT_QUERY = "mulligan_script"
"""The query for what a script has done so far, for a worker that does not have it in memory."""


class CallResult(BaseModel):
    """The result of call number `n` of a script (from 1). `failed`: whether the text is that of an error.

    `has_parts`: whether it has images or files beside the text, so that the text alone is the script's value.
    """

    n: int
    text: str
    failed: bool = optional_field(False)
    has_parts: bool = optional_field(False)


class ScriptFacts(CallRequest):
    """What stays the same for all parts of a script.

    `started`: seconds since the epoch. `failures`: how often the model has written just this script before, and it failed.
    `most`: how many calls the result of a part may have.
    """

    digest: str
    started: float
    definition: str
    model: str
    guard: GuardContext | None = optional_field()
    on_invalid_tool_input: str | None = optional_field()
    failures: int = optional_field(0)
    max_calls: int = optional_field(200)
    timeout: float = optional_field(30.0)
    most: int = optional_field(100)

    @property
    def as_model_call(self) -> ModelCall:
        """The request by which the script's calls are handled as those of an answer."""
        return ModelCall(
            where=self.where,
            conversation=ConversationRef(count=0, digest=""),
            model=self.model,
            step=self.step,
            definition=self.definition,
            guard=self.guard,
            on_invalid_tool_input=self.on_invalid_tool_input,
        )


class RunScript(BaseModel):
    """Input of `run_script`.

    `facts`: in the first part of each workflow run, and where it ends it; a worker that does not have the script in memory
    queries them. `code`: in the first part only. `results`: those that came since the part before, in the order in which
    the script gets them; `delivered` is how many it had before, and `asked` how many calls it has made. None: they are too
    large to be sent twice, and the worker queries them. `untrusted`: whether others may have written a result that the
    script has, so that its own result counts as untrusted. `end`: the script is to end here, as its run does.
    """

    call_id: str
    conversation: str = optional_field("0")
    facts: ScriptFacts | None = optional_field()
    code: str | None = optional_field()
    delivered: int = optional_field(0)
    asked: int = optional_field(0)
    results: list[CallResult] | None = optional_field([])
    untrusted: bool = optional_field(False)
    end: Literal["stopped", "cancelled"] | None = optional_field()
    reason: str | None = optional_field()


class AskedCall(BaseModel):
    """A call that a script makes, as its inspection left it. Its id is `CALL.n`, where n counts the script's calls from 1.

    Its JSON has the arguments once, as that of a ModelAnswer has.
    """

    name: str
    arguments: str
    prepared: PreparedCall

    @model_serializer(mode="wrap")
    def _with_value(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        call = write(self)
        prepared = with_value(call, call.pop("prepared"))
        return {**call, "prepared": prepared} if prepared else call

    @model_validator(mode="before")
    @classmethod
    def _with_text(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        call, prepared = with_text(data, data.get("prepared", {}))
        return {**call, "prepared": prepared}


class ScriptPart(CheckedResult):
    """Result of `run_script`: the calls that the script has made since, or the result of the script.

    `more`: whether it has made others, which the next part returns. `usage_of_repairs`: tokens of second models, by
    `provider:NAME`.
    """

    calls: list[AskedCall] = optional_field([])
    more: bool = optional_field(False)
    outcome: ToolOutcome | None = optional_field()
    usage_of_repairs: dict[str, Usage] = optional_field({})

    def fault(self) -> str | None:
        """Why the run cannot use it: the script neither waits nor has ended, or a call or a number is wrong."""
        if not all(map(are_tokens, self.usage_of_repairs.values())):
            return "its usage is no number of tokens"
        if any(each.prepared.arguments is None and each.prepared.error is None for each in self.calls):
            return "a call that it calls valid has no arguments"
        return None if self.outcome is None else self.outcome.fault()


class RecordedScriptCall(BaseModel):
    """A call that a script has made: the arguments that the script wrote, and the result if it has one.

    `has_parts`: as of a CallResult.
    """

    name: str
    arguments: str
    text: WellFormedText | None = optional_field()
    error: ErrorInfo | None = optional_field()
    has_parts: bool = optional_field(False)


class ScriptPageRequest(BaseModel):
    """Input of the query: the calls of the script `call_id` from number `since` on (from 0)."""

    conversation: str
    call_id: str
    since: int = 0


class ScriptPage(BaseModel):
    """Answer of the query. `delivered`: the numbers of the calls whose results the script has, in their order."""

    facts: ScriptFacts
    code: str
    delivered: list[int]
    calls: list[RecordedScriptCall]
    total: int


WORDS = FeatureWords(activities=(RUN_SCRIPT,))
