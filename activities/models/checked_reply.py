"""Checks what a provider makes of an endpoint's answer: the ids that it gives, and the types of the reply's fields."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

from mulligan.activities.models.protocol import FinishReason, Mistake, Reply, Unavailable
from mulligan.content import Media, Text
from mulligan.values import Citation, HostedCall, ToolCall, Usage

MOST_ID_CHARS = 1_000
"""Characters of an id, or of a model's name, that a provider gives. Ids go into addresses, history and updates."""
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and surrogates, which UTF-8 cannot encode."""
_REASONS = get_args(FinishReason)


def checked_id(value: object, what: str) -> str:
    """An id that a provider has given.

    Args:
        value: The id.
        what: Whose it is, for the error.

    Raises:
        Unavailable: it is neither a text nor an integer, is empty or too long, or has control characters.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or _UNSENDABLE.search(value):
        raise Unavailable(f"the endpoint's answer has no id of {what}")
    if len(value) > MOST_ID_CHARS:
        raise Unavailable(
            f"the endpoint's id of {what} has {len(value):,} characters; at most {MOST_ID_CHARS:,} are read"
        )
    return value


def checked_reply(reply: Reply) -> Reply:
    """The reply, with an id and a model's name that fit on a span.

    Raises:
        Unavailable: a field has a wrong type.
    """
    texts = (reply.text, reply.response_id, reply.model, reply.reason, reply.own_finish_reason, *reply.adapted)
    is_valid = all(isinstance(each, str) for each in texts) and all(isinstance(each, ToolCall) for each in reply.calls)
    is_valid = is_valid and all(isinstance(each, HostedCall) for each in reply.hosted_calls)
    is_valid = is_valid and isinstance(reply.mistake, Mistake | None)
    is_valid = is_valid and all(isinstance(each, Citation) for each in reply.citations)
    is_valid = is_valid and all(isinstance(each, Text | Media) for each in reply.files)
    is_valid = is_valid and isinstance(reply.usage, Usage) and isinstance(reply.last_usage, Usage | None)
    if not is_valid or reply.finish_reason not in _REASONS:
        raise Unavailable("the provider's reply has a field of a wrong type, and cannot be used")
    return replace(reply, response_id=reply.response_id[:MOST_ID_CHARS], model=reply.model[:MOST_ID_CHARS])
