"""The models that a run may call, their prices, and how long the run waits for them: decided when the run opens."""

from __future__ import annotations

from mulligan.activities.models.openai._openai_usage import openai_tier
from mulligan.agent import Agent, with_sub_agents
from mulligan.durations import seconds
from mulligan.errors import InvalidRunInputError
from mulligan.model_name import ModelName
from mulligan.prices import Prices
from mulligan.provider_plugin import settings_of
from mulligan.run_input import RunInput
from mulligan.values import Usage
from mulligan.wire.agent_facts import ModelFacts

OF_OPENAI = ("openai", "openai-chat")
"""The providers whose answers name a tier."""
PATIENCE = 3600.0
FALLBACK_PATIENCE = 60.0
"""Seconds that a run waits for an unavailable model if the agent does not say: for the last of its models, and for each
before it. A minute is five or six attempts; where there is another model, it should not be called only after an hour."""


def resolve_models(agent: Agent, run_input: RunInput, prices: Prices, *, has_budget: bool = False) -> ModelFacts:
    """Return the facts about a run's models that its workflow needs. `has_budget`: whether the run's tenant has one.

    Raises:
        InvalidRunInputError: the run's cost is limited, and the price of a model is not known.
    """
    models = [run_input.model] if run_input.model else list(agent.models)
    own = agent.all_models(models)
    limit = '"max_cost"' if (run_input.max_cost or agent.max_cost) is not None else "the budget of its tenant"
    if has_budget or limit == '"max_cost"':
        # What sub-agents spend counts as well.
        sub_agents = with_sub_agents([agent])[1:]
        for model in own:
            _check_price(model, agent, prices, limit)
        for sub in sub_agents:
            for model in sub.all_models(sub.models):
                _check_price(model, sub, prices, limit)
    hosted = [f"{tool.provider}:{tool.name}" for tool in agent.provider_tools]
    is_stated = agent.model_patience is not None
    return ModelFacts(
        model=agent.models[0],
        fallbacks=list(agent.models[1:]),
        fallback_patience=None if is_stated or len(agent.models) == 1 else FALLBACK_PATIENCE,
        max_cost=agent.max_cost,
        prices=prices.of_all([*own, *hosted]),
    )


def model_patience(agent: Agent) -> float:
    """Seconds that a run waits for the last of its models."""
    return PATIENCE if agent.model_patience is None else seconds(agent.model_patience)


def _check_price(model: str, agent: Agent, prices: Prices, limit: str) -> None:
    """Refuse a model whose price is not known, or not at the service tier that the agent requests."""
    parsed, price = ModelName.parse(model), prices.of(model)
    tier = openai_tier(settings_of(agent.model_settings, parsed.provider).get("service_tier"))
    if price is None or (price.of(Usage(tier=tier)) is None and parsed.provider in OF_OPENAI):
        at, tiers = (f" at the tier {tier!r}", f', "tiers": {{"{tier}": …}}') if price and tier else ("", "")
        raise InvalidRunInputError(
            f"{limit} limits this run, but the price of {model}{at} is not known; put it into a file that MULLIGAN_PRICES "
            f'names for the worker: {{"models": {{"{parsed.name}": {{"input": …, "output": …{tiers}}}}}}}, in USD for '
            "1,000,000 tokens."
        )
