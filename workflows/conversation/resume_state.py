"""What a run leaves to one that goes on with its conversation."""

from __future__ import annotations

from mulligan.run_input import RunInput
from mulligan.wire.resume_page import ResumeState
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation, fitting
from mulligan.workflows.people.inbox import Inbox


def resume_state_page(
    run_input: RunInput, trace: str, conversation: Conversation, inbox: Inbox, since: int
) -> ResumeState:
    """A page of what was left, from message `since` on: with what people said last, that the model has not read."""
    left = [*conversation.left(), *inbox.unread()]
    since = max(0, since)
    page = fitting(left[since:], limits.PAGE_BYTES)
    end = since + len(page)
    return ResumeState(
        input=run_input.model_copy(update={"messages": [], "prompt": None}),
        trace=trace,
        messages=page,
        undecided=inbox.undecided(),
        next=end if end < len(left) else None,
    )
