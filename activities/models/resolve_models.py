"""Which models a run may ask, for how long, and what they cost: pinned as it opens, so that its workflow can count."""

from __future__ import annotations

from mulligan.activities.models.scripted import SUMMARY
from mulligan.agent import Agent, with_sub_agents
from mulligan.durations import seconds
from mulligan.errors import InvalidRunInputError
from mulligan.model_name import SCRIPTED, ModelName
from mulligan.prices import Prices
from mulligan.run_input import RunInput
from mulligan.wire.agent_facts import ModelFacts

PATIENCE = 3600.0
FALLBACK_PATIENCE = 60.0
"""Seconds that a model is waited for where the agent does not say: the last that is asked, and those before it. A minute is
five or six attempts; whoever names another model does not want an hour to pass before it is asked."""


def resolve_models(agent: Agent, run_input: RunInput, prices: Prices) -> ModelFacts:
    """What the workflow is told of a run's models.

    Raises:
        InvalidRunInputError: the run's cost is limited, but could not be counted.
    """
    models = [run_input.model] if run_input.model else list(agent.models)
    asked = agent.all_models([*models, *filter(None, [compact_model(agent, models[0])])])
    known = prices.of_all(asked)
    is_limited = (run_input.max_cost or agent.max_cost) is not None
    # What its sub-agents take counts as well.
    counted = (
        [*asked, *(each for sub in with_sub_agents([agent])[1:] for each in sub.all_models(sub.models))]
        if is_limited
        else []
    )
    unknown = next((each for each in counted if each not in prices.of_all(counted)), None)
    if unknown is not None:
        name = ModelName.parse(unknown).name
        raise InvalidRunInputError(
            f'"max_cost" limits this run, but the price of {unknown} is not known; put it into a file that MULLIGAN_PRICES '
            f'names for the worker: {{"models": {{"{name}": {{"input": …, "output": …}}}}}}, in USD for 1,000,000 tokens.'
        )
    is_stated = agent.model_patience is not None
    return ModelFacts(
        model=agent.models[0],
        fallbacks=list(agent.models[1:]),
        fallback_patience=None if is_stated or len(agent.models) == 1 else FALLBACK_PATIENCE,
        max_cost=agent.max_cost,
        prices=known,
    )


def model_patience(agent: Agent) -> float:
    """Seconds that the last model that is asked is waited for."""
    return PATIENCE if agent.model_patience is None else seconds(agent.model_patience)


def compact_model(agent: Agent, model: str) -> str | None:
    """Who sums up where it is not the run's own model: a script has no turn for that."""
    by_script = agent.compact_at is not None and ModelName.parse(model).provider == SCRIPTED
    return agent.compact_model or (f"{SCRIPTED}:{SUMMARY}" if by_script else None)
