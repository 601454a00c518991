"""How a failure goes on: as text to the model, or as the end of the run, by the policy that is nearest."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from mulligan.activities.tool_running.render_result import MAX_BYTES, cut
from mulligan.activities.tool_running.tool_runtime import TookTooLong, ToolRuntime
from mulligan.errors import MulliganError, shown
from mulligan.observe.tool_call_span import ToolCallSpan
from mulligan.policy import MODELS_OWN_MISTAKES, HandleErrors, Mistake, source_of, tell, with_reason
from mulligan.values import ErrorInfo, well_formed

POLICY_LIMIT = 10.0
"""Seconds that a policy's function may take."""


@dataclass(frozen=True)
class Told:
    """What came of it: `text` for the model, or (`failure`, as JSON) the error that the run ends with."""

    text: str
    safe_text: str
    error: ErrorInfo
    failure: dict[str, Any] | None
    exception: str

    def close(self, span: ToolCallSpan) -> None:
        """Say it on the span of what went wrong, and end that."""
        span.fail(
            self.error.kind,
            text=self.text,
            safe_text=self.safe_text,
            exception=self.exception,
            recovered=self.failure is None,
        )


def nearest(error: Mistake, *policies: HandleErrors | None, override: str | None = None) -> HandleErrors:
    """The policy for an error: the run's input for the model's own mistakes, else the first of `policies` that is one."""
    if override is not None and error.kind in MODELS_OWN_MISTAKES:
        return override == "feedback"
    return next((policy for policy in policies if policy is not None), True)


async def settle(error: Mistake, policy: HandleErrors, runtime: ToolRuntime) -> Told:
    """Ask the policy."""
    standard = text = error.text
    failure: MulliganError | None = None
    try:
        if isinstance(policy, (bool, str, type, tuple)):
            text = str(tell(error, policy, standard))
        else:
            text = str(await runtime.run(tell, (error, policy, standard), limit=POLICY_LIMIT))
    except MulliganError as fatal:
        failure = fatal
    except TookTooLong:
        # A policy that hangs has said nothing: the standard text is the default.
        text = standard
    except BaseException as raised:
        task = asyncio.current_task()
        if isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        failure = with_reason(error, raised)
    # A policy's function may say anything.
    text = cut(str(well_formed(text)), MAX_BYTES)
    return Told(
        text=text,
        safe_text=error.message if text == standard else text,
        error=ErrorInfo(kind=error.kind, message=shown(error.message)),
        failure=failure.to_json() if failure else None,
        exception=type(source_of(error) or error).__name__,
    )
