"""The results that the calls of a run had: in a fork, or a replayed case, an equal call gets them and does not run.

It is in history as JSON: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, JsonValue

from mulligan.content import Part
from mulligan.once import call_digest
from mulligan.schema.argument_digest import digests_of
from mulligan.schema.optional_field import optional_field
from mulligan.values import Decision, ErrorInfo, Message, Step, StepCall, ToolMessage

LONG_ARGUMENTS = 2_000
"""Characters of arguments up to which a step of any size has them whole, but for a step of a hundred calls."""


class RecordedOutcome(BaseModel):
    """What a call had: its result, and the person's decision. `edited`: the arguments as a person had changed them."""

    text: str
    error: ErrorInfo | None = optional_field()
    content: list[Part] | None = optional_field()
    decision: Decision | None = optional_field()
    edited: JsonValue = optional_field()
    edited_digest: str | None = optional_field()
    """That of the normal form of `edited`."""
    untrusted: bool = optional_field(False)
    """Whether others may have written the result."""


def records_of(steps: Iterable[Step], messages: Iterable[Message]) -> dict[str, list[RecordedOutcome | None]]:
    """What the calls of a run had, by their digests and in their order; None for a call without a result.

    `steps` say which calls were valid; only `messages` have long texts whole.
    """
    written: dict[str, str] = {}
    results: dict[str, ToolMessage] = {}
    for message in messages:
        if message.role == "tool":
            results[message.call_id] = message
        elif message.role == "assistant":
            written |= {call.id: call.arguments for call in message.tool_calls}
    records: dict[str, list[RecordedOutcome | None]] = {}
    of_answers = [call for step in steps for call in step.tool_calls]
    for call in (each for outer in of_answers for each in (outer, *outer.calls)):
        if call.arguments is not None:
            digest, outcome = _record(call, written.get(call.id, ""), results.get(call.id))
            records.setdefault(digest, []).append(outcome)
    return records


def record_digest(name: str, digests: Sequence[str]) -> str:
    """A digest of a call's name and its arguments, as the model wrote them. `digests`: of its arguments."""
    return call_digest(name, digests[-1])[:16]


def _record(call: StepCall, written: str, message: ToolMessage | None) -> tuple[str, RecordedOutcome | None]:
    arguments = json.loads(written) if len(written) > LONG_ARGUMENTS else call.arguments  # the step's may be cut
    result, decision = message or call.result, call.decision  # the results of an open step are in no message yet
    is_edited = decision is not None and decision.edited
    digests = digests_of(arguments, call.argument_digests)
    digest = record_digest(call.name, digests)
    if result is None:
        return digest, None
    return digest, RecordedOutcome(
        text=result.text,
        error=result.error,
        content=result.content or None,
        decision=decision,
        edited=arguments if is_edited else None,
        edited_digest=digests[0] if is_edited else None,
        untrusted=call.result is not None and call.result.trust is not None,
    )
