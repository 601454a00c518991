"""Ids of calls: what a model gives as one may be illegal, missing, or another call's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mulligan.activities.answers.size_limits import fit_name
from mulligan.values import ToolCall

LONGEST_ID = 40
"""Characters of a call's id: the contract's 64 is more than OpenAI's Chat Completions take."""


def with_unique_ids(calls: Sequence[ToolCall], used: set[str], step: int, digest: str = "") -> list[ToolCall]:
    """The calls, each with an id that is legal and its own in the whole conversation.

    `used` are the ids that are there to be seen. Where a compaction took others away, each id gets a mark that no
    earlier one can have: of the conversation's `digest`, which is another at each step, and which no model knows.
    """
    taken: set[str] = set()
    own = []
    for index, call in enumerate(calls):
        legal = re.sub(r"[^a-zA-Z0-9_-]", "_", call.id)[:LONGEST_ID]
        call_id = legal or f"call_{step}_{index}"
        if digest:
            call_id = f"{(legal or 'call')[: LONGEST_ID - 18]}_{digest[:12]}_{index}"
        again = 0
        while call_id in taken or call_id in used:
            again += 1
            call_id = f"{(legal or 'call')[: LONGEST_ID - 16]}_{step}_{index}" + (f"_{again}" if again > 1 else "")
        taken.add(call_id)
        own.append(call.model_copy(update={"id": call_id, "name": fit_name(call.name)}))
    return own
