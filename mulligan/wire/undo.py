"""The undo of a run: what the run has executed, what is undone of it, and the activities for that.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, JsonValue

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText
from mulligan.values import ErrorInfo
from mulligan.wire.checked_result import MOST_INT, MOST_SECONDS, NAME_BYTES, CheckedResult, are_between
from mulligan.wire.run_context import RunContext

UNDO_WORKFLOW = "MulliganUndo"
"""Temporal's workflow type."""
UNDO_MEMO = "mulligan_undo_of"
"""The key in the memo of such a workflow of the run that it undoes: {`id`, `run_id`}."""
EXECUTED_QUERY, UNDO_QUERY = "mulligan_executed", "mulligan_undo"
"""The query of a run for its executed calls, and that of an undo for its list."""
PLAN_UNDO, UNDO_CALL = "plan_undo", "undo_call"
"""Temporal's activity types."""

_ID_BYTES = 900
"""Of the run's id in that of its undo; Temporal takes 1,000 in all."""

CallState = Literal["undone", "failed", "not_reached", "no_undo"]


class ExecutedRequest(BaseModel):
    """Input of the query: the calls whose events have offsets below `before` (None: all), the newest first.

    `values`: whether the answer has their arguments and results, in place of the runs of sub-agents.
    """

    before: int | None = optional_field()
    values: bool = optional_field(False)


class UndoSchedule(BaseModel):
    """How the workflow schedules the undo of a call. `attempts`: how often it may be started. Times are seconds."""

    attempts: int
    timeout: float
    task_queue: str | None = optional_field()
    queue_timeout: float | None = optional_field()


class ExecutedCall(BaseModel):
    """A call that a run has executed itself.

    `offset`: of the event with which it settled, or of its start if it has no result. `at`: that event's time,
    in ISO 8601. `lost`: why it is not known whether it has done its work: the error's kind, such as `tool_lost`.
    `schedule`: how it is undone; None: its tool has no undo. `role`: that a person needs to decide on such calls.
    """

    offset: int
    at: str
    call_id: str
    name: str
    agent: str
    step: int
    lost: str | None = optional_field()
    schedule: UndoSchedule | None = optional_field()
    role: str | None = optional_field()


class SubRunOfCall(BaseModel):
    """The run of a sub-agent that a call of step `step` has started. `run_id`: of the first workflow run of its chain."""

    id: str
    run_id: str
    step: int
    call_id: str


class CallValues(BaseModel):
    """What the undo of the call with an event's `offset` is given. `text`: its result; None: it has none.

    `has_parts`: whether the result has images or files beside the text. `is_cut`: whether its text is only the
    beginning of it. `too_large`: whether it cannot be carried.
    """

    offset: int
    digest: str
    arguments: JsonValue = None
    text: WellFormedText | None = None
    has_parts: bool = optional_field(False)
    is_cut: bool = optional_field(False)
    too_large: bool = optional_field(False)


class ExecutedPage(BaseModel):
    """Answer of the query. `next`: the `before` of the next page. `earlier`: the workflow run that has the calls before.

    `where`, `metadata`: those of the run.
    """

    calls: list[ExecutedCall] = []
    values: list[CallValues] = []
    sub_runs: list[SubRunOfCall] = []
    next: int | None = None
    earlier: str | None = None
    where: RunContext | None = None
    metadata: dict[str, str] = {}


class CallToUndo(ExecutedCall):
    """A call of a run or of a sub-agent's run, and what became of its undo.

    `run`: the workflow id of its run; `run_id`: the workflow run that can be asked for it. `error`: why it was not undone.
    `root_step`, `root_call`: of a call of a sub-agent's run, the call of the undone run below which it was made.
    """

    run: str
    run_id: str
    state: CallState | str = "not_reached"
    error: ErrorInfo | None = optional_field()
    root_step: int | None = optional_field()
    root_call: str | None = optional_field()

    @property
    def key(self) -> tuple[str, int]:
        """What names the call among all calls of its run and of the runs below."""
        return self.run, self.offset

    @property
    def place_in_root(self) -> tuple[int, str]:
        """The step and the id of the call of the undone run that has done this."""
        return self.root_step or self.step, self.root_call or self.call_id


class UndoOptions(BaseModel):
    """How a run is undone.

    `from_step`: only calls of this step and of later ones. `go_on`: whether a failed undo does not end the undo. `lost`:
    whether calls are undone of which it is not known whether they have done their work.
    """

    from_step: int | None = optional_field()
    go_on: bool = optional_field(False)
    lost: bool = optional_field(False)


class UndoRun(UndoOptions):
    """Input of the workflow, and of `plan_undo`. `number`: of this undo among those of the run, from 1.

    `although_continued`: whether it is undone although another run goes on from it.
    """

    workflow_id: str
    run_id: str
    first_run_id: str
    number: int
    although_continued: bool = optional_field(False)


class UndoList(CheckedResult):
    """The calls in the order in which they are undone: the result of `plan_undo`, and of the workflow."""

    calls: list[CallToUndo] = optional_field([])

    def fault(self) -> str | None:
        """Why the workflow cannot use it: an undo cannot be scheduled by it."""
        schedules = [each.schedule for each in self.calls if each.schedule is not None]
        times = [seconds for each in schedules for seconds in (each.timeout, each.queue_timeout)]
        queues = [each.task_queue for each in schedules if each.task_queue is not None]
        if not are_between(1, MOST_INT, [each.attempts for each in schedules]):
            return "how often an undo may be started is no count"
        if not are_between(0, MOST_SECONDS, times):
            return "a time is no number of seconds"
        return None if all(0 < len(each.encode()) <= NAME_BYTES for each in queues) else "a task queue has no name"


class UndoCall(BaseModel):
    """Input of `undo_call`. The activity asks the call's run for its arguments and its result."""

    call: CallToUndo
    has_own_queue: bool = optional_field(False)


class UndoOutcome(CheckedResult):
    """Result of `undo_call`. `error`: why the call is not undone; None: it is."""

    error: ErrorInfo | None = optional_field()


def undo_id(workflow_id: str, first_run_id: str, number: int) -> str:
    """The workflow id of an undo of a run. Of a run with a long id it has a digest: Temporal limits the bytes."""
    is_long = len(workflow_id.encode()) > _ID_BYTES
    readable = hashlib.sha256(workflow_id.encode()).hexdigest()[:32] if is_long else workflow_id
    return f"{readable}/undo-{first_run_id[:8]}-{number}"


WORDS = FeatureWords(activities=(PLAN_UNDO, UNDO_CALL))
