"""The updates that people send to a run, the query for calls that wait for them, and the activities behind both.

Any client sends them as JSON, and all of it is in history: only optional fields may be added.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from mulligan.content import GivenParts
from mulligan.foreign_results import ForeignResult
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import Decision
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import CallRequest, CompactCall

SEND_MESSAGE, DECIDE, ANSWER, STOP, PENDING = "send_message", "decide", "answer", "stop", "pending"
"""Temporal's names of the updates (`stop` is a signal too) and of the query."""
RECORD_DECISION, CHECK_EDIT = "record_decision", "check_edit"
"""Temporal's activity types."""

MESSAGE_BYTES = 1_000_000
"""UTF-8 bytes of a message, an answer, or edited arguments as JSON. Temporal refuses payloads of more than 2 MB."""
FORM_BYTES = 100_000
"""UTF-8 bytes of the answer to a question of an MCP server. The run keeps it for its steps."""
SHORT_CHARS = 1_000
"""Characters of an id, a name or a reason."""

MOST_EDITS = 1_000_000
"""The largest number of edits that a decision may name."""
MOST_ROLES = MOST_AGENTS = 1_000
"""Roles and agents of whoever decides."""

Short = Annotated[WellFormedText, Field(max_length=SHORT_CHARS)]
Key = Annotated[str, Field(min_length=1, max_length=SHORT_CHARS)]


def _is_none(value: object) -> bool:
    return value is None


class _PersonUpdate(BaseModel):
    """A person's update of a run."""

    model_config = ConfigDict(extra="forbid")

    conversation: Key | None = None
    """The number of the agent, in a workflow with several of them (`pending` shows it)."""


class SendMessage(_PersonUpdate):
    """A message for the agent. Updates with the same `id` are one message; without an `id`, each update is a message."""

    text: WellFormedText = optional_field("")
    """The message: at most 1,000,000 bytes of UTF-8; of its content, the text alone."""
    id: Key | None = None
    content: GivenParts | None = optional_field()
    """Its parts, if it has others than a text; together at most 1,000,000 bytes as JSON."""

    @model_validator(mode="after")
    def _has_either(self) -> Self:
        if self.content is None and not self.text:
            raise PydanticCustomError("text_missing", "a message needs a text or content")
        return self


class Decide(_PersonUpdate):
    """A decision on a call that waits for approval. `arguments`: edited ones, with which the call runs instead."""

    call_id: Key
    """The id of the call, as `pending` lists it."""
    decision: Literal["approve", "deny"]
    """Whether the call runs. If it is denied, the model gets the error `denied` with the reason."""
    reason: Short | None = None
    """Why; the model reads it if the call is denied. At most 1,000 characters."""
    arguments: dict[str, JsonValue] | None = None
    remember: Literal["run", "tenant"] | None = optional_field()
    """With `approve`: a rule approves calls of this tool with equal arguments from then on, of this run or this tenant."""
    # No roles are others than None, and must not be left out: whoever has none would have all.
    roles: SkipJsonSchema[list[Short] | None] = Field(default=None, max_length=MOST_ROLES, exclude_if=_is_none)
    """Set by the HTTP door: the roles of whoever decides; None: all."""
    agents: SkipJsonSchema[list[Short] | None] = Field(default=None, max_length=MOST_AGENTS, exclude_if=_is_none)
    """Set by the HTTP door: the agents for which whoever decides may make rules of the tenant; None: all."""
    edits: int | None = optional_field(ge=0, le=MOST_EDITS)
    """With `approve`: the `edits` of the call as it was read. If somebody has edited it since, this is refused."""
    by: Short | None = None
    """Who decided, at most 1,000 characters."""


class Answer(_PersonUpdate):
    """A person's answer to a question of the agent."""

    call_id: Key
    """The id of the call that asks, as `pending` lists it."""
    text: Annotated[WellFormedText, Field(min_length=1)]
    """The answer: at most 1,000,000 bytes of UTF-8."""
    by: Short | None = None
    """Who answered, at most 1,000 characters."""


