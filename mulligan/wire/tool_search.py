"""`find_tools`: a search for tools that the model does not see yet, and what it has found.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import BaseModel

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.tool import FIND_TOOLS
from mulligan.values import Message, ToolMessage
from mulligan.wire.tool_call import CallTool

MOST_FOUND, MOST_TOOLS = 60, 128
"""Tools that were found and are remembered; tools in a request, with the others: OpenAI accepts no more."""


class FindTools(CallTool):
    """Input of `find_tools`: a call of the tool, the digest of the run's definition, and the most tools that it returns."""

    definition: str
    limit: int


class SearchState(BaseModel):
    """What a model call says of tools on demand: the names of those that the model has found, in that order."""

    found: list[str] = optional_field([])


def names_in(message: Message) -> list[str] | None:
    """The names of the tools that the result of a search contains; None if the message is none."""
    if not isinstance(message, ToolMessage) or message.name != FIND_TOOLS or message.error is not None:
        return None
    try:
        tools = json.loads(message.text)
    except ValueError:
        return None
    if not isinstance(tools, list):
        return None
    return [tool["name"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


def with_new(found: Sequence[str], names: Sequence[str]) -> list[str]:
    """The tools that were found, and after them those that are new. Of more than `MOST_FOUND`, the older half goes."""
    both = list(dict.fromkeys([*found, *names]))
    return both if len(both) <= MOST_FOUND else both[-MOST_FOUND // 2 :]


WORDS = FeatureWords(activities=(FIND_TOOLS,))
