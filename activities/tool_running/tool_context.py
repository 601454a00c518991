"""The `ToolContext` of a call: for its tool, its guard, and its policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity

from mulligan.run_input import RunInput
from mulligan.tool import ToolContext
from mulligan.values import ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import idempotency_key


def tool_context(  # noqa: PLR0913 - one for each field of a ToolContext
    run: RunContext,
    call: ToolCall,
    *,
    step: int,
    metadata: Mapping[str, str],
    resources: Any,
    digest: str,
    first_key: str | None = None,
    attempt: int = 1,
    workflow_id: str | None = None,
    heartbeat: Callable[..., None] = lambda *_: None,
) -> ToolContext:
    """The context of one attempt at a call, in the activity that runs now.

    Args:
        run: The run and its agent.
        call: The call. The idempotency key, made of its id and the run's, is the same for each attempt.
        step: The step in which the model made it.
        metadata: The run's.
        resources: The opened resources of the module of the agent, or of the tool.
        digest: The digest of the call as the model wrote it.
        first_key: The idempotency key, where it is that of an earlier call.
        attempt: The number of the attempt. Before the tool runs, it is 1.
        workflow_id: The run's, where the activity is that of another workflow.
        heartbeat: The function that `ctx.heartbeat` calls.
    """
    info = activity.info()
    workflow_id = workflow_id or info.workflow_id or ""
    return ToolContext(
        idempotency_key=first_key or idempotency_key(info.namespace, workflow_id, run, call.id, digest),
        attempt=attempt,
        workflow_id=workflow_id,
        agent=run.agent,
        call_id=call.id,
        step=step,
        metadata=metadata,
        client_metadata=run.client_metadata,
        tenant=run.tenant,
        user=run.user,
        resources=resources,
        _heartbeat=heartbeat,
    )


def given_to(function: Callable[..., Any], agent: str, run_input: RunInput, resources: Any) -> tuple[Any, ...]:
    """The arguments of a function of a run's input: the input, and a context without a call where it has a place for that.

    Args:
        function: Returns the instructions, or the tools, of a run.
        agent: The agent's name.
        run_input: The run's input, as far as the function gets it.
        resources: The opened resources of the agent's module.
    """
    if not _has_two_parameters(function):
        return (run_input,)
    info = activity.info()
    context = ToolContext(
        idempotency_key="",
        attempt=info.attempt,
        workflow_id=info.workflow_id or "",
        agent=agent,
        call_id="",
        step=0,
        metadata=run_input.metadata,
        client_metadata=run_input.client_metadata,
        tenant=run_input.tenant,
        user=run_input.user,
        resources=resources,
    )
    return run_input, context


def _has_two_parameters(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):  # it takes one, or has no signature
        return False
    return True
