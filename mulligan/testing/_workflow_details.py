"""The details that the SDK gives to a workflow, for a workflow without a server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.worker import WorkflowInstanceDetails

from mulligan.client.converter import data_converter
from mulligan.testing._activities import NAMESPACE, PAYLOADS, RUN_ID, TASK_QUEUE
from mulligan.workflows.features import LOADED_FEATURES


def instance_details(
    definition: Any,
    workflow_id: str,
    now: datetime,
    *,
    caller: str | None,
    memo: Mapping[str, Payload],
    features: Sequence[type] = (),
) -> WorkflowInstanceDetails:
    """The details of a workflow that starts `now`. `caller`: the id of the parent workflow, if it is a child; `features`:
    the classes of loaded modules.
    """
    info = workflow.Info(
        attempt=1,
        continued_run_id=None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id=RUN_ID,
        headers={},
        namespace=NAMESPACE,
        original_execution_run_id=RUN_ID,
        parent=workflow.ParentInfo(NAMESPACE, RUN_ID, caller) if caller else None,
        root=None,
        priority=Priority.default,
        raw_memo=memo,
        retry_policy=None,
        run_id=RUN_ID,
        run_timeout=None,
        search_attributes={},
        start_time=now,
        workflow_start_time=now,
        task_queue=TASK_QUEUE,
        task_timeout=timedelta(seconds=10),
        typed_search_attributes=TypedSearchAttributes.empty,
        workflow_id=workflow_id,
        workflow_type=definition.name or "",
    )
    return WorkflowInstanceDetails(
        payload_converter_factory=lambda: PAYLOADS,
        failure_converter_class=data_converter.failure_converter_class,
        interceptor_classes=[],
        defn=definition,
        info=info,
        randomness_seed=random.Random(7).randint(0, 2**32),  # noqa: S311 - the same in each run
        # The SDK checks here whether the worker has a local activity. `Activities` reports a missing one itself.
        extern_functions={"__temporal_assert_local_activity_valid": lambda _: None, LOADED_FEATURES: lambda: features},
        disable_eager_activity_execution=False,
        worker_level_failure_exception_types=[],
        patch_activation_callback=None,
        last_completion_result=Payloads(),
        last_failure=None,
    )
