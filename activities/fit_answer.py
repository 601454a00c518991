"""What a model said, within what Temporal carries: a run must never die of one answer.

An activity's result of more than 2 MB fails the workflow on the server. An answer holds the text, the raw arguments, the
valid arguments where they differ, and what repairs changed: each is bounded so that all together fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from activities.providers.protocol import Reply
from activities.render_result import cut
from mulligan.shorten import shortened, size
from mulligan.values import Repair, ToolCall

TEXT_CHARS = 100_000
"""Characters of an answer's text: no model writes more in one go."""
ARGUMENTS_BYTES = 500_000
"""Bytes of raw arguments, of all calls of a step together: about 128,000 tokens of output."""
PROVIDER_BYTES = 300_000
"""Bytes of items that go back to the provider. Without them it still takes the message."""
REPAIR_BYTES = 10_000
"""Bytes of each side of a repair that stay visible."""


def fit_text(text: str) -> str:
    """The answer's text."""
    return cut(text, TEXT_CHARS)


def fit_provider_data(reply: Reply) -> dict[str, Any] | None:
    """The provider's items, or nothing where they are too large to be carried."""
    return reply.provider_data if size(reply.provider_data) <= PROVIDER_BYTES else None


def too_long(calls: Sequence[ToolCall]) -> set[int]:
    """Which calls have arguments that cannot be carried: those over their share."""
    share = ARGUMENTS_BYTES // max(1, len(calls))
    if sum(size(call.arguments) for call in calls) <= ARGUMENTS_BYTES:
        return set()
    return {index for index, call in enumerate(calls) if size(call.arguments) > share}


def fit_call(call: ToolCall) -> ToolCall:
    """A call whose arguments are too long, with their beginning: it is not run."""
    return call.model_copy(update={"arguments": cut(call.arguments, 1_000)})


def fit_repairs(repairs: Sequence[Repair]) -> list[Repair]:
    """What repairs changed, each side short enough to be shown."""
    return [
        Repair(by=each.by, **{side: shortened(getattr(each, side), REPAIR_BYTES) for side in ("before", "after")})
        for each in repairs
    ]
