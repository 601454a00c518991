"""Which request in a batch an agent waits for, and the signal that brings its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import ValidationError
from temporalio import workflow

from mulligan.wire.batch_call import BATCH_ANSWERED, BatchAnswer

__all__ = ["BatchWait", "listen_for_batches"]


class BatchWait:
    """The wait of one agent. `key`: of the request, None if none is waited for; `since`: seconds since the epoch."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.since = 0.0
        self.answer: BatchAnswer | None = None

    def begin(self, key: str) -> None:
        """Wait for the answer to a request."""
        self.key, self.since, self.answer = key, workflow.time(), None

    def end(self) -> None:
        """Wait for nothing."""
        self.key, self.answer = None, None


class _WithBatch(Protocol):
    @property
    def batch(self) -> BatchWait: ...


def listen_for_batches(inboxes: Mapping[str, _WithBatch]) -> None:
    """Take the answers of batches. The first one to a request that an agent waits for counts; others are ignored."""

    def batch_answered(argument: Any = None) -> None:
        try:
            answer = BatchAnswer.model_validate(argument)
        except ValidationError:
            return
        for inbox in inboxes.values():
            if inbox.batch.key == answer.key and inbox.batch.answer is None:
                inbox.batch.answer = answer

    if workflow.get_signal_handler(BATCH_ANSWERED) is None:
        workflow.set_signal_handler(BATCH_ANSWERED, batch_answered)
