"""Adds to the workflows that a client starts: the caller's trace, and the summary of a run that Temporal's UI shows.

The bytes of images and files go to the content storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.converter import JSONPlainPayloadConverter

from mulligan.client.content_store import configured_content_store
from mulligan.client.store_content import store_content, store_parts
from mulligan.content import ContentError, media_of
from mulligan.errors import UpdateRefusedError
from mulligan.run_input import RunInput
from mulligan.wire.run_context import AGENT_WORKFLOW, TRACE_HEADER
from mulligan.wire.run_priority import TENANT_MEMO
from mulligan.wire.ui_summary import run_summary, task_of
from mulligan.wire.updates import SEND_MESSAGE, SendMessage


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
        if input.workflow == AGENT_WORKFLOW and len(input.args) == 1:
            input.args = [await _with_stored_content(input.args[0])]
        if input.workflow == AGENT_WORKFLOW and input.static_summary is None and len(input.args) == 1:
            input.static_summary = _summary(input.args[0])
        return await super().start_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        if input.update == SEND_MESSAGE and len(input.args) == 1:
            input.args = [await self._with_stored_parts(input)]
        return await super().start_workflow_update(input)

    async def _with_stored_parts(self, update: StartWorkflowUpdateInput) -> Any:
        """The argument of `send_message` with references in place of bytes. The workflow reports an invalid one."""
        [message] = update.args
        try:
            parsed = SendMessage.model_validate(message)
        except ValidationError:
            return message
        if not media_of(parsed.content):
            return message
        store = configured_content_store()
        if store is not None:
            store = store.of(await self._tenant_of(update))
        try:
            content = await store_parts(parsed.content or [], store, "content", check=True)
        except ContentError as error:
            raise UpdateRefusedError(str(error)) from None
        return parsed.model_copy(update={"content": content})

    async def _tenant_of(self, update: StartWorkflowUpdateInput) -> str | None:
        """The tenant of the run that an update goes to. The memo of a workflow of the user's own is not ours to read."""
        description_request = DescribeWorkflowInput(update.id, update.run_id, update.rpc_metadata, update.rpc_timeout)
        described = await self.describe_workflow(description_request)
        if described.workflow_type != AGENT_WORKFLOW:
            return None
        try:
            tenant = (await described.memo()).get(TENANT_MEMO)
        except (KeyError, ValueError):  # it is encrypted, with a key that this client does not have
            return None
        return str(tenant) if tenant else None


async def _with_stored_content(run_input: Any) -> Any:
    """The input with references in place of bytes. The workflow reports an invalid one."""
    parsed = run_input
    if isinstance(run_input, Mapping) and _has_parts(run_input):
        try:
            parsed = RunInput.model_validate(run_input, extra="forbid")
        except ValidationError:
            return run_input
    return await store_content(parsed) if isinstance(parsed, RunInput) else run_input


def _has_parts(run_input: Mapping[str, Any]) -> bool:
    messages = run_input.get("messages")
    is_given = isinstance(messages, list) and any(
        isinstance(each, Mapping) and each.get("content") for each in messages
    )
    return isinstance(run_input.get("prompt"), list) or is_given


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
