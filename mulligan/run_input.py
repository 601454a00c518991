"""The input of a run, and its validation: each fault is one sentence that says what to change.

It is in Temporal's history as JSON: only optional fields may be added, and nothing renamed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    Tag,
    ValidationError,
    field_validator,
)
from pydantic.alias_generators import to_snake
from pydantic_core import PydanticCustomError

from mulligan.content import GivenParts, Part
from mulligan.endpoint_model import Model
from mulligan.errors import InvalidRunInputError
from mulligan.schema.cut_text import beginning
from mulligan.schema.error_text import type_name
from mulligan.schema.fault_text import required_form
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import AssistantMessage, Message, ToolMessage, UserMessage

USER_CHARS = 128
CLIENT_INSTRUCTIONS_CHARS, INSTRUCTIONS_CHARS = 100_000, 1_000_000
_ROLES = ("user", "assistant", "tool")
_PARTS = ("text", "image", "file", "audio")
Prompt = Annotated[
    Annotated[WellFormedText, Tag("text")] | Annotated[GivenParts, Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, (list, tuple)) else "text"),
]
"""A user's message: a text, or parts (`mulligan.content`)."""


class RunInput(BaseModel):
    """The input of a run. camelCase spellings are accepted too, for clients in other languages."""

    model_config = ConfigDict(extra="forbid")

    agent: Annotated[str, Field(min_length=1, max_length=1000)]
    """The name of the agent."""
    prompt: Prompt | None = None
    """The user's message: a text, or parts: `[{"type": "text", "text": …}, {"type": "image", "url": …}]`. A prompt or
    messages are needed."""
    messages: Annotated[list[Message], FailFast()] = []
    """A conversation to begin with; a prompt comes after it."""
    max_steps: Annotated[
        int | None, Field(ge=1, strict=True, validation_alias=AliasChoices("max_steps", "maxSteps"))
    ] = None
    """Model calls at most, 1 or more. None: the agent's."""
    model: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    """The model to use in place of the agent's, as `provider:NAME`, or `provider@endpoint:NAME` with an endpoint that the
    worker knows. A `Model` is accepted in Python; it is sent as its name."""
    on_invalid_tool_input: Annotated[
        Literal["feedback", "throw"] | None,
        Field(validation_alias=AliasChoices("on_invalid_tool_input", "onInvalidToolInput")),
    ] = None
    """For the model's own mistakes: `feedback` returns them to the model, `throw` fails the run. None: the agent's
    `handle_errors`."""
    metadata: dict[str, str] = {}
    """Is copied to the root span, and a tool reads it as `ctx.metadata`. No secrets: whoever may see traces reads it."""
    traceparent: str | None = None
    """W3C's header of the span that the run's trace continues."""
    max_total_tokens: int | None = optional_field(
        ge=1, strict=True, validation_alias=AliasChoices("max_total_tokens", "maxTotalTokens")
    )
    """Input and output tokens after which the run ends. None: the agent's."""
    max_cost: float | None = optional_field(
        gt=0, strict=True, allow_inf_nan=False, validation_alias=AliasChoices("max_cost", "maxCost")
    )
    """USD."""
    max_depth: int | None = optional_field(ge=0, strict=True, validation_alias=AliasChoices("max_depth", "maxDepth"))
    """How many levels of sub-agents may be below the run. None: the agent's."""
    max_sub_runs: int | None = optional_field(
        ge=0, strict=True, validation_alias=AliasChoices("max_sub_runs", "maxSubRuns")
    )
    """How many runs of sub-agents may be started below the run, at all levels. None: the agent's."""
    tenant: str | None = optional_field(min_length=1, max_length=64)
    """Temporal's fairness key: workers serve tenants in turn, however much work each of them has. A tool reads it as
    `ctx.tenant`. It is on no span."""
    user: str | None = optional_field(min_length=1, max_length=USER_CHARS)
    """For whom the run works, within its tenant; a tool reads it as `ctx.user`. It is on no span."""
    priority: int | None = optional_field(ge=1, le=5, strict=True)
    """Temporal's priority, from 1 (first) to 5."""
    client_instructions: str | None = optional_field(
        min_length=1,
        max_length=CLIENT_INSTRUCTIONS_CHARS,
        validation_alias=AliasChoices("client_instructions", "clientInstructions"),
    )
    """What the client wants the agent to observe. It stands at the end of the system prompt, marked as the client's, if the
    agent's `client_instructions` is `context`. A run that continues this one has it too, unless it brings its own."""
    version: str | None = optional_field(min_length=1, max_length=64)
    """`current`: the agent as workers serve it now. Of an agent that is a file also a digest (or 8 or more of its digits) or
    a label. None: that of the conversation's label."""
    client_metadata: dict[str, str] = optional_field(
        {}, validation_alias=AliasChoices("client_metadata", "clientMetadata")
    )
    """What a customer's page says of itself; tools and policies read it as `ctx.client_metadata`. It decides nothing by
    itself, and is on no span and in no template. The HTTP server sets it to the `metadata` of a customer's request."""

    @field_validator("model", mode="before")
    @classmethod
    def _name_of_model(cls, model: object) -> object:
        if isinstance(model, dict):
            raise PydanticCustomError("model_is_object", "a run's input has no address and no key of a model")
        return model.name if isinstance(model, Model) else model

    @property
    def new_messages(self) -> list[Message]:
        """The messages, and the prompt as the last of them."""
        return [*self.messages, *([] if self.prompt is None else [UserMessage.of(self.prompt)])]


