"""Two runs side by side, aligned by their steps, with what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from temporalio.service import RPCError

from mulligan.client.read_run import read_steps
from mulligan.prices import cost_of
from mulligan.run_view.run_view import PriceOf
from mulligan.serve.caller import Caller
from mulligan.serve.console.rendering import page
from mulligan.serve.console.run_page import read_price_of
from mulligan.serve.console.signed_in import PREFIX
from mulligan.serve.console.waiting_counts import Counted
from mulligan.serve.http_protocol import Serving
from mulligan.serve.runs import RunInfo, Runs
from mulligan.values import Step, StepCall

STEPS_OF_PAGE = 25

compare_pages = APIRouter(prefix=PREFIX, include_in_schema=False)


@dataclass(frozen=True)
class Cell:
    """A text of each run; "" where a run has none. `label`: what it is."""

    label: str
    left: str
    right: str

    @property
    def differs(self) -> bool:
        """Whether the runs differ in it."""
        return self.left != self.right


@dataclass(frozen=True)
class StepPair:
    """The steps of one number. None: the run has no such step."""

    number: int
    left: Step | None
    right: Step | None
    cells: list[Cell]

    @property
    def differs(self) -> bool:
        """Whether the runs differ in it."""
        return any(cell.differs for cell in self.cells)

    @property
    def is_shared(self) -> bool:
        """Whether one run has the step of the other."""
        return any(step is not None and step.shared for step in (self.left, self.right))


@compare_pages.get("/compare")
async def show_comparison(
    request: Request,
    runs: Serving,
    session: Counted,
    left: str,
    right: str,
    page_number: Annotated[int, Query(ge=1, le=100_000, alias="page")] = 1,
) -> Response:
    """Two runs that the caller may see, a page of their steps."""
    end, ids = page_number * STEPS_OF_PAGE, (left, right)
    totals = [(await runs.steps(session.caller, run_id, end, 1))["total"] for run_id in ids]  # checks the caller
    of_left, of_right = [await _steps(runs, run_id, end) for run_id in ids]
    infos = [await _info(runs, session.caller, run_id) for run_id in ids]
    price_of = read_price_of()
    numbers = sorted(of_left | of_right)
    pairs = [_pair(number, of_left.get(number), of_right.get(number), price_of) for number in numbers]
    outputs = [info.result.get("output") if isinstance(info.result, dict) else None for info in infos]
    values: dict[str, Any] = {"ids": ids, "infos": infos, "outputs": outputs, "pairs": pairs, "number": page_number}
    is_last = max(totals) <= end
    return page(request, session, "compare.html", title="Compare two runs", is_last=is_last, **values)


async def _steps(runs: Runs, run_id: str, end: int) -> dict[int, Step]:
    """The steps of a page by their numbers, also those that only an earlier workflow run of the chain has."""
    handle = runs.client.get_workflow_handle(run_id)
    steps = await read_steps(runs.client, handle, end - STEPS_OF_PAGE, end=end)
    return {step.step: step for step in map(Step.model_validate, steps)}


async def _info(runs: Runs, caller: Caller, run_id: str) -> RunInfo:
    try:
        return await runs.read(caller, run_id, progress_beside_result=False)
    except RPCError:
        return await RunInfo.of(runs.client, await runs.describe(caller, run_id))


def _pair(number: int, left: Step | None, right: Step | None, price_of: PriceOf) -> StepPair:
    cells = [Cell("Text", left.text if left else "", right.text if right else "")]
    for one, other in zip_longest(left.tool_calls if left else [], right.tool_calls if right else []):
        cells += _call_cells(one, other)
    cells.append(Cell("Tokens and cost", _cost(left, price_of), _cost(right, price_of)))
    return StepPair(number, left, right, [cell for cell in cells if cell.left or cell.right])


def _call_cells(left: StepCall | None, right: StepCall | None) -> Iterator[Cell]:
    """The name and the arguments of a call, and its result."""
    written = [f"{call.name} {call.raw_arguments}" if call else "" for call in (left, right)]
    yield Cell("Call", *written)
    results = [call.result.text if call and call.result else "" for call in (left, right)]
    yield Cell("Result", *results)


def _cost(step: Step | None, price_of: PriceOf) -> str:
    if step is None:
        return ""
    price = price_of(step.model)
    cost = cost_of({step.model: price} if price else {}, step.model, step.usage)
    tokens = f"{step.usage.input_tokens:,} → {step.usage.output_tokens:,} tokens"
    return f"{step.model} · {tokens} · {'price unknown' if cost is None else f'${cost:.4f}'}"
