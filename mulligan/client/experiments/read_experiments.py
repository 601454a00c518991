"""Read experiments: the newest ones, and the table of one."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)

from mulligan.client.experiments.experiment_content import ExperimentError
from mulligan.client.read_run import UNDECODABLE, query_run
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.wire.experiments import EXPERIMENT_MEMO, EXPERIMENT_WORKFLOW, ID_PREFIX, TABLE_QUERY, Row
from mulligan.wire.run_status import status_in_temporal
from mulligan.wire.times import iso


async def list_experiments(client: Client, limit: int) -> list[dict[str, Any]]:
    """The newest experiments, each as {`name`, `status`, `rows`, `started`, `agent`?, `model`?}.

    Raises:
        RPCError: Temporal does not answer.
    """
    query = f'WorkflowType = "{EXPERIMENT_WORKFLOW}" AND ExecutionStatus != "ContinuedAsNew"'
    found = [each async for each in client.list_workflows(query, limit=limit)]
    found.sort(key=lambda each: each.start_time, reverse=True)
    return [await _summary(each) for each in found]


async def read_experiment(client: Client, name: str) -> dict[str, Any] | None:
    """An experiment with its table: the `rows` that are done, of those that are `planned`. None: there is none of the name.

    Raises:
        ExperimentError: it has failed, with its reason; or it answers in another form.
        RPCError: no worker answers.
    """
    handle = client.get_workflow_handle(f"{ID_PREFIX}{name}")
    described = await unless_missing(handle.describe(), MISSING_OR_INVALID)
    if described is None or described.workflow_type != EXPERIMENT_WORKFLOW:
        return None
    try:
        completed = described.status == WorkflowExecutionStatus.COMPLETED
        table = await handle.result() if completed else await query_run(handle, TABLE_QUERY)
        rows = [Row.model_validate(row).model_dump(mode="json") for row in table["rows"]]
    except (WorkflowFailureError, WorkflowQueryFailedError, ValidationError, *UNDECODABLE) as error:
        raise ExperimentError(f"The experiment {name!r} cannot be read: {str(error)[:300]}.") from None
    summary = await _summary(described)
    return {**summary, "planned": summary["rows"], "rows": rows}


async def _summary(execution: WorkflowExecution) -> dict[str, Any]:
    try:
        memo = (await execution.memo()).get(EXPERIMENT_MEMO)
    except UNDECODABLE:
        memo = None
    known = memo if isinstance(memo, dict) else {}
    status = execution.status
    return {
        "name": execution.id.removeprefix(ID_PREFIX),
        "status": status_in_temporal(status.name) if status else "unknown",
        "rows": known.get("rows"),
        "started": iso(execution.start_time, "seconds"),
        **{name: known[name] for name in ("agent", "model") if known.get(name)},
    }
