"""`price_row` and `run_row`: what the run of a row may cost; begin it, wait for its end, and compare it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, WorkflowAlreadyStartedError

from mulligan.activities.experiments.earlier_run import EarlierRun, read_earlier_run
from mulligan.activities.experiments.experiment_contents import ExperimentContents, RowSource
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.services import Services
from mulligan.client.experiments.experiment_content import ExperimentError
from mulligan.client.find_runs import memo_of
from mulligan.client.origins.fork_run import parse_fork, start_fork
from mulligan.client.origins.run_state import NoWorkerError, ResumeError
from mulligan.client.read_run import RunEnd, read_steps, wait_for_end
from mulligan.client.start_run import IdTakenError, read_input, start_run
from mulligan.client.unless_missing import unless_missing
from mulligan.errors import InvalidRunInputError
from mulligan.prices import cost_of, round_usd
from mulligan.schema.cut_text import beginning
from mulligan.values import Step, Usage
from mulligan.wire.case import Case
from mulligan.wire.experiments import (
    ERROR_CHARS,
    INVALID_EXPERIMENT,
    PRICE_ROW,
    ROW_MEMO,
    RUN_ROW,
    Line,
    Outcome,
    Row,
    RowPrice,
    RowRequest,
)
from mulligan.wire.start_input import FORKED_FROM_MEMO

WAIT_SECONDS = 10.0
"""Seconds for which an attempt waits for the end of its run. Then it gives its slot back, which the run may need."""
LONGEST_PAUSE = 30.0
"""Seconds until the next attempt at most. It is a fifth of the run's age."""
RESERVED = 2
"""How many times the tokens of the earlier run a run may use where the cost is limited."""
_REFUSALS = (ResumeError, InvalidRunInputError, IdTakenError, WorkflowAlreadyStartedError)


@dataclass(frozen=True)
class RunRowActivities:
    """The activities `price_row` and `run_row`."""

    services: Services
    contents: ExperimentContents

    @activity.defn(name=PRICE_ROW)
    async def price_row(self, request: RowRequest) -> RowPrice:
        """What the run of a row may cost: twice the tokens of the earlier run, at the prices of the model that is called.

        Raises:
            ApplicationError: the content of the experiment is gone.
            RPCError: no worker answers for the earlier run now.
        """
        row = await self._source(request)
        if isinstance(row.source, Line):
            return _price(row)
        at = row.content.fork.get("at")
        try:
            async with heartbeating():
                earlier = await read_earlier_run(activity.client(), row.source, at if isinstance(at, int) else 1)
                model = _model(row) or await self._model_of_version(row) or earlier.model
        except (ResumeError, InvalidRunInputError) as error:
            return _price(row, refused=_row(row, "skipped", error=_sentence(error, row)))
        price = self.services.prices.of(model) if model else None
        if price is None:
            what = f"the price of {model} is not known (MULLIGAN_PRICES)" if model else "it has no step"
            return _price(row, refused=_row(row, "skipped", error=f"The cost is limited, but {what}."))
        used = earlier.usage
        tokens = Usage(input_tokens=used.input_tokens * RESERVED, output_tokens=used.output_tokens * RESERVED)
        return _price(row, usd=price.of(tokens) or None)  # 0: no usage is known, or the model is free

    @activity.defn(name=RUN_ROW)
    async def run_row(self, request: RowRequest) -> Row:
        """Begin the run of a row, if no earlier attempt has, and compare it when it has ended.

        Raises:
            ApplicationError: it has not ended, and Temporal tries again; or the content of the experiment is gone.
            NoWorkerError, RPCError: no worker, or Temporal, does not answer.
        """
        async with heartbeating():
            row = await self._source(request)
            try:
                described = await self._begun(row, request)
            except _REFUSALS as error:
                if isinstance(error, NoWorkerError):
                    raise
                return _row(row, "skipped", error=_sentence(error, row))
            handle = activity.client().get_workflow_handle(row.new_id)
            if described.status == WorkflowExecutionStatus.RUNNING:
                try:
                    async with asyncio.timeout(WAIT_SECONDS):
                        await wait_for_end(handle)
                except TimeoutError:
                    raise _still_open(row, described) from None
            return await self._ended(row, described)

    async def _source(self, request: RowRequest) -> RowSource:
        try:
            return await self.contents.source(request)
        except ExperimentError as error:
            raise ApplicationError(str(error), type=INVALID_EXPERIMENT, non_retryable=True) from None

    async def _begun(self, row: RowSource, request: RowRequest) -> WorkflowExecutionDescription:
        """The run of a row, which an earlier attempt may have begun.

        Raises:
            Exception: it cannot be begun.
        """
        client = activity.client()
        handle = client.get_workflow_handle(row.new_id)
        # A later attempt does not read the run that it begins with, which may be gone by then.
        existing = await unless_missing(handle.describe()) if activity.info().attempt > 1 else None
        if existing is None:
            await self._begin(row, request)
            existing = await handle.describe()
        memo = await memo_of(existing)
        forked = memo.get(FORKED_FROM_MEMO)
        source = None if isinstance(row.source, Line) else row.id
        if memo.get(ROW_MEMO) != _row_memo(request)[ROW_MEMO] or (forked["id"] if forked else None) != source:
            raise IdTakenError
        return existing

    async def _begin(self, row: RowSource, request: RowRequest) -> None:
        """Start the run of a row.

        Raises:
            Exception: it cannot be started.
        """
        client, memo = activity.client(), _row_memo(request)
        limits = {} if request.max_cost is None else {"max_cost": request.max_cost}
        version = {} if row.version is None else {"version": row.version}
        if isinstance(row.source, str):
            fork = parse_fork({**row.content.fork, **limits, **version})
            await start_fork(client, row.source, fork, new_id=row.new_id, memo=memo)
        else:
            update: dict[str, Any] = {**limits, **version, "agent": row.content.agent or row.source.input.agent}
            if row.content.model is not None:
                update["model"] = row.content.model
            source = row.source
            run_input = (
                source.run_input(**update) if isinstance(source, Case) else source.input.model_copy(update=update)
            )
            await start_run(client, run_input, row.new_id, activity.info().task_queue, memo=memo)

    async def _model_of_version(self, row: RowSource) -> str | None:
        """The model that a version of the agent calls first, where one is named and this worker has it.

        Raises:
            InvalidRunInputError: there is no such version.
        """
        if row.version is None:
            return None
        source = row.source
        run_input = await read_input(activity.client(), source) if isinstance(source, str) else source.input
        if run_input is None or run_input.model is not None:
            return run_input.model if run_input else None
        name = row.content.agent or run_input.agent
        chosen = await self.services.agents.versions.chosen(name, row.version, row.new_id)
        return chosen[0].models[0] if chosen else None

    async def _ended(self, row: RowSource, described: WorkflowExecutionDescription) -> Row:
        """The row of a run that has ended."""
        client = activity.client()
        handle = client.get_workflow_handle(row.new_id)
        end, steps = await wait_for_end(handle), await read_steps(client, handle)
        own = [step for step in map(Step.model_validate, steps) if not step.shared]
        if end.result is not None:
            usage, usd = Usage.model_validate(end.result.get("usage") or {}), end.result.get("cost")
        else:
            usage, usd = sum((step.usage for step in own), Usage()), self._cost(own)
        counts: dict[str, Any] = {"run_id": row.new_id, "steps": len(own), "tokens": usage.total_tokens, "usd": usd}
        origin = (await described.memo()).get(FORKED_FROM_MEMO) or {"step": 1, "run_id": None}
        try:
            earlier = await read_earlier_run(client, row.source, origin["step"], origin["run_id"])
        except ResumeError as error:
            return _row(row, "failed", error=str(error), **counts)
        outcome, fields = _compared(own, end, earlier)
        return _row(row, outcome, **fields, **counts)

    def _cost(self, steps: Sequence[Step]) -> float | None:
        """What steps have cost, in USD; None where a price is not known."""
        prices = self.services.prices.of_all([step.model for step in steps])
        costs = [cost_of(prices, step.model, step.usage) for step in steps]
        return None if None in costs else round_usd(sum(filter(None, costs)))


