"""What the decorators of workflows and activities have noted.

The SDK has no public way to ask whether a class is a workflow, or for the name of an activity (temporalio 1.35.0; no
upstream issue known).
"""

from __future__ import annotations

import inspect
from typing import Any

from temporalio import activity, workflow


def workflow_definition(value: object) -> Any:
    """The definition of a workflow: `name`, `cls`, `signals` …; None for whatever is not a class with `@workflow.defn`."""
    return workflow._Definition.from_class(value) if inspect.isclass(value) else None


def activity_definition(value: object) -> Any:
    """The definition of an activity: `name`, `arg_types` …; None for whatever is not a function with `@activity.defn`."""
    return activity._Definition.from_callable(value) if inspect.isroutine(value) else None
