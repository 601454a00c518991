"""The `handle_errors` policy that applies to a failure, and what it decides: feedback for the model, or a failed run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from mulligan.activities.tool_running.render_result import MAX_BYTES, cut
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.agent import Agent
from mulligan.errors import MulliganError, StructuredOutputError, truncated
from mulligan.observe.tool_call_span import ToolCallSpan
from mulligan.policy import MODELS_OWN_MISTAKES, HandleErrors, Mistake, error_source, text_for_model, with_message_of
from mulligan.schema.error_text import type_name
from mulligan.tool import Tool
from mulligan.values import ErrorInfo

POLICY_LIMIT = 10.0
"""Seconds that a policy's function may take."""


@dataclass(frozen=True)
class _Handled:
    """A failure after its policy was applied.

    `text` is the feedback for the model; `safe_text` is the part of it that quotes no input, for spans. `exception` is the
    name of the type of the exception that caused the failure.
    """

    text: str
    safe_text: str
    error: ErrorInfo
    exception: str

    @property
    def _is_recovered(self) -> bool:
        return isinstance(self, ReturnedToModel)

    def end_span(self, span: ToolCallSpan) -> None:
        """Record the failure on the span of its call, and end the span."""
        span.fail(
            self.error.kind,
            text=self.text,
            safe_text=self.safe_text,
            exception=self.exception,
            recovered=self._is_recovered,
        )


@dataclass(frozen=True)
class ReturnedToModel(_Handled):
    """The model reads `text`, and the run continues."""

    failure: None = field(default=None, init=False)


@dataclass(frozen=True)
class FailsRun(_Handled):
    """The run fails with the error that `failure` is the JSON of."""

    failure: dict[str, Any]


HandledFailure = ReturnedToModel | FailsRun


def policy_for(
    error: Mistake, *, agent: Agent | None, tool: Tool | None, on_invalid_tool_input: str | None = None
) -> HandleErrors:
    """The policy that applies to a failure.

    The first declared policy applies: the run's `on_invalid_tool_input`, which is for mistakes of the model alone; the
    policy of the tool, or of the output for an error in structured output; the policy of the agent. The default is True:
    the model gets the standard text.
    """
    if on_invalid_tool_input is not None and error.kind in MODELS_OWN_MISTAKES:
        return on_invalid_tool_input == "feedback"
    declared = tool.handle_errors if tool is not None else None
    if isinstance(error, StructuredOutputError):
        declared = (
            agent.declared_output.handle_errors if agent is not None and agent.declared_output is not None else None
        )
    if declared is None and agent is not None:
        declared = agent.handle_errors
    return True if declared is None else declared


async def apply_policy(error: Mistake, policy: HandleErrors, runtime: ToolRuntime) -> HandledFailure:
    """Apply a policy to a failure. A policy's function that exceeds its time limit has no effect."""
    standard = text = error.text
    failure: MulliganError | None = None
    try:
        if isinstance(policy, (bool, str, type, tuple)):
            text = str(text_for_model(error, policy, standard))
        else:
            text = await runtime.run(text_for_model, (error, policy, standard), limit=POLICY_LIMIT, read=str, of=policy)
    except MulliganError as fatal:
        failure = fatal
    except TookTooLong:
        text = standard
    except BaseException as raised:
        task = asyncio.current_task()
        if isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        failure = with_message_of(error, raised)
    # A policy's function may return any text, of any length.
    text = cut(text, MAX_BYTES)
    safe_text = error.message if text == standard else text
    info = ErrorInfo(kind=error.kind, message=truncated(error.message))
    exception = type_name(error_source(error) or error)
    if failure is None:
        return ReturnedToModel(text, safe_text, info, exception)
    return FailsRun(text, safe_text, info, exception, failure.to_json())
