"""`MulliganExperiment`: begins many runs, a few at a time, and makes a table of what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from mulligan.schema.cut_text import beginning
from mulligan.wire.experiments import (
    CHECK_EXPERIMENT,
    ERROR_CHARS,
    EXPERIMENT_WORKFLOW,
    INVALID_EXPERIMENT,
    PRICE_ROW,
    PROGRESS_QUERY,
    RUN_ROW,
    SCORE_ROW,
    TABLE_QUERY,
    CheckExperiment,
    ExperimentPlan,
    Row,
    RowPrice,
    RowRequest,
    Scored,
    ScoreRow,
)
from mulligan.wire.read_payload import read_payloads
from mulligan.workflows.scheduling import NoResult, Schedule, run_activity

_Result = TypeVar("_Result", bound=BaseModel)
_NO_MONEY = "The cost that is left of --max-cost does not suffice for it."
_WITH_RESULT = ("same", "other", "diverged")
"""The outcomes of runs that are scored."""
_ROUNDING = 1e-9
"""USD that sums of costs may be wrong by."""
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))
SCHEDULES: Mapping[str, Schedule] = {
    # A worker that has not loaded the module of the score declines; another one may have it.
    CHECK_EXPERIMENT: Schedule(timeout=timedelta(seconds=10), retry=RetryPolicy(maximum_attempts=3)),
    # A worker may have to replay a long run to answer for it, and none may be there at the moment.
    PRICE_ROW: Schedule(timeout=timedelta(minutes=2), retry=_RETRY, has_heartbeat=True),
    # An attempt ends after seconds, also where its run goes on: a run may wait for days, and needs the worker's slots.
    RUN_ROW: Schedule(timeout=timedelta(minutes=5), retry=_RETRY, has_heartbeat=True),
    SCORE_ROW: Schedule(timeout=timedelta(minutes=6), retry=RetryPolicy(maximum_attempts=3), has_heartbeat=True),
}


@workflow.defn(name=EXPERIMENT_WORKFLOW, sandboxed=False)
class ExperimentWorkflow:
    """One experiment. Its content stays in the first event: activities read it there."""

    def __init__(self) -> None:
        self._plan: ExperimentPlan | None = None
        self._spent = 0.0
        """USD of the runs that have ended: what they cost, or their limits where that is not known."""
        self._reserved: dict[int, float] = {}
        """The limits of the runs that have not, by the numbers of their rows."""

    @workflow.run
    async def run(self, plan: RawValue, content: RawValue) -> dict[str, Any]:
        """The table: {`name`, `rows`}. `plan`: an ExperimentPlan. `content`: what only activities read.

        Raises:
            ApplicationError: no worker has the score function, or the plan cannot be used.
        """
        del content
        self._plan = planned = self._read(plan)
        self._spent = planned.spent
        if not planned.table and planned.score is not None:
            checked = await _activity(CHECK_EXPERIMENT, CheckExperiment(score=planned.score), NoResult, planned.score)
            if isinstance(checked, str):
                raise ApplicationError(checked, type=INVALID_EXPERIMENT, non_retryable=True)
        left = iter([number for number in range(planned.rows) if number not in planned.table])
        await asyncio.gather(*(self._work(planned, left) for _ in range(planned.concurrency)))
        if len(planned.table) < planned.rows:
            planned.spent = self._spent
            workflow.continue_as_new(args=[planned, None])  # two: the SDK reads no type of another number of arguments
        return self.table()

    @workflow.query(name=TABLE_QUERY)
    def table(self) -> dict[str, Any]:
        """The rows that are done, in their order."""
        plan = self._plan
        rows = [plan.table[number].model_dump(mode="json") for number in sorted(plan.table)] if plan else []
        return {"name": plan.name if plan else "", "rows": rows}

    @workflow.query(name=PROGRESS_QUERY)
    def progress(self) -> dict[str, int]:
        """{`done`, `rows`}: how many rows are done, of how many."""
        return {"done": len(self._plan.table), "rows": self._plan.rows} if self._plan else {"done": 0, "rows": 0}

    def _read(self, raw: RawValue) -> ExperimentPlan:
        try:
            if not isinstance(raw, RawValue):
                raise ValueError("An experiment is started with two arguments: its plan and its content.")
            [plan] = read_payloads(workflow.payload_converter(), [raw.payload], [ExperimentPlan])
        except ValueError as error:
            raise ApplicationError(str(error), type=INVALID_EXPERIMENT, non_retryable=True) from None
        assert isinstance(plan, ExperimentPlan)
        plan.first_run_id = plan.first_run_id or workflow.info().first_execution_run_id
        return plan

    async def _work(self, plan: ExperimentPlan, left: Iterator[int]) -> None:
        """Make row after row, until none is left, or the history is long enough."""
        while not workflow.info().is_continue_as_new_suggested():
            number = next(left, None)
            if number is None:
                return
            plan.table[number] = await self._row(plan, number)

    async def _row(self, plan: ExperimentPlan, number: int) -> Row:
        """The row of a run, after its end and its score."""
        request = RowRequest(
            name=plan.name,
            workflow_id=workflow.info().workflow_id,
            first_run_id=plan.first_run_id,
            number=number,
            versions=plan.versions,
        )
        if plan.max_cost is not None and (refused := await self._reserve(plan, request, plan.max_cost)) is not None:
            return refused
        row = await _activity(RUN_ROW, request, Row, f"row {number + 1}")
        if isinstance(row, str):
            row = _failed(request, row)
        self._spent += (self._reserved.get(number, 0.0) if row.usd is None else row.usd) or 0.0
        self._reserved.pop(number, None)
        return row if plan.score is None else await _scored(row, request, plan.score)

    async def _reserve(self, plan: ExperimentPlan, request: RowRequest, max_cost: float) -> Row | None:
        """Wait until what the run may cost is there, and set it as its limit. The row of a run that is not begun."""
        price = await _activity(PRICE_ROW, request, RowPrice, f"price of row {request.number + 1}")
        if isinstance(price, str):
            return _failed(request, price)
        if price.refused is not None:
            return price.refused

        def left() -> float:
            return max_cost - self._spent - sum(self._reserved.values())

        # Where nothing is known of what a run needs, as there is no earlier one, each gets an equal share.
        share = left() / (plan.rows - len(plan.table) - len(self._reserved))
        usd = share if price.usd is None else price.usd
        await workflow.wait_condition(lambda: usd <= left() + _ROUNDING or not self._reserved)
        if usd > left() + _ROUNDING or (price.usd is None and usd <= _ROUNDING):
            return _without_money(request, price)
        self._reserved[request.number] = usd
        request.max_cost = usd
        return None


async def _scored(row: Row, request: RowRequest, score: str) -> Row:
    if row.run_id is None or row.outcome not in _WITH_RESULT:
        return row
    scoring = ScoreRow(**{**request.model_dump(), "score": score, "run_id": row.run_id})
    scored = await _activity(SCORE_ROW, scoring, Scored, f"score of row {request.number + 1}")
    if isinstance(scored, str):
        scored = Scored(error=scored)
    return row.model_copy(update={"score": scored.score, "error": row.error or scored.error})


def _without_money(request: RowRequest, price: RowPrice) -> Row:
    return Row(
        id=price.id,
        outcome="skipped",
        error=_NO_MONEY,
        repetition=price.repetition,
        line=price.line,
        version=request.version,
    )


def _failed(request: RowRequest, why: str) -> Row:
    return Row(id=f"row {request.number + 1}", outcome="failed", usd=None, error=why, version=request.version)


async def _activity(name: str, request: BaseModel, result_type: type[_Result], summary: str) -> _Result | str:
    """The result of an activity; if it fails, the reason."""
    try:
        return await run_activity(name, request, result_type, SCHEDULES[name], summary=summary)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return _why(error)


def _why(error: ActivityError) -> str:
    """Why an activity has failed, as a sentence of limited length."""
    cause = error.cause
    text = cause.message if isinstance(cause, FailureError) else str(cause or error)
    return beginning(" ".join(text.split()), ERROR_CHARS)
