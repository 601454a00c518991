"""A background response that a step waits for, and what the provider's webhooks say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mulligan.wire.background import ResponseState, StartedResponse
from mulligan.wire.event_types import TextCursor
from mulligan.workflows import limits
from mulligan.workflows.waits import Wait, WaitKind

_EARLY_IDS = 20
"""How many responses are remembered that have ended before the run knew the id of its own."""


@dataclass(kw_only=True, eq=False)
class OpenResponse(Wait):
    """The response of a step.

    Times are seconds since the epoch. `number`: of the response in its step: a failed one is followed by another. `id`: None
    until it is created. `status`: the provider's word. `attempt`: of the step's model call, that created it; `failed`: the
    attempts before it. `interval`: seconds until the next poll. `patience`: of the model call, in seconds.
    """

    name: ClassVar[str] = "background"
    ended_by: ClassVar[WaitKind | None] = "model"

    model: str
    step: int
    patience: float
    number: int = 1
    id: str | None = None
    status: str = ""
    attempts: int = 0
    failed: int = 0
    started: float = 0.0
    interval: float = limits.POLL_FIRST
    first_failure: float | None = None
    failures: int = 0
    unreachable: float | None = None
    """Since when the provider could not be asked."""
    stopped_at: float | None = None
    """When the wait learned of a request to stop."""
    cursor: TextCursor | None = None
    """Where the next poll continues to read the text; None: the text is not read before the response has ended."""
    input_tokens: int = 0
    """About how many tokens the request has, where the tenant has a budget."""
    ended: list[str] = field(default_factory=list)
    """The ids of responses that have ended, as webhooks say."""

    @property
    def may_leave(self) -> bool:
        """A pause before another response is made is not carried over."""
        return self.id is not None

    @property
    def retried_for(self) -> float | None:
        """The patience, while the response is created."""
        return self.patience if self.id is None else None

    @property
    def attempt(self) -> int:
        """The attempt that the model works on, or that is to be made: the text of those before it is void."""
        return max(self.attempts, self.failed + 1)

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The model, the step and the response."""
        del others, key
        what = f"waiting for `{self.model}` (step {self.step})"
        return what if self.id is None else f"{what}: background response {self.id}, {self.status},", ""

    @property
    def has_ended(self) -> bool:
        """Whether a webhook said that the response has ended."""
        return self.id is not None and self.id in self.ended

    def is_awaited(self, response_id: str) -> bool:
        """Whether the run waits for this response, or for one whose id it does not know yet."""
        return self.id in (None, response_id)

    def note_ended(self, response_id: str) -> None:
        """Note that a response has ended."""
        self.ended = [*self.ended[1 - _EARLY_IDS :], response_id]

    def created(self, started: StartedResponse, now: float) -> None:
        """Note that the response was created."""
        self.id, self.status, self.attempts, self.started = started.id, started.status, started.attempt, now
        self.interval, self.unreachable, self.cursor = limits.POLL_FIRST, None, started.cursor
        self.input_tokens = started.input_tokens

    def is_running(self, state: ResponseState) -> None:
        """A poll has found that the model still works."""
        self.status, self.unreachable, self.cursor = state.detail, None, state.cursor
        if state.is_writing:
            self.interval = min(self.interval, limits.POLL_FIRST)

    def next(self) -> None:
        """The response has failed; another one follows."""
        self.number, self.failed, self.id, self.status = self.number + 1, self.attempts, None, ""
        self.cursor = None