_Input = TypeVar("_Input", bound=RunInput)
NOT_WRITTEN: Mapping[str, str] = {
    "resumed_from": "resume the run: `mulligan resume`, `resume_run`, or POST /api/runs/{id}/resume",
    "forked_from": "fork the run: `mulligan fork`, `fork_run`, or POST /api/runs/{id}/fork",
    "foreign_results": "resume or fork the run that has them: `resume_run`, `fork_run`, or POST /api/runs/{id}/resume",
    "carried": "resume or fork the run that has it: `resume_run`, `fork_run`, or POST /api/runs/{id}/resume",
    "model_only": "leave it out, and describe such requests to the HTTP server (MULLIGAN_SIDE_REQUESTS)",
    "output_schema": "leave it out: the output of a run is what its agent is declared with",
    "instructions_by_customer": "leave it out: the HTTP server knows its callers",
}
"""What only Mulligan writes into the input of a run (`wire/start_input.py`), and what to do instead."""
_FIELDS = list(RunInput.model_fields)
"""The fields that an error lists where one is mistyped."""
_EXAMPLE = '{"agent": "assistant", "prompt": "…"}'
FAULTS_SHOWN, MOST_FAULTS = 5, 1000
"""Faults of an input that its error describes, and how many there may be for that; of more, it names the first only."""
TENANT_BYTES = 64
TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def parse_run_input(data: bytes) -> RunInput:
    """Parse and validate a RunInput from JSON.

    Raises:
        InvalidRunInputError: as `parse_input`.
    """
    return parse_input(data, RunInput)


def parse_input(data: bytes, model: type[_Input]) -> _Input:
    """Parse and validate a RunInput, or another `model` of it, from JSON.

    Raises:
        InvalidRunInputError: it is not JSON, a field is invalid, or there is neither a prompt nor a message.
    """
    if not data:
        raise InvalidRunInputError(f"The run was started without an input; give it one JSON object: {_EXAMPLE}.")
    try:
        run_input = model.model_validate_json(data, extra="forbid")
    except ValidationError as error:
        raise InvalidRunInputError(_fault_text(error)) from None
    check_run_input(run_input)
    return run_input


def make_run_input(**fields: Any) -> RunInput:
    """A RunInput of values of Python.

    Raises:
        InvalidRunInputError: a field is invalid, or there is neither a prompt nor a message.
    """
    try:
        run_input = RunInput.model_validate(fields)
    except ValidationError as error:
        raise InvalidRunInputError(_fault_text(error)) from None
    check_run_input(run_input)
    return run_input


def check_run_input(run_input: RunInput) -> None:
    """Check what the fields alone do not say: that there is something to do, and that a provider accepts the messages.

    Raises:
        InvalidRunInputError: it cannot be the input of a run.
    """
    if run_input.prompt is None and not run_input.messages:
        raise InvalidRunInputError('The run has no "prompt" and no "messages"; give it one of them.')
    if isinstance(run_input.prompt, str) and not run_input.prompt.strip():
        raise InvalidRunInputError('"prompt" is empty; say what the agent is to do.')
    if run_input.traceparent is not None and not TRACEPARENT.fullmatch(run_input.traceparent):
        raise InvalidRunInputError(
            f'"traceparent" is {run_input.traceparent[:80]!r}; it must be a W3C traceparent: 00-<32 hex>-<16 hex>-<2 hex>.'
        )
    if run_input.tenant is not None and len(run_input.tenant.encode()) > TENANT_BYTES:
        raise InvalidRunInputError(
            f'"tenant" is {run_input.tenant[:80]!r}, with more than {TENANT_BYTES} bytes, the limit of Temporal\'s '
            "fairness keys."
        )
    _check_messages(run_input.messages, prompted=run_input.prompt is not None)


def parse_prompt(value: Any) -> str | list[Part]:
    """Validate a prompt, a text or parts.

    Raises:
        InvalidRunInputError: it is neither, or a part is invalid.
    """
    try:
        prompt = RunInput.model_validate({"agent": "-", "prompt": value}).prompt
    except ValidationError as error:
        raise InvalidRunInputError(_fault_text(error)) from None
    return prompt or ""


