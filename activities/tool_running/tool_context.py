"""The context of a call, as its tool, its guard and who approves of it are given it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity

from mulligan.tool import ToolContext
from mulligan.values import ToolCall
from mulligan.wire.run_context import RunContext


def tool_context(
    where: RunContext,
    call: ToolCall,
    *,
    step: int,
    metadata: Mapping[str, str],
    resources: Any,
    attempt: int = 1,
    heartbeat: Callable[..., None] = lambda *_: None,
) -> ToolContext:
    """The context of one attempt at a call, in the activity that runs now.

    Args:
        where: Whose run it is.
        call: The call; its id and the run's make the idempotency key, which is the same for each attempt.
        step: The step in which the model made it.
        metadata: The run's.
        resources: What the module of the agent, or of the tool, opened.
        attempt: Which attempt it is; who is asked before the tool runs is asked about the first.
        heartbeat: What the tool calls to say that it lives.
    """
    info = activity.info()
    workflow_id = info.workflow_id or ""
    return ToolContext(
        idempotency_key=idempotency_key(info.namespace, workflow_id, where, call.id),
        attempt=attempt,
        workflow_id=workflow_id,
        agent=where.agent,
        call_id=call.id,
        step=step,
        metadata=metadata,
        resources=resources,
        _heartbeat=heartbeat,
    )


def idempotency_key(namespace: str, workflow_id: str, where: RunContext, call_id: str) -> str:
    """The same for each attempt of a call, also in a chain of runs; another for every other call of every other run.

    Of the run it takes the trace, whose ids are made of the workflow's id and its first run's.
    """
    parts = (namespace, workflow_id, where.trace, where.conversation, call_id)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]
