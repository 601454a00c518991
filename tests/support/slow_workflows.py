"""More time for a workflow's task than the SDK allows. Nothing of the product is imported here: it is for all tests."""

from __future__ import annotations

from functools import wraps
from typing import Any

from temporalio.worker import _workflow

SECONDS_FOR_A_WORKFLOW = 30


def allow_slow_workflows() -> None:
    """Raise the SDK's deadlock timeout for the workers of this process, which is two seconds for a workflow task.

    It is measured in wall-clock time. If several processes share few cores, a workflow that reads megabytes needs longer, and its
    task (or a query) fails. The SDK has no setting for it except its debug mode, which disables the sandbox as well.
    """
    made = _workflow._WorkflowWorker.__init__

    @wraps(made)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if self._deadlock_timeout_seconds:  # a replay for ended runs has none
            self._deadlock_timeout_seconds = SECONDS_FOR_A_WORKFLOW

    _workflow._WorkflowWorker.__init__ = make  # type: ignore[method-assign]
