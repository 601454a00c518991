"""`call_model`: the request for the model's next answer, and the answer with its calls prepared.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from mulligan.schema.argument_digest import DIGEST_CHARS
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import AssistantMessage, Citation, ErrorInfo, HostedCall, Repair, ToolMessage, Usage, UserMessage
from mulligan.wire.checked_result import MOST_COUNT, CheckedResult, are_between, are_tokens
from mulligan.wire.conversation_ref import CachedResult, ConversationRef
from mulligan.wire.run_context import RunContext

CALL_MODEL = "call_model"
"""Temporal's activity type."""
NOT_CALLED = "ModelNotCalled"
"""The types of failures begin with this where an activity did not call the model, and a feature of the run knows why."""

SPELLINGS = {"compact": (",", ":"), "spaced": (", ", ": ")}
"""The ways in which models put white space into JSON, as separators."""

NewMessage = Annotated[UserMessage | AssistantMessage | ToolMessage | CachedResult, Field(discriminator="role")]


class ConversationRequest(BaseModel):
    """The conversation that an activity works on; no part of this grows with it.

    The worker that called the model last has all but the last `uncached` messages in its cache; None: that is not known.
    `new` has these messages. It is left out where it is just the results of the last message's calls, which the workers
    that ran the tools have, and where it is too large to be sent. A worker queries the workflow for what it does not have;
    `conversation` has the digest to compare with.
    """

    where: RunContext
    uncached: int | None = optional_field(1)
    new: list[NewMessage] | None = optional_field()
    conversation: ConversationRef

    @property
    def cached_messages(self) -> int | None:
        """How many messages the cache of the worker that called the model last has."""
        return None if self.uncached is None else self.conversation.count - self.uncached


class GuardContext(BaseModel):
    """The run's metadata, for the ToolContext of a guard: sent only where the agent has one."""

    metadata: dict[str, str]


class ModelRequest(ConversationRequest):
    """Input of an activity that calls a model. Times are seconds; common values are left out, as it is in history."""

    model: str
    step: int
    patience: float = optional_field(3600.0)
    timeout: float = optional_field(300.0)
    attempts: int | None = optional_field()


class ModelCall(ModelRequest):
    """Input of `call_model`.

    `definition`: the digest of the pinned definition. `summarized_answers`: how many answers of the model a compaction has
    removed from the conversation; the ids of their calls are taken. `fallback`: how many models were called for this step
    before.
    """

    definition: str
    on_invalid_tool_input: str | None = optional_field()
    guard: GuardContext | None = optional_field()
    summarized_answers: int | None = optional_field()
    fallback: int = optional_field(0)
    adapted: list[str] = optional_field([])
    """How requests to the model differ from those to others, as its newest answer has said."""
    features: dict[str, JsonValue] = optional_field({})
    """What the turn's features say of this call to their parts on the worker, by their names. Nothing in it grows with the
    conversation."""


class PreparedCall(BaseModel):
    """A call after its one inspection: valid arguments, or feedback for the model, or the reason why the run fails.

    `arguments` is None where they never became valid. `digest` is that of their normal form (normal_form.py), where it is
    not that of their JSON, or where they are so long that steps may show them cut. `raw` is the text that the model wrote,
    where the message has the arguments after repairs instead. A call with a `text` has its result: no tool runs. `key`, of a
    call that failed, is the same for two texts that differ only in white space, in the order of fields, or in how numbers
    are written.
    """

    arguments: JsonValue = optional_field()
    digest: Annotated[str | None, Field(max_length=DIGEST_CHARS)] = optional_field()
    raw: WellFormedText | None = optional_field()
    repairs: list[Repair] = optional_field([])
    text: WellFormedText | None = optional_field()
    error: ErrorInfo | None = optional_field()
    failure: dict[str, Any] | None = optional_field()
    key: str | None = optional_field()
    waits_for: Literal["approval", "question"] | None = optional_field()
    """What it waits for before it can run: a person's approval, or answer."""
    role: str | None = optional_field()
    """The role that whoever approves it must have."""


def write_arguments(arguments: JsonValue, spelling: str = "spaced") -> str:
    """The text of a call's arguments.

    Raises:
        ValueError: they cannot be written as JSON.
    """
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=SPELLINGS[spelling])
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def spelling_of(text: str, arguments: JsonValue) -> str | None:
    """The spelling in which the arguments are written as just this text; None if there is none."""
    if arguments is None:
        return None
    return next((spelling for spelling in SPELLINGS if write_arguments(arguments, spelling) == text), None)


def with_value(call: dict[str, Any], prepared: dict[str, Any]) -> dict[str, Any]:
    """Put the value of a call's arguments in place of their text, by the name of its spelling, if it can be written so.

    Both are changed. Returns `prepared`, which then does not have the value.
    """
    if (spelling := spelling_of(call["arguments"], prepared.get("arguments"))) is not None:
        del call["arguments"]
        call[spelling] = prepared.pop("arguments")
    return prepared


