"""What requests contain of the tools that the model finds on demand, and the activity that finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import JsonValue

from mulligan.activities.models.protocol import ToolsOnDemand
from mulligan.activities.request_draft import RequestDraft
from mulligan.activities.services import Services
from mulligan.activities.tool_search.find_tools import FindToolsActivity
from mulligan.features.tool_search import MOST_AT_ONCE
from mulligan.wire.tool_search import MOST_TOOLS, SearchState, names_in


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    return [FindToolsActivity(services).find_tools]


def prepare_request(draft: RequestDraft, said: JsonValue) -> RequestDraft:
    """The request with the tools that were found, after those that the model always sees.

    The results of searches stay as they are: a provider that defers tools reads them. `said`: what the workflow says.
    """
    definition, hidden = draft.definition, {*draft.definition.unseen}
    unseen = {tool.name: tool for tool in definition.tools if tool.name in hidden}
    found = [unseen[name] for name in SearchState.model_validate(said).found if name in unseen]
    visible = definition.visible_tools
    visible += found[-max(MOST_AT_ONCE, MOST_TOOLS - len(visible)) :]
    finds: dict[str, list[str]] = {}
    results: set[int] = set()
    for index, message in enumerate(draft.messages):
        if (names := names_in(message)) is not None:
            results.add(index)
            finds[getattr(message, "call_id", "")] = [name for name in names if name in unseen]
    return replace(
        draft,
        definition=definition.model_copy(update={"tools": visible, "unseen": []}),
        unseen=ToolsOnDemand(list(unseen.values()), finds) if unseen else None,
        fixed=draft.fixed | results,
    )
