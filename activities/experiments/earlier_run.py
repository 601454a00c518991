"""What a new run is compared with: the run or the case that it began with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from mulligan.client.origins.run_state import RunNotFoundError
from mulligan.client.read_run import read_steps, wait_for_end
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.once import call_digest
from mulligan.schema.argument_digest import argument_digest, digests_of
from mulligan.values import Step, StepCall, Usage
from mulligan.wire.case import Case
from mulligan.wire.experiments import Line

UNKNOWN: Any = object()
"""An output that is not known."""


@dataclass(frozen=True)
class EarlierRun:
    """Its steps, output and status. `steps`: None where it has none to compare with, as of a line."""

    steps: list[Step] | None
    output: Any
    status: str = "completed"

    @property
    def model(self) -> str | None:
        """The model that answered first."""
        return self.steps[0].model if self.steps else None

    @property
    def usage(self) -> Usage:
        """The tokens of its steps."""
        return sum((step.usage for step in self.steps or ()), Usage())

    def has_output(self, output: Any) -> bool:
        """Whether its output is equal as JSON."""
        return self.output is not UNKNOWN and argument_digest(self.output) == argument_digest(output)

    def differs_at(self, steps: Sequence[Step]) -> int | None:
        """The number of the first of these steps with another call than it made; None: all calls are the same."""
        if self.steps is None:
            return None
        before, now = _calls(self.steps), _calls(steps)
        for (_, call), (number, other) in zip(before, now, strict=False):
            if call != other:
                return number
        if len(before) == len(now):
            return None
        return now[len(before)][0] if len(now) > len(before) else (steps[-1].step if steps else 1)


def _calls(steps: Sequence[Step]) -> list[tuple[int, str]]:
    """A digest of the name and the arguments of each call, with the number of its step."""
    return [(step.step, _digest(call)) for step in steps for call in step.tool_calls]


def _digest(call: StepCall) -> str:
    """Of the validated arguments, before a person's edit; of the raw text where they are not valid."""
    arguments = call.raw_arguments if call.arguments is None else call.arguments
    return call_digest(call.name, digests_of(arguments, call.argument_digests)[-1])


async def read_earlier_run(client: Client, source: str | Case | Line, at: int, run_id: str | None = None) -> EarlierRun:
    """The run or case that a new run began with, from step `at` on. `run_id`: Temporal's of the run, None for the newest.

    Raises:
        RunNotFoundError: there is no such run any more.
        RPCError: no worker answers.
    """
    if isinstance(source, Line):
        return EarlierRun(None, UNKNOWN if source.expected is None else source.expected)
    if isinstance(source, Case):
        return EarlierRun(source.steps, source.output, source.status)
    handle = client.get_workflow_handle(source, run_id=run_id)
    described: WorkflowExecutionDescription | None = await unless_missing(handle.describe(), MISSING_OR_INVALID)
    if described is None:
        raise RunNotFoundError(f"The run {source!r} is no longer on this server, so there is nothing to compare with.")
    steps = [Step.model_validate(each) for each in await read_steps(client, handle, max(0, at - 1))]
    if described.status == WorkflowExecutionStatus.RUNNING:
        return EarlierRun(steps, UNKNOWN, "running")
    end = await wait_for_end(handle)
    return EarlierRun(steps, (end.result or {}).get("output"), end.status)
