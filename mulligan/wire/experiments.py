"""An experiment: many runs that begin where others were, or from cases, and one table (docs/what-if.md).

The workflow's first argument, what activities get and return, and the table are in history as JSON: fields may be added if
they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from mulligan.features.feature_parts import FeatureWords
from mulligan.run_input import RunInput
from mulligan.schema.optional_field import optional_field
from mulligan.wire.agent_version import MOST_VERSIONS
from mulligan.wire.case import Case

EXPERIMENT_WORKFLOW = "MulliganExperiment"
"""Temporal's workflow type."""
CHECK_EXPERIMENT, PRICE_ROW, RUN_ROW, SCORE_ROW = "check_experiment", "price_row", "run_row", "score_row"
TABLE_QUERY, PROGRESS_QUERY = "table", "progress"
INVALID_EXPERIMENT = "InvalidExperiment"
"""The type of the error with which an experiment fails that cannot begin."""
EXPERIMENT_MEMO = "mulligan_experiment"
"""The key in the workflow's memo of what lists show: {`name`, `rows`, `agent`, `model`, `request`}."""
ROW_MEMO = "mulligan_experiment_row"
"""The key in the memo of a row's run of the row that it was started for: {`experiment`: the first run, `row`: from 0}."""
ID_PREFIX = "mulligan-experiment-"
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MOST_ROWS, MOST_CONCURRENT = 1_000, 100
ERROR_CHARS = 300
"""Characters of a row's error: the rows of an experiment are one payload."""

Outcome = Literal["same", "other", "diverged", "failed", "skipped"]
"""`same`: the output is equal as JSON, and the calls are the same; `other`: it completed otherwise; `diverged`: it made a
call without a record; `failed`: it did not complete; `skipped`: it was not begun."""
ScoreValue = Annotated[float, Field(allow_inf_nan=False)] | dict[str, float]


class Line(BaseModel):
    """A task for an agent, without a run: what a line of a JSON lines file has. Its calls have no recorded results."""

    model_config = ConfigDict(extra="forbid")

    id: str
    """Its name in the table."""
    input: RunInput
    """What the agent is asked."""
    expected: JsonValue = None
    """The output to compare with; None: it is not known."""


class ExperimentContent(BaseModel):
    """The workflow's second argument, which only activities read: they read it from the first event of the first run.

    `runs`, `cases`, `lines`: the sources of the rows, in this order; each has `repeat` rows. `fork`: the options of
    `mulligan.client.origins.fork_run.Fork` for runs. `agent`, `model`: of the runs from cases and lines; None: the case's.
    """

    runs: list[str] = optional_field([])
    cases: list[Case] = optional_field([])
    lines: list[Line] = optional_field([])
    repeat: int = Field(default=1, ge=1)
    fork: dict[str, JsonValue] = optional_field({})
    agent: str | None = optional_field()
    model: str | None = optional_field()

    @property
    def sources(self) -> list[str | Case | Line]:
        """The source of each row, without the repetitions."""
        return [*self.runs, *self.cases, *self.lines]

    def number_of_rows(self, versions: Sequence[str]) -> int:
        """How many rows an experiment with these versions of the agent has."""
        return len(self.sources) * self.repeat * (len(versions) or 1)


class Row(BaseModel):
    """A row of the table. `id`: the run, the case or the line that it begins with."""

    id: str
    run_id: str | None = None
    """The id of the new run; None: none was begun."""
    outcome: Outcome | str
    step: int | None = optional_field()
    """The first step with other calls, or the step that diverged."""
    score: ScoreValue | None = optional_field()
    """What the score function returned."""
    steps: int = 0
    """Model calls of the new run, those that it shares left out."""
    tokens: int = 0
    """Its input and output tokens."""
    usd: float | None = 0.0
    """What it has cost; None where a price is not known."""
    error: str | None = optional_field()
    """Why it was not begun, failed or diverged, or why there is no score."""
    repetition: int = optional_field(1)
    """Which of the runs from the same source it is."""
    line: bool = optional_field(False)
    """Whether it began with a line of a file, and not with a run."""
    version: str | None = optional_field()
    """The version of the agent, as the experiment names it; None: it names none."""


class ExperimentPlan(BaseModel):
    """The workflow's first argument: what it needs to know of its rows. `table` and `spent`: what continue-as-new carries.

    `max_cost`: USD for all runs. `score`: the name of the score function. `versions`: those of the agent, each of which has
    a row for each run. `first_run_id`: of the first run of the chain.
    """

    name: str = Field(pattern=f"^{NAME_PATTERN}$")
    rows: int = Field(ge=1, le=MOST_ROWS)
    concurrency: int = Field(ge=1, le=MOST_CONCURRENT)
    max_cost: float | None = optional_field(gt=0, allow_inf_nan=False)
    score: str | None = optional_field(max_length=1_000)
    versions: list[Annotated[str, Field(min_length=1, max_length=64)]] = optional_field([], max_length=MOST_VERSIONS)
    first_run_id: str = optional_field("")
    table: dict[int, Row] = optional_field({})
    spent: float = optional_field(0.0)
    """USD that the rows of the table have cost, or may have cost where that is not known."""


class RowRequest(BaseModel):
    """Input of `price_row` and `run_row`: the number of a row, from 0. `max_cost`: the limit of its run, in USD.

    `versions`: those of the experiment, of which row after row has the next one.
    """

    name: str
    workflow_id: str
    first_run_id: str
    number: int
    max_cost: float | None = optional_field()
    versions: list[str] = optional_field([])

    @property
    def version(self) -> str | None:
        """The version of the agent in this row."""
        return self.versions[self.number % len(self.versions)] if self.versions else None


class RowPrice(BaseModel):
    """Result of `price_row`: what the run of the row `id` may cost, in USD. None: nothing is known of what such a run needs.

    `refused`: the row of a run that cannot be begun, as the price of its model is not known. `repetition`, `line`: as the
    row has them.
    """

    id: str
    repetition: int = optional_field(1)
    line: bool = optional_field(False)
    usd: float | None = optional_field()
    refused: Row | None = optional_field()


class CheckExperiment(BaseModel):
    """Input of `check_experiment`: the name of the score function."""

    score: str


class ScoreRow(RowRequest):
    """Input of `score_row`: the run `run_id` of a row has ended."""

    score: str
    run_id: str


class Scored(BaseModel):
    """Result of `score_row`: a score, or why there is none."""

    score: ScoreValue | None = optional_field()
    error: str | None = optional_field()


WORDS = FeatureWords(activities=(CHECK_EXPERIMENT, PRICE_ROW, RUN_ROW, SCORE_ROW), unlisted=(EXPERIMENT_WORKFLOW,))
