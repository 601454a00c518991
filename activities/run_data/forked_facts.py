"""The facts of a fork: those that the earlier run pinned, with another model or other instructions where chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from mulligan.activities.models.resolve_models import resolve_models
from mulligan.activities.run_data.definitions import define
from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.errors import InvalidRunInputError
from mulligan.features.agent_feature import AgentFeature
from mulligan.wire.agent_facts import AgentFacts, Definition
from mulligan.wire.agent_version import AgentVersion
from mulligan.wire.start_input import StartInput


async def forked_facts(services: Services, agent: Agent, run_input: StartInput) -> AgentFacts:
    """The facts of a run whose input has those of an earlier run. `agent`: as it is declared now.

    Raises:
        InvalidRunInputError: the input has others, or the price of the chosen model is unknown where the cost is limited.
    """
    forked = run_input.fork
    if forked is None:
        raise InvalidRunInputError('"carried.facts" cannot be used: the run is no fork.')
    try:
        facts = AgentFacts.model_validate(run_input.carried.facts)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise InvalidRunInputError(f'"carried.facts.{where}" cannot be used: {fault["msg"]}.') from None
    definition = await services.definitions.whole(facts.definition, run_input.tenant)
    if forked.model is not None:
        facts = await _with_model(services, agent, run_input, facts, forked.model)
        definition = await asyncio.to_thread(_with_output_for, agent, forked.model, definition)
    if forked.instructions is not None:
        chars = facts.instructions_chars
        others = "" if chars is None else definition.instructions[chars:].removeprefix("\n\n")
        texts = filter(None, (forked.instructions, others))
        definition = definition.model_copy(update={"instructions": "\n\n".join(texts)})
        facts.instructions_chars = None if chars is None else len(forked.instructions)
    facts.definition = definition
    return facts


def pinned_version(run_input: StartInput) -> AgentVersion | None:
    """The version of the agent's file by which the earlier run worked; None: the run begins by one of its own.

    Raises:
        InvalidRunInputError: the facts of the input have another one.
    """
    facts = run_input.carried.facts
    if not facts or facts.get("version") is None:
        return None
    try:
        return AgentVersion.model_validate(facts["version"])
    except ValidationError:
        raise InvalidRunInputError('"carried.facts.version" cannot be used: it is no version.') from None


async def _with_model(
    services: Services, agent: Agent, run_input: StartInput, facts: AgentFacts, model: str
) -> AgentFacts:
    """The facts with the chosen model's prices, and with what its features need to know of it.

    Whatever does not depend on the model stays as it was pinned, also where the agent has changed since.
    """
    has_budget = services.budgets.is_limited(run_input.tenant)
    models = resolve_models(agent, run_input, services.prices, has_budget=has_budget)
    features = await asyncio.to_thread(_features_for, agent, facts, model)  # they may read files
    update: dict[str, Any] = {"prices": {**models.prices, **facts.prices}, "features": features}
    return facts.model_copy(update=update)


def _features_for(agent: Agent, facts: AgentFacts, model: str) -> dict[str, Any]:
    features = dict(facts.features)
    for each in agent.all_features:
        if (pinned := features.get(each.name)) is not None:
            features[each.name] = {**pinned, **_differing(each, [facts.model, *facts.fallbacks], model)}
    return features


def _differing(feature: AgentFeature, models: Sequence[str], chosen: str) -> dict[str, Any]:
    """Those of a feature's facts that are others for the chosen model than for one of the models."""
    others = [feature.facts([each]) for each in models]
    return {
        name: value
        for name, value in feature.facts([chosen]).items()
        if any(name not in each or each[name] != value for each in others)
    }


def _with_output_for(agent: Agent, model: str, pinned: Definition) -> Definition:
    """The definition with the output requested as the model needs it: as a tool, or as a format of the answer."""
    if agent.declared_output is None:
        return pinned
    today = define(agent, "", model)
    if (today.output is None) == (pinned.output is None):
        return pinned
    names = {kind.name for kind in agent.declared_output.types}
    tools = [each for each in pinned.tools if each.name not in names]
    tools += [each for each in today.tools if each.name in names]
    return pinned.model_copy(update={"tools": tools, "output": today.output})
