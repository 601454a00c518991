"""What a run leaves to one that goes on with its conversation."""

from __future__ import annotations

from mulligan.left import Left
from mulligan.values import RunInput
from workflows import policies
from workflows.conversation import Conversation


def left(run_input: RunInput, trace: str, conversation: Conversation, since: int) -> Left:
    """A page of what was left, from message `since` on."""
    page, following = conversation.left_page(max(0, since), policies.PAGE_BYTES)
    return Left(
        input=run_input.model_copy(update={"messages": [], "prompt": None}),
        trace=trace,
        messages=page,
        next=following,
    )
