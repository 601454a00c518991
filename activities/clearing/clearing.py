"""Puts a line in place of each cleared result, in what is sent only."""

from __future__ import annotations

from dataclasses import replace

from pydantic import JsonValue

from mulligan.activities.request_draft import RequestDraft
from mulligan.wire.clearing import ClearedResults, cleared


def prepare_request(draft: RequestDraft, said: JsonValue) -> RequestDraft:
    """The request without the cleared results. `said`: what the workflow says of them.

    The line depends on the result alone, so a message that was cleared once is the same bytes in all later requests.
    """
    results = ClearedResults.model_validate(said)
    messages, items = list(draft.messages), list(draft.items)
    for index in range(min(results.before, len(messages))):
        if index in draft.fixed:
            continue
        if (short := cleared(messages[index], results.except_tools)) is not None:
            messages[index], items[index] = short, draft.provider.encode(short)
    return replace(draft, messages=messages, items=items)
