"""Keeps the cancellation of a task what it is, for those who have cancelled it: `asyncio.timeout`, `asyncio.wait_for`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from temporalio.exceptions import FailureError


@contextmanager
def kept_cancellation() -> Iterator[Callable[[], bool]]:
    """Raise the cancellation of this task in place of a failure, also of one that had come before it.

    Else a workflow that catches failures would go on, although somebody has cancelled it. The block gets a function that
    says whether the task was cancelled since the block began: a workflow may go on in a task whose earlier cancellation it
    has caught.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()

    def is_cancelled() -> bool:
        return task.cancelling() > before

    try:
        yield is_cancelled
    except FailureError as error:
        if is_cancelled():
            raise asyncio.CancelledError from error
        raise
