"""A background response that a step waits for, and what the provider's webhooks say of it."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.schema.optional_field import optional_field
from mulligan.wire.background_response import ResponseState, StartedResponse
from mulligan.wire.event_types import TextCursor
from mulligan.workflows import limits

__all__ = ["OpenResponse", "ResponseWait"]

_EARLY_IDS = 20
"""How many responses are remembered that have ended before the run knew the id of its own."""


class OpenResponse(BaseModel):
    """The response of a step. Continue-as-new carries it, so its field names are in Temporal's history.

    Times are seconds since the epoch. `number`: of the response in its step: a failed one is followed by another. `id`: None
    until it is created. `status`: the provider's word. `attempt`: of the step's model call, that created it; `failed`: the
    attempts before it. `interval`: seconds until the next poll. `fallback`: how many models failed before in this step.
    """

    number: int = optional_field(1)
    id: str | None = optional_field()
    status: str = optional_field("")
    attempt: int = optional_field(0)
    failed: int = optional_field(0)
    started: float = optional_field(0.0)
    interval: float = optional_field(limits.POLL_FIRST)
    first_failure: float | None = optional_field()
    failures: int = optional_field(0)
    unreachable: float | None = optional_field()
    """Since when the provider could not be asked."""
    stopped_at: float | None = optional_field()
    """When the wait learned of a request to stop."""
    fallback: int = optional_field(0)
    cursor: TextCursor | None = optional_field()
    """Where the next poll continues to read the text; None: the text is not read before the response has ended."""
    input_tokens: int = optional_field(0)
    """About how many tokens the request has, where the tenant has a budget."""

    @property
    def newest_attempt(self) -> int:
        """The attempt that the model works on, or that is to be made: the text of those before it is void."""
        return max(self.attempt, self.failed + 1)

    def created(self, started: StartedResponse, now: float) -> None:
        """The response was created."""
        self.id, self.status, self.attempt, self.started = started.id, started.status, started.attempt, now
        self.interval, self.unreachable, self.cursor = limits.POLL_FIRST, None, started.cursor
        self.input_tokens = started.input_tokens

    def is_running(self, state: ResponseState) -> None:
        """A poll has found that the model still works."""
        self.status, self.unreachable, self.cursor = state.detail, None, state.cursor
        if state.is_writing:
            self.interval = min(self.interval, limits.POLL_FIRST)

    def next(self) -> None:
        """The response has failed; another one follows."""
        self.number, self.failed, self.id, self.status = self.number + 1, self.attempt, None, ""
        self.cursor = None


class ResponseWait:
    """Which response an agent waits for. It may exist, and be told of responses that have ended, before its agent does."""

    def __init__(self) -> None:
        self.id: str | None = None
        """The response that is waited for."""
        self.is_creating = False
        """Whether one is being created, whose id is not known yet."""
        self._ended: list[str] = []

    @property
    def has_ended(self) -> bool:
        """Whether a webhook said that the response has ended."""
        return self.id is not None and self.id in self._ended

    def note_ended(self, response_id: str) -> bool:
        """Note that a response has ended. Returns whether the run may wait for it."""
        if response_id != self.id and not self.is_creating:
            return False
        self._ended = [*self._ended[1 - _EARLY_IDS :], response_id]
        return True

    def begin(self, response_id: str | None) -> None:
        """Wait for a response; None: for one that is created now."""
        self.id, self.is_creating = response_id, response_id is None

    def forget_end(self) -> None:
        """The response was read since: it is polled on if it has not ended after all."""
        self._ended = []

    def end(self) -> None:
        """Wait for nothing."""
        self.id, self.is_creating, self._ended = None, False, []
