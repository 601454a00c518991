"""What a model call says of cleared results, and the line that stands in place of one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from mulligan.content import media_of
from mulligan.schema.optional_field import optional_field
from mulligan.values import Message, ToolMessage
from mulligan.wire.checked_result import MOST_INT


class ClearedResults(BaseModel):
    """`before`: how many messages of the view come before the first one that keeps its result; `except_tools`: the tools
    whose results stay.
    """

    before: Annotated[int, Field(ge=0, le=MOST_INT)]
    except_tools: list[str] = optional_field([])


def cleared(message: Message, except_tools: list[str]) -> ToolMessage | None:
    """The message with a line in place of its result; None if it stays as it is.

    A result that is no longer than the line stays.
    """
    if not isinstance(message, ToolMessage) or message.name in except_tools:
        return None
    count = len(media_of(message.content))
    files = f" and {count} image{'s' if count > 1 else ''} or file{'s' if count > 1 else ''}" if count else ""
    line = (
        f"[Left out to save space: the result of `{message.name}`, {len(message.text):,} characters{files}. "
        "If you still need it, get it again.]"
    )
    if not count and len(message.text) <= len(line):
        return None
    return message.model_copy(update={"text": line, "content": None})