class Stop(_PersonUpdate):
    """End the run after the calls that are running."""

    reason: Short | None = None
    """Why, at most 1,000 characters."""
    by: Short | None = None
    """Who stops it, at most 1,000 characters."""


class EarlierDecision(BaseModel):
    """What was decided on an earlier call of the same tool, in this run.

    `step` and `call_id`: of the call. `decision`: as of `Decision`. `by` and `at`: who decided, and when (ISO 8601, UTC).
    `reason`: why, in their words.
    """

    step: int
    call_id: str
    decision: str
    at: str
    by: str | None = optional_field()
    reason: str | None = optional_field()
    arguments: str
    """The arguments with which the call ran, or would have run, as JSON, of which the beginning."""
    rule: str | None = optional_field()
    """The name of the rule that has approved it."""


class Pending(BaseModel):
    """A call that waits for a person, from `since` to at most `until` (ISO 8601, UTC)."""

    call_id: str
    """The id to decide on or to answer."""
    tool: str
    """The name of the tool."""
    arguments: Any
    """The validated arguments of the call."""
    kind: Literal["approval", "question"] | str
    """`approval` expects `decide`, `question` expects `answer`."""
    since: str
    text: str
    """The question; for an approval, the call as one line."""
    agent: str
    """The name of the agent that made the call."""
    step: int
    """The number of its step."""
    until: str | None = optional_field()
    conversation: str = optional_field("0")
    """The number of the agent, in a workflow with several."""
    answer_schema: dict[str, JsonValue] | None = optional_field()
    """The JSON schema of the answer to a question of an MCP server: the answer's text is JSON then."""
    url: str | None = optional_field()
    """The page that an MCP server asks the person to open."""
    can_deny: bool = optional_field(False)
    """Whether a question may also be denied, by the update `decide`: it is an MCP server's."""
    role: str | None = optional_field()
    """The role that whoever decides must have at the HTTP door; None: everybody may decide who sees the run."""
    user: str | None = optional_field()
    """For whom the run works, as whoever started it has named them."""
    untrusted: list[ForeignResult] = optional_field([])
    """The newest untrusted results that the agent had read when it made a guarded call. Do not follow them."""
    earlier: list[EarlierDecision] = optional_field([])
    """The newest decisions on calls of this tool in the run, the newest first."""
    edits: int = optional_field(0)
    """How often people have edited the arguments, so that they wait for somebody with another role."""
    edited_by: str | None = optional_field()
    """Who has edited them last; None where nobody was named."""
    warning: str | None = optional_field()
    """What whoever approves the call must know: its tool is gone, so that it would not run."""


POLICY = "policy"
"""Who has decided, where the tool's policy denies a call whose arguments a person has edited."""


class RecordDecision(CallRequest):
    """Input of `record_decision`: write a decision's span. `run`: whether the call runs now; if not, the result is feedback.

    `started`: when the call began to wait, in seconds since the epoch. `with_request`: whether the span of the request has
    not been written yet.
    """

    arguments: JsonValue
    decision: Decision
    answer: str | None = None
    run: bool = False
    question: int | None = optional_field()
    """The number of the question, from 1, where the MCP server of a call that had begun asked it."""
    started: float
    with_request: bool = optional_field(False)


class CheckEdit(BaseModel):
    """Input of `check_edit`: validate edited arguments as a model's, and ask the guard and the tool's policy."""

    where: RunContext
    call: CompactCall
    arguments: dict[str, JsonValue]
    step: int
    definition: str
    metadata: dict[str, str] = optional_field({})
    digest: str
    """As in CallTool."""


class CheckedEdit(BaseModel):
    """Result of `check_edit`: the validated arguments, or in `refused` why they are not accepted.

    `argument_digest`: that of their normal form, where it is not that of their JSON. `role`: that whoever approves them must
    have. `denied`: why policy denies the call with them.
    """

    arguments: JsonValue = None
    argument_digest: str | None = optional_field()
    refused: str | None = optional_field()
    role: str | None = optional_field()
    denied: str | None = optional_field()
