"""A run as a case: one JSON file with what it was asked, what it sent and did, and how it ended (docs/cases.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue, ValidationError

from mulligan.run_input import RunInput
from mulligan.schema.fault_text import required_form
from mulligan.schema.json_limits import MOST_DEPTH, JsonMeter
from mulligan.schema.optional_field import optional_field
from mulligan.values import AssistantMessage, Message, Step
from mulligan.wire.agent_facts import OutputFormat, ProviderToolDefinition, ToolDefinition
from mulligan.wire.recorded_outcome import records_of
from mulligan.wire.start_input import Origin, StartInput

CASE_VERSION = 1
CASE_BYTES = 64_000_000
"""Bytes of a case's file at most: those of a run's input."""
CASE_VALUES = 1_000_000
"""Lists, objects and commas in a case at most."""


class CaseError(ValueError):
    """A case cannot be read, or is that of another agent. The message says why, and what to do."""


class CaseSettings(BaseModel):
    """With what the agent worked, beside its instructions and tools."""

    model: str
    """The model that answered first, as `provider:NAME`."""
    max_steps: int
    """The maximum number of model calls."""
    max_total_tokens: int | None = optional_field()
    """Input and output tokens after which the run was to end."""
    max_cost: float | None = optional_field()
    """USD after which the run was to end."""
    output: OutputFormat | None = optional_field()
    """The format of the answer, where the provider constrains it."""
    provider_tools: list[ProviderToolDefinition] = optional_field([])
    """The tools that the provider runs itself."""
    features: dict[str, dict[str, JsonValue]] = optional_field({})
    """What was pinned for the features that the agent is declared with, by their names."""


class Case(BaseModel):
    """A run that has ended. `mulligan export` writes it; `load_case` reads it."""

    version: Literal[1]
    """The version of this form."""
    id: str = Field(min_length=1, max_length=1000)
    """The run's id."""
    run_id: str = Field(min_length=1, max_length=100)
    """Temporal's run id of it."""
    agent: str
    """The name of the agent."""
    input: StartInput
    """What the run was started with; of a continued run or a fork, with the messages before its first own step."""
    instructions: str
    """The instructions that the model got."""
    tools: list[ToolDefinition]
    """The tools that the model got, those for structured output included."""
    output: JsonValue
    """The output; null if it did not complete."""
    status: str
    """How the run ended."""
    settings: CaseSettings
    """With what the agent worked, beside instructions and tools."""
    messages: list[Message]
    """The whole conversation. Content is referred to by its digest."""
    steps: list[Step]
    """The steps of the run itself, as `mulligan show --json` has them."""

    @property
    def expected(self) -> JsonValue:
        """The output, as what a score compares with."""
        return self.output

    @property
    def answers(self) -> list[int]:
        """The place in the messages of each step's answer."""
        places = [number for number, each in enumerate(self.messages) if isinstance(each, AssistantMessage)]
        return places[len(places) - len(self.steps) :]

    def run_input(self, **update: Any) -> RunInput:
        """The input of a run with the same task, by the agent as it is declared now, whose calls get the recorded results.

        It names no `version`: an agent that is a file works by the version that is served now, not by that of the case.

        Args:
            update: Other fields of the input.
        """
        records = {
            digest: [each and each.model_dump(mode="json") for each in outcomes]
            for digest, outcomes in records_of(self.steps, self.messages).items()
        }
        origin = Origin(kind="fork", workflow_id=self.id, run_id=self.run_id)
        return self.input.without_origin.with_fields(origin=origin, records=records, **{"version": None, **update})


def parse_case(data: bytes, source: str, *, starts_run: bool = False) -> Case:
    """Read a case.

    Args:
        data: The JSON.
        source: Where it is from, for the error.
        starts_run: Whether its input is that of a new run. Then a field of the input that this version does not know is
            refused, as in any request: it may be a limit.

    Raises:
        CaseError: it is not JSON, too large, of another version, or not a case.
    """
    meter = JsonMeter()
    if len(data) > CASE_BYTES or not data.strip():
        size = f"has {len(data):,} bytes; a case has {CASE_BYTES:,} at most" if data.strip() else "is empty"
        raise CaseError(f"{source} {size}.")
    meter.add(data)
    if meter.depth > MOST_DEPTH or meter.values > CASE_VALUES:
        raise CaseError(f"{source} is nested too deeply, or has too many values, to be a case.")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CaseError(f"{source} is not JSON ({error}); the file may have been cut. Export the run again.") from None
    if not isinstance(value, Mapping):
        raise CaseError(f"{source} is not a case: it must be one JSON object, as `mulligan export` writes it.")
    if (version := value.get("version")) != CASE_VERSION:
        raise CaseError(
            f"{source} is a case of version {json.dumps(version)[:80]}; this Mulligan reads version {CASE_VERSION}. "
            "Export the run again."
        )
    try:
        case = Case.model_validate(value, extra=None if starts_run else "ignore")
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))[:200]
        raise CaseError(f"{source} is not a case: {where!r}: {required_form(fault)}.") from None
    if len(case.answers) != len(case.steps):
        raise CaseError(
            f"{source} is not a whole case: it has {len(case.steps)} steps, but fewer answers in its messages."
        )
    return case
