"""The ids of an answer's calls: legal for every provider, and unique in the whole conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from mulligan.activities.answers.size_limits import fit_name
from mulligan.values import ToolCall
from mulligan.wire.tool_call import digest_of_call

LONGEST_ID = 40
"""Characters of a call's id. OpenAI's Chat Completions allow 40, the Responses API 64."""
DIGEST_SUFFIX, STEP_SUFFIX = 18, 16
"""The most characters that are added to an id to make it unique: `_DIGEST_INDEX`, and `_STEP_INDEX` with a number."""


def unique_ids(calls: Sequence[ToolCall], used: Set[str], step: int, digest: str) -> list[ToolCall]:
    """The calls, each with a legal id that is unique in the whole conversation: a model may write none, or repeat one.

    `used` are the ids in the conversation. After a compaction the old ids are unknown here. So each new id gets a
    part of the conversation's `digest`, which differs at each step: it cannot equal a removed id.

    An id that is made here depends on the call: after a reset of the run, another call at the same place must not have the
    same idempotency key.
    """
    taken: set[str] = set()
    unique = []
    for index, call in enumerate(calls):
        legal = re.sub(r"[^a-zA-Z0-9_-]", "_", call.id)[:LONGEST_ID]
        call_id = legal or f"call_{step}_{index}_{digest_of_call(call)}"
        if digest:
            call_id = f"{(legal or f'call_{digest_of_call(call)}')[: LONGEST_ID - DIGEST_SUFFIX]}_{digest[:12]}_{index}"
        again = 0
        while call_id in taken or call_id in used:
            again += 1
            call_id = f"{(legal or 'call')[: LONGEST_ID - STEP_SUFFIX]}_{step}_{index}" + (
                f"_{again}" if again > 1 else ""
            )
        taken.add(call_id)
        unique.append(call.model_copy(update={"id": call_id, "name": fit_name(call.name)}))
    return unique
