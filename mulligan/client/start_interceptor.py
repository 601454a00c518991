"""Adds to the workflows that a client starts: the caller's trace, and the summary of a run that Temporal's UI shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.api.common.v1 import Payload
from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.converter import JSONPlainPayloadConverter

from mulligan.run_input import RunInput
from mulligan.wire.run_context import TRACE_HEADER
from mulligan.wire.sub_run import AGENT_WORKFLOW
from mulligan.wire.ui_summary import run_summary, task_of

__all__ = ["StartInterceptor"]


class StartInterceptor(Interceptor):
    """Passes the caller's trace on, in the header that Temporal's own tracing uses, and gives runs a summary."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        """Wrap the client's calls."""
        return _Outbound(next)


class _Outbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 - Temporal's name
        carrier: dict[str, str] = {}
        # Only the trace, not the caller's baggage: headers are not encrypted.
        TraceContextTextMapPropagator().inject(carrier)
        if carrier and TRACE_HEADER not in input.headers:
            payload: Payload | None = JSONPlainPayloadConverter().to_payload(carrier)
            if payload is not None:
                input.headers = {**input.headers, TRACE_HEADER: payload}
        if input.workflow == AGENT_WORKFLOW and input.static_summary is None and len(input.args) == 1:
            input.static_summary = _summary(input.args[0])
        return await super().start_workflow(input)


def _summary(run_input: Any) -> str | None:
    """The summary of a run, by its input; None if there is no agent in it. The workflow reports invalid input."""
    if isinstance(run_input, RunInput):
        return run_summary(run_input.agent, task_of(run_input))
    if not isinstance(run_input, Mapping) or not isinstance(agent := run_input.get("agent"), str):
        return None
    task = run_input.get("prompt")
    messages = run_input.get("messages")
    if task is None and isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        task = messages[-1].get("text")
    return run_summary(agent, task if isinstance(task, str) else None) or None
