"""Limits of an answer's parts, so that a large answer does not fail the run.

An activity's result of more than 2 MB fails the run; with more than 4 MB the result is lost and the activity is retried
without end. An answer contains its text, the raw arguments, the valid arguments where they differ, the changes by repairs,
and the feedback for the model. Each part has a limit, so that all of them together fit into a result.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from mulligan.activities.answers.kept_files import without_bytes
from mulligan.activities.tool_running.render_result import cut
from mulligan.schema.cut_text import beginning
from mulligan.values import Repair, ToolCall, well_formed
from mulligan.wire.model_call import ModelAnswer, PreparedCall
from mulligan.wire.shorten import json_size, shorten

TEXT_CHARS, TEXT_BYTES = 100_000, 300_000
"""Of an answer's text beside calls."""
ALONE_BYTES = 1_000_000
"""Of a text without calls, which is the run's output: models write up to 128,000 tokens, of four bytes and more."""
MOST_CALLS = 127
"""Calls of one answer; one more gets feedback about the limit. OpenAI refuses a message with more than 128 calls. A run can
have 2,000 open activities, and each call adds up to six events to its history."""
NAME_CHARS = 200
"""Characters of a call's name. Providers allow 64."""
MOST_WORDS = 30
"""Words for how requests to a model differ from those to others."""
ARGUMENTS_BYTES = 500_000
"""Bytes of arguments of all calls of a step together, raw or repaired: about 128,000 output tokens."""
PROVIDER_BYTES = 300_000
"""Bytes of the provider's own items of an answer: larger ones are described to it in text."""
REPAIR_BYTES = 10_000
"""Bytes of each side of a recorded repair."""
REPAIRS_BYTES = 150_000
"""Bytes of the recorded repairs of all calls of a step."""
FEEDBACK_BYTES = 250_000
"""Bytes of the feedback on all calls of a step."""
ANSWER_BYTES = 1_900_000


def fit_text(text: str) -> str:
    """A text beside calls, or a summary, cut to its limit."""
    return cut(text, TEXT_CHARS, TEXT_BYTES)


def fit_output(text: str, *, is_typed: bool) -> tuple[str, bool]:
    """A text without calls, cut to its limit, and whether it was cut.

    Args:
        text: The text.
        is_typed: Whether the agent has an output, which the answer has beside the text.
    """
    most = ARGUMENTS_BYTES if is_typed else ALONE_BYTES
    kept = cut(text, most, most)
    return kept, len(text) > TEXT_CHARS and kept != well_formed(text)


def oversized_calls(calls: Sequence[ToolCall]) -> set[int]:
    """If the raw arguments exceed the limit together: the indexes of the calls that do not fit, the largest ones."""
    return set(_over_limit([json_size(call.arguments) for call in calls]))


def oversized_arguments(arguments: Sequence[JsonValue]) -> list[int]:
    """The indexes of oversized recorded arguments (None: none): a fixer may return much more than the model wrote."""
    return _over_limit([0 if each is None else json_size(each) for each in arguments])


def _over_limit(sizes: Sequence[int]) -> list[int]:
    left, over = ARGUMENTS_BYTES, []
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):  # of equal ones the first ones fit
        if sizes[index] <= left:
            left -= sizes[index]
        else:
            over.append(index)
    return sorted(over)


def fit_call(call: ToolCall) -> ToolCall:
    """An oversized call with the beginning of its arguments. Its tool does not run."""
    return call.model_copy(update={"arguments": cut(call.arguments, 1_000)})


def fit_name(name: str) -> str:
    """A call's name, cut to its limit."""
    return beginning(name, NAME_CHARS)


def fit_answer(answer: ModelAnswer) -> ModelAnswer:
    """The answer with repairs, feedback and provider items shortened where all calls together exceed the limits."""
    prepared = fit_prepared(answer.prepared)
    rejected = answer.rejected
    if rejected is not None:
        text = cut(rejected.text, FEEDBACK_BYTES, FEEDBACK_BYTES)
        rejected = rejected.model_copy(update={"text": text})
    fitting = answer.model_copy(update={"prepared": prepared, "rejected": rejected})
    has_more = answer.message.provider_data is not None or answer.message.files
    if has_more and len(fitting.model_dump_json().encode()) > ANSWER_BYTES:
        files = without_bytes(answer.message.files)
        message = answer.message.model_copy(update={"provider_data": None, "files": files})
        return fitting.model_copy(update={"message": message, "hosted_calls": [], "citations": []})
    return fitting


def fit_prepared(calls: list[PreparedCall]) -> list[PreparedCall]:
    """What history has of calls, with repairs and feedback shortened where all of them together exceed the limits."""
    return _with_short_feedback(_with_short_repairs(calls))


def fit_repairs(repairs: Sequence[Repair], most: int = REPAIR_BYTES) -> list[Repair]:
    """The repairs, with at most `most` bytes of each side."""
    return [
        Repair(by=each.by, **{side: shorten(getattr(each, side), most) for side in ("before", "after")})
        for each in repairs
    ]


def _with_short_repairs(calls: list[PreparedCall]) -> list[PreparedCall]:
    if sum(json_size([each.model_dump(mode="json") for each in call.repairs]) for call in calls) <= REPAIRS_BYTES:
        return calls
    share = REPAIRS_BYTES // (2 * sum(len(call.repairs) for call in calls))
    return [call.model_copy(update={"repairs": fit_repairs(call.repairs, share)}) for call in calls]


def _with_short_feedback(calls: list[PreparedCall]) -> list[PreparedCall]:
    if sum(json_size([call.text, call.error and call.error.message, call.failure]) for call in calls) <= FEEDBACK_BYTES:
        return calls
    share = FEEDBACK_BYTES // (2 * len(calls))
    short = []
    for call in calls:
        text = cut(call.text, share, share) if call.text is not None else None
        error = call.error
        if error is not None:
            error = error.model_copy(update={"message": cut(error.message, share // 2, share // 2)})
        short.append(call.model_copy(update={"text": text, "error": error}))
    return short