def _check_messages(messages: Sequence[Message], *, prompted: bool) -> None:
    """Check that a provider accepts a conversation: one result for each call, right after it; the user's message is last."""
    open_calls: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if open_calls.pop(message.call_id, None) is None:
                call_id = message.call_id[:80]
                raise InvalidRunInputError(
                    f'"messages[{index}]" is a tool result for call {call_id!r}, but no call of that id is open.'
                )
            continue
        if open_calls:
            _raise_unanswered(open_calls)
        if isinstance(message, AssistantMessage):
            open_calls = {call.id: index for call in message.tool_calls}
            if len(open_calls) < len(message.tool_calls):
                [(twice, _)] = Counter(call.id for call in message.tool_calls).most_common(1)
                raise InvalidRunInputError(
                    f'"messages[{index}]" has two tool calls of the id {twice[:80]!r}; each needs its own.'
                )
    if open_calls:
        _raise_unanswered(open_calls)
    if messages and not prompted and isinstance(messages[-1], AssistantMessage):
        raise InvalidRunInputError('"messages" end with the assistant\'s; end with a user message, or add a "prompt".')


def _raise_unanswered(open_calls: dict[str, int]) -> None:
    call_id, index = next(iter(open_calls.items()))
    raise InvalidRunInputError(
        f'The tool call {call_id[:80]!r} in "messages[{index}]" has no result; add a "tool" message for it right after.'
    )


def _fault_text(error: ValidationError) -> str:
    """The first faults as sentences.

    This runs in a workflow task, which has two seconds: pydantic reports each of 190,000 unknown fields.
    """
    if (count := error.error_count()) > MOST_FAULTS:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f'The run\'s input has {count:,} faults. The first one is in "{_path(first["loc"])}": {first["msg"]}.'
    sentences: dict[str, None] = {}
    for fault in error.errors(include_url=False):
        sentences[_fault_sentence(fault)] = None
        if len(sentences) == FAULTS_SHOWN:
            break
    return " ".join(sentences)


def _fault_sentence(fault: Any) -> str:
    """Write an error of pydantic as a sentence."""
    where = _path(fault["loc"])
    given = _shown(fault["input"])
    match fault["type"]:
        case "json_invalid":
            return f"The run's input is not JSON: {fault['ctx']['error']}. Give it one JSON object: {_EXAMPLE}."
        case "model_type" | "model_attributes_type" if not fault["loc"]:
            return f"The run's input must be one JSON object like {_EXAMPLE}, but is {given}."
        case "model_is_object":
            return (
                '"model" must be a name, "provider:NAME" or "provider@endpoint:NAME": addresses and keys of models are not '
                "part of a run's input; the operator declares endpoints in the file of MULLIGAN_ENDPOINTS."
            )
        case "missing":
            return f'"{where}" is missing; it is required.'
        case "extra_forbidden":
            known = _FIELDS if len(fault["loc"]) == 1 else []
            if known and (instead := NOT_WRITTEN.get(to_snake(where))) is not None:
                return f'"{where}" is set by Mulligan alone; {instead}.'
            near = difflib.get_close_matches(str(fault["loc"][-1])[:100], known, n=1)
            hint = (
                f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}." if known else "leave it out."
            )
            return f'"{where}" is not a known field; {hint}'
        case "union_tag_invalid" | "union_tag_not_found":
            if _is_in_parts(fault["loc"]):
                return f'"{where}" needs a "type" of {", ".join(_PARTS[:-1])} or {_PARTS[-1]}.'
            return f'"{where}" needs a "role" of "user", "assistant" or "tool".'
        case "content":
            return f'"{where}" {fault["msg"]}.'
        case "text_missing":
            return f'"{where}.text" is missing; it is required.'
        case "text_differs":
            return f'"{where}.text" is another text than that of its "content"; leave it out.'
    return f'"{where}" is {given}, but {required_form(fault)}.'


def _is_in_parts(loc: Sequence[int | str]) -> bool:
    return loc[0] == "prompt" or "content" in loc


def _path(loc: Sequence[int | str]) -> str:
    path = ""
    for index, part in enumerate(loc):
        # pydantic adds the role of a message, and the type of a part, after its number; they are not part of the JSON.
        if index and isinstance(loc[index - 1], int) and part in (*_ROLES, *_PARTS):
            continue
        if index == 1 and loc[0] == "prompt" and part in ("text", "parts"):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return beginning(path, 200) or "input"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return beginning(f'"{value}"', 80)
    try:
        return beginning(json.dumps(value, ensure_ascii=False, default=type_name), 80)
    except (TypeError, ValueError, RecursionError):  # a value of Python that JSON has no form for
        return type_name(value)
