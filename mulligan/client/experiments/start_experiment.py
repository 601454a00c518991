"""Start an experiment once, however often the same start is requested."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan.client.experiments.experiment_content import ExperimentError, pack_content
from mulligan.client.start_run import unknown_unless_refused
from mulligan.wire.experiments import (
    EXPERIMENT_MEMO,
    EXPERIMENT_WORKFLOW,
    ID_PREFIX,
    MOST_ROWS,
    NAME_PATTERN,
    ExperimentContent,
    ExperimentPlan,
)

Handle = WorkflowHandle[Any, Any]


async def start_experiment(
    client: Client, content: ExperimentContent, options: dict[str, Any], task_queue: str
) -> Handle:
    """Start an experiment, or find the one that an equal request has started.

    Args:
        client: A client of the server.
        content: What its rows begin with.
        options: `name`, `concurrency`, `max_cost`, `score` and `versions` of its plan.
        task_queue: That of the workers.

    Raises:
        ExperimentError: its name is none, it has no rows, too many or too large ones; or there is another one with its name.
        StartUnknownError: Temporal does not answer: it may have been started.
        RPCError: Temporal refuses the start.
    """
    name = options["name"]
    if not re.fullmatch(NAME_PATTERN, name):
        raise ExperimentError(
            f"The name {name[:120]!r} cannot be that of an experiment; give 1 to 100 letters, digits, full stops, hyphens "
            "and underscores, of which the first is a letter or a digit."
        )
    rows = content.number_of_rows(options.get("versions") or ())
    if not 0 < rows <= MOST_ROWS:
        raise ExperimentError(
            f"An experiment has 1 to {MOST_ROWS:,} rows; this one would have {rows:,}."
            if rows
            else "There is nothing to begin with: no run and no case."
        )
    plan = ExperimentPlan(rows=rows, **options)
    packed = pack_content(content, is_stored=client.data_converter.external_storage is not None)
    asked = plan.model_dump_json(exclude={"name"}) + content.model_dump_json()
    request = hashlib.sha256(asked.encode()).hexdigest()
    edits = content.fork.get("edits")
    changed = edits.get("model") if isinstance(edits, dict) else content.model
    memo = {"name": name, "rows": rows, "agent": content.agent, "model": changed, "request": request}
    workflow_id = f"{ID_PREFIX}{name}"
    try:
        with unknown_unless_refused(workflow_id):
            return await client.start_workflow(
                EXPERIMENT_WORKFLOW,
                args=[plan, packed],
                id=workflow_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={EXPERIMENT_MEMO: memo},
                static_summary=f"{rows} runs",
            )
    except WorkflowAlreadyStartedError:
        existing: Handle = client.get_workflow_handle(workflow_id)
        described = (await (await existing.describe()).memo()).get(EXPERIMENT_MEMO)
        if not isinstance(described, dict) or described.get("request") != request:
            raise ExperimentError(
                f"There is another experiment {name!r} already; choose another name, or see `mulligan experiments {name}`."
            ) from None
        return existing
