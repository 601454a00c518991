"""A decision that depends on something outside of history: it is recorded, so that a replay decides alike."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow


def recorded_decision(name: str, decide: Callable[[], bool]) -> bool:
    """The result of `decide`, which only the first execution calls. If it is true, it is recorded under the name.

    Temporal has no command for this but the marker of `workflow.patched`: in a replay it is true where there is a marker.
    Each decision of a workflow run needs a name of its own.
    """
    return (workflow.unsafe.is_replaying() or decide()) and workflow.patched(name)
