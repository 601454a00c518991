"""A step that alone is larger than a query's answer may be."""

from __future__ import annotations

from mulligan.values import Step
from mulligan.wire.shorten import shortened

_IN_MESSAGES = ": query `messages`"


def shortened_step(step: Step, max_bytes: int) -> Step:
    """The step with each long text cut, so that all of it fits; whole it stands in the messages."""
    share = max_bytes // (8 * (len(step.tool_calls) + 1))  # eight texts a call
    short = step.model_dump(mode="json")
    short["text"] = shortened(step.text, share, _IN_MESSAGES)
    if step.compaction is not None:
        short["compaction"]["text"] = shortened(step.compaction.text, share)
    for call in short["tool_calls"]:
        for name in ("name", "raw_arguments", "arguments"):
            call[name] = shortened(call[name], share, _IN_MESSAGES)
        for repair in call["repairs"]:
            repair |= {name: shortened(repair[name], share // len(call["repairs"])) for name in ("before", "after")}
        if call.get("decision"):
            call["decision"]["before"] = shortened(call["decision"]["before"], share, _IN_MESSAGES)
        for told in filter(None, (call["result"], (call["result"] or {}).get("error"))):
            told |= {name: shortened(told[name], share, _IN_MESSAGES) for name in ("text", "message") if name in told}
    return Step.model_validate(short)
