"""What a model said, within what Temporal carries: a run must never die of one answer.

An activity's result of more than 2 MB fails the run, and one of more than 4 MB is lost on the way and asked for again
without end. An answer holds the text, the raw arguments, the valid arguments where they differ, what repairs changed, and
what the model is told of its mistakes: each is bounded so that all together fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mulligan.activities.models.protocol import Reply
from mulligan.activities.tool_running.render_result import cut
from mulligan.values import Repair, ToolCall
from mulligan.wire.model_call import ModelAnswer, PreparedCall
from mulligan.wire.shorten import shortened, size

TEXT_CHARS = 100_000
"""Characters of an answer's text: no model writes more in one go."""
TEXT_BYTES = 300_000
MOST_CALLS = 127
"""Calls of one answer, with one more that is told of it: OpenAI takes no message back that has more than 128. A run can have
2,000 activities open, and each call is up to six events of its history."""
NAME_CHARS = 200
"""Characters of a call's name: providers take 64."""
ARGUMENTS_BYTES = 500_000
"""Bytes of arguments, of all calls of a step together, as they were written or as they were mended: about 128,000 tokens
of output."""
PROVIDER_BYTES = 300_000
"""Bytes of items that go back to the provider. Without them it still takes the message."""
REPAIR_BYTES = 10_000
"""Bytes of each side of a repair that stay visible."""
REPAIRS_BYTES = 150_000
"""Bytes of what the repairs of all calls of a step changed."""
TOLD_BYTES = 250_000
"""Bytes of what the model is told of all calls of a step."""
ANSWER_BYTES = 1_900_000


def fit_text(text: str) -> str:
    """The answer's text."""
    return cut(text, TEXT_CHARS, TEXT_BYTES)


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


def fit_name(name: str) -> str:
    """A call's name."""
    return name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}…"


def repaired_too_long(prepared: Sequence[PreparedCall]) -> list[int]:
    """Which calls have valid arguments that cannot be carried: a fixer may have made much of little."""
    sizes = [size(each.arguments) if each.arguments is not None else 0 for each in prepared]
    share = ARGUMENTS_BYTES // max(1, len(sizes))
    return [index for index, each in enumerate(sizes) if each > share] if sum(sizes) > ARGUMENTS_BYTES else []


def fit_answer(answer: ModelAnswer) -> ModelAnswer:
    """The answer with what is said beside it cut, where it is too much for all of its calls together."""
    calls = answer.prepared
    if sum(size([each.model_dump(mode="json") for each in call.repairs]) for call in calls) > REPAIRS_BYTES:
        share = REPAIRS_BYTES // (2 * sum(len(call.repairs) for call in calls))
        for call in calls:
            call.repairs = fit_repairs(call.repairs, share)
    if sum(size([call.text, call.error and call.error.message, call.failure]) for call in calls) > TOLD_BYTES:
        share = TOLD_BYTES // (2 * len(calls))
        for call in calls:
            call.text = cut(call.text, share, share) if call.text is not None else None
            if call.error is not None:
                call.error = call.error.model_copy(update={"message": cut(call.error.message, share // 2, share // 2)})
    if answer.message.provider_data is not None and len(answer.model_dump_json().encode()) > ANSWER_BYTES:
        answer.message = answer.message.model_copy(update={"provider_data": None})
    return answer


def fit_repairs(repairs: Sequence[Repair], most: int = REPAIR_BYTES) -> list[Repair]:
    """What repairs changed, each side short enough to be shown."""
    return [
        Repair(by=each.by, **{side: shortened(getattr(each, side), most) for side in ("before", "after")})
        for each in repairs
    ]