def with_text(call: Any, prepared: Any) -> tuple[Any, Any]:
    """What `with_value` was given, by its result: the call with the text, and its entry in `prepared` with the value."""
    spelling = next((each for each in SPELLINGS if each in call), None) if isinstance(call, dict) else None
    if spelling is None or not isinstance(prepared, dict):
        return call, prepared
    value = call[spelling]
    rest = {name: each for name, each in call.items() if name != spelling}
    return {**rest, "arguments": write_arguments(value, spelling)}, {**prepared, "arguments": value}


class AcceptedOutput(BaseModel):
    """The valid structured output of an answer: the run's output.

    `value` is left out where it is `is_verbatim`: just the arguments of call number `call`, or the answer's text.
    """

    type: str
    call: int | None = optional_field()
    is_verbatim: bool = optional_field(False)
    value: JsonValue = None


class RejectedAnswer(BaseModel):
    """An answer that was not accepted, though no call of it is at fault: `text` goes to the model as a user message."""

    text: WellFormedText
    error: ErrorInfo
    failure: dict[str, Any] | None = optional_field()


def _without_defaults(value: BaseModel) -> dict[str, Any]:
    data = value.model_dump(mode="json", exclude_defaults=True)
    # The type of a part, by which it is read, is a default too.
    return data | value.model_dump(mode="json", include={"files"}) if "files" in data else data


class ModelAnswer(CheckedResult):
    """Result of `call_model`. `prepared` has one entry for each of the message's calls, in their order.

    Its JSON has the arguments of a call once: a call of the message has the value by the name of its spelling in place of
    the text, wherever the text can be written from it. `prepared` is left out where that says it all, and so is the
    message's role. `usage_of_repairs`:
    the part of `usage` that second models used, by `provider:NAME`.
    """

    message: Annotated[AssistantMessage, PlainSerializer(_without_defaults)]
    prepared: list[PreparedCall] = Field(default=[])
    finish_reason: str = optional_field("tool_calls")
    usage: Annotated[Usage, PlainSerializer(_without_defaults)]
    output: AcceptedOutput | None = optional_field()
    rejected: RejectedAnswer | None = optional_field()
    usage_of_repairs: dict[str, Usage] = optional_field({})
    hosted_calls: list[HostedCall] = optional_field([])
    citations: list[Citation] = optional_field([])
    reason: WellFormedText | None = optional_field()
    """Why the provider refused or withheld the answer, in its own word."""
    own_finish_reason: WellFormedText | None = optional_field()
    """The endpoint's word for why the answer ended, where the provider does not know it."""
    adapted: list[WellFormedText] = optional_field([])
    """How requests to the model differ from those to others, as its endpoint's refusals have said."""
    context_tokens: int | None = optional_field()
    """The tokens of the conversation up to the answer, as the provider has counted them; None: those of `usage`."""
    settings: dict[str, JsonValue] | None = optional_field()
    """The agent's `model_settings` in this call, without secrets, where the worker's code has others than those pinned."""

    @model_serializer(mode="wrap")
    def _with_values(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields, with the values of arguments in place of their texts."""
        data: dict[str, Any] = write(self)
        if "message" not in data:  # continue-as-new carries it in the conversation
            return data
        del data["message"]["role"]
        prepared = data.pop("prepared", [])
        for call, each in zip(data["message"].get("tool_calls", ()), prepared, strict=False):
            with_value(call, each)
        return {**data, "prepared": prepared} if any(prepared) else data

    @model_validator(mode="before")
    @classmethod
    def _with_texts(cls, data: Any) -> Any:
        """The fields, with the texts of arguments that were left out."""
        message: Any = data.get("message") if isinstance(data, dict) else None
        if not isinstance(message, dict):
            return data
        message = {"role": "assistant", **message}
        data = {**data, "message": message}
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return data
        prepared = data.get("prepared") or [{} for _ in calls]
        if not isinstance(prepared, list) or len(prepared) != len(calls):
            return data
        pairs = [with_text(call, each) for call, each in zip(calls, prepared, strict=True)]
        calls, prepared = ([pair[side] for pair in pairs] for side in (0, 1))
        return {**data, "message": {**message, "tool_calls": calls}, "prepared": prepared}

    def fault(self) -> str | None:
        """Why the answer cannot be used: each call needs what became of it, and usable arguments."""
        calls = self.message.tool_calls
        if len(self.prepared) != len(calls):
            return "it does not say for each call what came of it"
        if not all(call.id for call in calls) or len({call.id for call in calls}) < len(calls):
            return "two calls have the same id, or one has none"
        if not all(map(are_tokens, [self.usage, *self.usage_of_repairs.values()])) or not are_between(
            0, MOST_COUNT, [self.context_tokens]
        ):
            return "its usage is no number of tokens"
        if any(prepared.arguments is None and prepared.error is None for prepared in self.prepared):
            return "a call that it calls valid has no arguments"
        if (output := self.output) is not None and output.is_verbatim:
            if output.call is None and not _is_json(self.message.text):
                return "its output is a text that is not JSON"
            if output.call is not None and not 0 <= output.call < len(calls):
                return "its output is that of a call which it does not have"
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