def _compared(steps: Sequence[Step], end: RunEnd, earlier: EarlierRun) -> tuple[Outcome, dict[str, Any]]:
    """The outcome of a run with these steps of its own, and the step and the error of its row."""
    result = end.result or {}
    if end.status == "diverged":
        return "diverged", {"step": steps[-1].step if steps else None, "error": result.get("reason")}
    at = earlier.differs_at(steps)
    is_equal = at is None and earlier.status == end.status and earlier.has_output(result.get("output"))
    if is_equal and end.result is not None:
        return "same", {}
    if end.status != "completed":
        why = (end.error or {}).get("message") or result.get("reason")
        return "failed", {"error": f"The run ended as {end.status!r}{f': {why}' if why else '.'}"}
    return "other", {"step": at}


def _row(row: RowSource, outcome: Outcome, *, error: str | None = None, **fields: Any) -> Row:
    """A row of the table. `fields`: what is known of its run."""
    return Row(
        id=row.id,
        outcome=outcome,
        error=None if error is None else beginning(error, ERROR_CHARS),
        repetition=row.repetition,
        line=isinstance(row.source, Line),
        version=row.version,
        **fields,
    )


def _price(row: RowSource, *, usd: float | None = None, refused: Row | None = None) -> RowPrice:
    return RowPrice(id=row.id, usd=usd, refused=refused, repetition=row.repetition, line=isinstance(row.source, Line))


def _row_memo(request: RowRequest) -> dict[str, Any]:
    """What the memo of a row's run has: by it, another run with the same id is recognized."""
    return {ROW_MEMO: {"experiment": request.first_run_id, "row": request.number}}


def _model(row: RowSource) -> str | None:
    """The model that was chosen for all rows; of a case also that of its input."""
    edits = row.content.fork.get("edits")
    chosen = edits.get("model") if isinstance(edits, dict) else row.content.model
    return str(chosen) if chosen else row.source.input.model if isinstance(row.source, Case) else None


def _still_open(row: RowSource, described: WorkflowExecutionDescription) -> ApplicationError:
    age = (datetime.now(UTC) - described.start_time).total_seconds()
    return ApplicationError(
        f"The run {row.new_id!r} has not ended; it is looked at again.",
        type="RunIsOpen",
        next_retry_delay=timedelta(seconds=min(LONGEST_PAUSE, max(1.0, age / 5))),
        category=ApplicationErrorCategory.BENIGN,
    )


def _sentence(error: Exception, row: RowSource) -> str:
    if isinstance(error, (WorkflowAlreadyStartedError, IdTakenError)):
        return f"There is another run {row.new_id!r} already; give the experiment another name."
    return error.message if isinstance(error, InvalidRunInputError) else str(error)
