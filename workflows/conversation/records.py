"""What a conversation stores beside its messages: records of its steps and calls, and of parts that it no longer has.

Continue-as-new carries all of it, so the field names are part of Temporal's history. An open run keeps the records of all of
its steps: those of steps and calls have slots, as the dicts of models with so many fields are larger than what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from mulligan.content import Part, Text
from mulligan.schema.argument_digest import digests_of
from mulligan.schema.optional_field import optional_field
from mulligan.schema.shared_field_sets import Slotted
from mulligan.values import (
    AnsweredQuestion,
    Citation,
    Decision,
    ErrorInfo,
    HostedCall,
    Repair,
    StepCompaction,
    SubRun,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from mulligan.wire.model_call import ModelAnswer, PreparedCall


@dataclass(slots=True, kw_only=True)
class CallRecord(Slotted):
    """What a step shows of a call and no message contains. `run`: the sub-agent's run, if the call started one.
    `recorded`: its result is that of an equal call of the run that this one was forked from.

    `raw`: the arguments as the model wrote them, where its message has others: after repairs, or after a person's edit.
    """

    arguments: Any = None
    raw: str | None = optional_field()
    repairs: Sequence[Repair] = ()
    attempts: int = 0
    run: SubRun | None = None
    decision: Decision | None = None
    questions: list[AnsweredQuestion] = optional_field([])
    deferred: Any = optional_field()
    recorded: bool = optional_field(False)
    untrusted: bool = optional_field(False)
    """Whether others may have written its result."""
    is_cut: bool = optional_field(False)
    """Whether the message has only the beginning of its result."""
    started: float | None = optional_field()
    """When a script began, in seconds since the epoch."""
    delivered: list[int] = optional_field([])
    """The numbers of a script's calls whose results it has, in the order in which it had them."""
    argument_digests: list[str] = optional_field([])
    """Those of the arguments' normal forms, as a step shows them."""
    digest: str = optional_field("")
    """That of the call before a person edited its arguments: its idempotency key stays the same."""

    @classmethod
    def of(cls, prepared: PreparedCall) -> CallRecord:
        """The record of a call after its inspection."""
        return cls(
            arguments=prepared.arguments,
            raw=prepared.raw,
            repairs=prepared.repairs or (),
            argument_digests=[] if prepared.digest is None else [prepared.digest],
        )

    @property
    def digests(self) -> list[str]:
        """The digests of the arguments' normal forms: with which it is executed, and last the model's."""
        return digests_of(self.arguments, self.argument_digests)

    def written(self, call: ToolCall) -> str:
        """The arguments of its call as the model wrote them."""
        return call.arguments if self.raw is None else self.raw


class InnerCall(BaseModel):
    """A call that another call makes, as a script does. No message has it, nor its result.

    `of`: the index of the call that makes it. `prepared`: what its inspection says; None once it has a result.
    """

    of: int
    call: ToolCall
    record: CallRecord
    prepared: PreparedCall | None = optional_field()
    result: ToolMessage | None = optional_field()


@dataclass(slots=True, kw_only=True)
class StepRecord(Slotted):
    """What is recorded of a step. `at`: the index of its assistant message in `Conversation.messages`.

    The calls of its answer have the indexes from 0, and the inner calls those after them, in the order of their beginning.
    """

    at: int
    usage: Usage
    calls: list[CallRecord] = Field(default_factory=list)
    inner: list[InnerCall] = optional_field([])
    error: ErrorInfo | None = None
    compaction: StepCompaction | None = None
    model: str
    agent: str = optional_field("")
    hosted_calls: Sequence[HostedCall] = optional_field(())
    citations: Sequence[Citation] = optional_field(())
    finish_reason: str = optional_field("")
    adapted: Sequence[str] = optional_field(())
    context_tokens: int | None = optional_field()
    """The tokens of the conversation up to the answer, as the provider has counted them; None: those of `usage`."""

    def take(self, answer: ModelAnswer, agent: str) -> None:
        """Record what the answer has beside its message and its usage. `agent`: who has given it."""
        self.agent = agent
        self.hosted_calls, self.citations = answer.hosted_calls or (), answer.citations or ()
        self.finish_reason, self.adapted = answer.own_finish_reason or "", answer.adapted or ()
        self.context_tokens = answer.context_tokens


STEP_RECORDS: TypeAdapter[list[StepRecord]] = TypeAdapter(list[StepRecord])


class ConversationSummary(BaseModel):
    """What the model sees in place of summarized messages: the user's request (`task`) unchanged, then the summary.

    `answers`: how many of the model's answers it replaces.
    """

    task: str = ""
    content: list[Part] = optional_field([])
    """The images and files of the request."""
    heading: str
    summary: str
    answers: int

    @property
    def message(self) -> UserMessage:
        """All of it in one message: many models' chat templates accept user and assistant only in alternation."""
        text = "\n\n".join(filter(None, (self.task, self.heading, self.summary)))
        return UserMessage(role="user", text=text, content=[Text(text=text), *self.content] if self.content else None)


class FormerView(BaseModel):
    """What the model was sent before a compaction: for the steps before number `until`. `cut`: as of the conversation."""

    until: int
    summary: ConversationSummary | None
    cut: int
    compact_again_at: int


class EarlierPart(BaseModel):
    """How many messages and steps only earlier runs of the chain have, and the id of the latest of these runs.

    `workflow_id` and `conversation` (its agent's number): of the run that this one was forked from, if that has them.
    """

    messages: int
    steps: int
    run_id: str
    workflow_id: str | None = optional_field()
    conversation: str = optional_field("0")

    @property
    def place(self) -> dict[str, str]:
        """The run, as queries name it: its `run_id`; where it is another workflow's, its `id` and `conversation` too."""
        if self.workflow_id is None:
            return {"run_id": self.run_id}
        return {"run_id": self.run_id, "id": self.workflow_id, "conversation": self.conversation}
