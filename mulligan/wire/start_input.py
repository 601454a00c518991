"""The workflow's argument: what its user has written, and what only Mulligan writes, as of the run that a run goes on from.

It is in Temporal's history as JSON: only optional fields may be added, and nothing renamed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from mulligan.foreign_results import ForeignResults
from mulligan.once import MOST_CALLS, OnceCall
from mulligan.run_input import INSTRUCTIONS_CHARS, RunInput, parse_input
from mulligan.schema.optional_field import optional_field

Kind = Literal["resume", "fork"]
ORIGIN_MEMO: dict[Kind, str] = {"resume": "resumed_from", "fork": "forked_from"}
"""The keys in a run's memo of the run that it continues, or was forked from: `Origin.identity`."""
RESUMED_FROM_MEMO, FORKED_FROM_MEMO = ORIGIN_MEMO["resume"], ORIGIN_MEMO["fork"]


class InheritedLabels(BaseModel):
    """What requests to a provider carry beside the conversation, of the run that this one continues or was forked from.

    `cache_key`: the key for prompt caches. `safety_identifier`: of the person for whom that run worked. "": this run's own.
    """

    cache_key: Annotated[str, Field(max_length=64)] = ""
    safety_identifier: Annotated[str, Field(max_length=64)] = ""


class Origin(BaseModel):
    """The run that another one goes on from, and how. What is said of a fork has the defaults in a continuation."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["resume", "fork"]
    """Whether its conversation is continued, or the run was forked from it."""
    workflow_id: Annotated[str, Field(min_length=1, max_length=1000)]
    """Its workflow id."""
    run_id: Annotated[str, Field(min_length=1, max_length=100)]
    """Temporal's run id of it."""
    traceparent: Annotated[str | None, Field(max_length=100)] = optional_field()
    """That of its `invoke_agent` span."""
    request: str = optional_field("", max_length=64)
    """A digest of the options with which it was resumed or forked: the same request again is the same run."""
    key: str = optional_field("", max_length=100)
    """A digest of the `Idempotency-Key` of the HTTP request that started a continuation; "": it had none."""
    step: int = optional_field(1, ge=1)
    """The first step of a fork; those before are shared."""
    conversation: str = optional_field("0", max_length=100)
    """The key of the agent, in a workflow with several."""
    tools: Literal["recorded", "live"] = optional_field("recorded")
    """Whether the calls of a fork get the results of the earlier run's calls, or tools run."""
    unrecorded: Literal["diverge", "error", "live"] = optional_field("diverge")
    """What becomes of a call of which the earlier run has no record."""
    model: str | None = optional_field(max_length=1000)
    """The model that was chosen for a fork; None: that of the earlier run."""
    instructions: str | None = optional_field(max_length=INSTRUCTIONS_CHARS)
    """Instructions in place of the agent's."""
    edited_prompt: int | None = optional_field(ge=0)
    """The index of the edited prompt in the messages; None: it was not edited."""
    adds_message: bool = optional_field(False)
    """Whether the last of the messages was added by a fork."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the memo of the run has: by it, others see whether this is the run that they would start."""
        key, step = {"key": self.key} if self.key else {}, {"step": self.step} if self.kind == "fork" else {}
        return {"id": self.workflow_id, "run_id": self.run_id, "request": self.request, **key, **step}


class Carried(BaseModel):
    """What only Mulligan writes into the input of a run: what it has of another run, and what a door or an agent decides."""

    model_config = ConfigDict(extra="forbid")

    origin: Origin | None = optional_field()
    """The run that it goes on from; None: it is a new conversation."""
    once: list[OnceCall] = optional_field([], max_length=MOST_CALLS)
    """That run's calls of tools with `once` (of a fork, those before the step) that are not executed again."""
    undos: int | None = optional_field(ge=0)
    """How often it had been undone when the input was made; None: that is not looked at again when the run opens."""
    labels: InheritedLabels | None = optional_field()
    """Of its requests to providers; None: the run has its own."""
    foreign_results: ForeignResults | None = optional_field()
    """The untrusted results in the context of that run, or of the run that this one works for."""
    facts: dict[str, JsonValue] | None = optional_field()
    """The facts of the agent that it pinned (`AgentFacts`); None: they are pinned when the run opens."""
    state: dict[str, JsonValue] | None = optional_field()
    """What it has recorded of the messages (`ForkState`); None: the run begins like any other one."""
    records: dict[str, list[JsonValue]] | None = optional_field()
    """The results of its calls (`RecordedOutcome`, or None) by the calls' digests, in their order. None: a fork reads them
    in the run."""
    model_only: bool = optional_field(False, strict=True)
    """Whether the run has the model alone, without the agent's instructions, tools, MCP servers, output type, features and
    model settings: for what a program asks beside the conversation, such as a title."""
    output_schema: dict[str, JsonValue] | None = optional_field()
    """For the run of a sub-agent whose caller wants another output than the agent is declared with: its JSON schema."""
    instructions_by_customer: bool = optional_field(False, strict=True)
    """Whether `client_instructions` are a customer's, which an agent without `client_instructions` of its own ignores."""


_OF_ORIGIN: dict[str, Any] = {"origin": None, "once": [], "undos": None, "facts": None, "state": None, "records": None}


class StartInput(RunInput):
    """The input of a run as workflows have it."""

    carried: Carried = optional_field(Carried())
    """What only Mulligan writes."""

    @classmethod
    def of(cls, run_input: RunInput, **carried: Any) -> StartInput:
        """The input of a run that begins: `run_input`, as its user has written it, with fields of `carried`."""
        if isinstance(run_input, cls):
            return run_input.with_fields(**carried)
        given = {name: getattr(run_input, name) for name in RunInput.model_fields}
        return cls.model_construct(run_input.model_fields_set, **given, carried=Carried(**carried))

    def with_fields(self, **update: Any) -> Self:
        """A copy with the values of `update` in its fields, and in those of `carried`."""
        carried = {name: update.pop(name) for name in Carried.model_fields.keys() & update.keys()}
        if carried:
            update["carried"] = update.get("carried", self.carried).model_copy(update=carried)
        return self.model_copy(update=update)

    @property
    def fork(self) -> Origin | None:
        """The run that it was forked from; None: it is no fork."""
        origin = self.carried.origin
        return origin if origin is not None and origin.kind == "fork" else None

    @property
    def without_origin(self) -> Self:
        """The input without what it has of the run that it goes on from, but labels and untrusted results."""
        return self.with_fields(**_OF_ORIGIN)

    @property
    def for_other_run(self) -> Self:
        """What a run that resumes or forks this one is told of its input: features add what they carry."""
        return self.without_origin.with_fields(prompt=None, messages=[], foreign_results=None)

    @property
    def without_conversation(self) -> Self:
        """The input without the conversation and what the client says of it: what a `tools` function gets.

        Each activity of a run whose tools a function returns has it: nothing in it but the two metadata may be long.
        """
        others = {"labels": None, "foreign_results": None, "client_instructions": None}
        return self.without_origin.with_fields(prompt=None, messages=[], **others)

    @property
    def for_opening(self) -> Self:
        """The input as a worker needs it to resolve the agent: without what only the workflow reads of another run."""
        return self.with_fields(state=None, once=[], records=None)


def parse_start_input(data: bytes) -> StartInput:
    """Parse and validate the workflow's argument.

    Raises:
        InvalidRunInputError: as `parse_input`.
    """
    return parse_input(data, StartInput)
