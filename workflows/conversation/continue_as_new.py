"""When the history of a workflow run has grown enough to go on in a fresh one."""

from __future__ import annotations

from temporalio import workflow

from mulligan.workflows import limits


class ContinueAsNewPolicy:
    """What the history of this workflow run has grown by since it began.

    Temporal's suggestion counts what the run was given to begin with: with a long conversation carried over, it would be
    followed soon again, and the hand-overs would become most of what is written.
    """

    def __init__(self, *, is_carried: bool) -> None:
        self._began = workflow.info().get_current_history_size() if is_carried else 0
        self._not_before = 0

    def is_due(self) -> bool:
        """Whether it is time, at a step boundary."""
        info = workflow.info()
        size = info.get_current_history_size()
        grown = size - self._began
        if size < self._not_before:
            return False
        is_suggested = info.is_continue_as_new_suggested()
        if info.get_current_history_length() >= limits.GROWN_EVENTS or grown >= limits.GROWN_BYTES:
            # Runs that had got further unsuggested before there was this limit are replayed as they were.
            return is_suggested or workflow.patched("growth")
        return is_suggested and grown >= self._began

    def postpone(self) -> None:
        """What must be carried does not fit: to find that out took time, so it is not tried at each step."""
        self._not_before = workflow.info().get_current_history_size() + limits.TRY_AGAIN_BYTES
