"""Checks what was pinned for the features of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import TypeAdapter, ValidationError

from mulligan.errors import InvalidActivityResultError
from mulligan.wire.agent_facts import AgentFacts
from mulligan.workflows.feature import Feature


def check_feature_facts(features: Iterable[Feature], facts: AgentFacts, activity: str) -> None:
    """Check what was pinned for features. `activity`: whose result has the facts.

    Raises:
        InvalidActivityResultError: a worker of another version has written it.
    """
    for feature in features:
        name = feature.feature
        pinned = facts.features.get(name)
        of_tools = [tool.features[name] for tool in facts.tools.values() if name in tool.features]
        try:
            if pinned is not None and feature.facts_type is not None:
                feature.facts_type.model_validate_json(json.dumps(pinned), strict=True)
            if of_tools and feature.option_type is not None:
                kind = TypeAdapter(list[feature.option_type])  # type: ignore[name-defined]
                kind.validate_json(json.dumps(of_tools), strict=True)  # features read what was pinned as it stands
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, (name, *fault["loc"])))
            raise InvalidActivityResultError(
                f"The result of the activity {activity!r} cannot be used: {where}: {fault['msg']}. A worker of another "
                "version, or another program, has written it."
            ) from None
