"""What a conversation keeps beside its messages: of its steps, and of what is no longer in it. Carried over, so JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from mulligan.values import Compaction, Decision, ErrorInfo, Repair, SubRun, Usage, UserMessage


class CallRecord(BaseModel):
    """What a step says of a call beside the messages themselves."""

    arguments: Any = None
    repairs: list[Repair] = []
    attempts: int = 0
    run: SubRun | None = None
    decision: Decision | None = None


class StepRecord(BaseModel):
    """A step, by the place of its assistant message, with what is not in the messages."""

    at: int
    usage: Usage
    calls: list[CallRecord] = []
    error: ErrorInfo | None = None
    compaction: Compaction | None = None
    model: str | None = None


class Opening(BaseModel):
    """What stands in the view for messages that were summed up: the user's `task` as it was, and the summary of it all.

    `answers`: how many answers of the model it stands for.
    """

    task: str = ""
    heading: str
    summary: str
    answers: int

    @property
    def message(self) -> UserMessage:
        """One message, as many a model's template takes user and assistant in turns only."""
        return UserMessage(role="user", text="\n\n".join(filter(None, (self.task, self.heading, self.summary))))


class Earlier(BaseModel):
    """How many messages and steps the runs before this one hold alone, and which of them holds the newest of these."""

    messages: int
    steps: int
    run_id: str
