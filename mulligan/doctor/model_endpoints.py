"""Checks of the models' endpoints: whether they answer, take the key, and list the models that agents use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from mulligan.activities.models.protocol import Provider, Unavailable
from mulligan.activities.models.providers import create_providers
from mulligan.agent import Agent
from mulligan.doctor.finding import Finding
from mulligan.errors import ModelRequestError
from mulligan.model_name import SCRIPTED, ModelName
from mulligan.script import Script

__all__ = ["check_models"]

ANSWER_TIMEOUT = 10.0
"""Seconds for one endpoint."""


async def check_models(agents: Sequence[Agent], scripts: Mapping[str, Script]) -> list[Finding]:
    """One finding for each model of these agents; without agents, one for OpenAI's endpoint if it is configured."""
    models = sorted({name for agent in agents for name in (*agent.models, agent.compact_model) if name})
    if not agents and (os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")):
        models = ["openai:"]
    if not models:
        return [Finding("models", "ok", "no model is declared here, and no key is set; `scripted:` models need none")]
    providers = create_providers(scripts)
    by_provider: dict[str, list[str]] = {}
    for model in map(ModelName.parse, models):
        by_provider.setdefault(model.provider, []).append(model.name)
    try:
        checks = [_check_provider(name, providers[name], names) for name, names in by_provider.items()]
        return [finding for findings in await asyncio.gather(*checks) for finding in findings]
    finally:
        for provider in providers.values():
            await provider.close()


async def _check_provider(prefix: str, provider: Provider, models: Sequence[str]) -> list[Finding]:
    names = [f"{prefix}:{model}" if model else prefix for model in models]
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            listed = await provider.model_names()
    except TimeoutError:
        return [Finding(name, "problem", f"its endpoint does not answer within {ANSWER_TIMEOUT:g} s") for name in names]
    except (ModelRequestError, Unavailable) as error:
        return [Finding(name, "problem", str(error).rstrip(".")) for name in names]
    return [_finding(name, model, listed) for name, model in zip(names, models, strict=True)]


def _finding(name: str, model: str, listed: Sequence[str] | None) -> Finding:
    if listed is None:
        return Finding(name, "ok", "its endpoint answers; it has no list of models, so the name was not checked")
    if not model or model in listed:
        return Finding(
            name, "ok", "its endpoint answers and takes the key" if not name.startswith(SCRIPTED) else "is loaded"
        )
    some = ", ".join(sorted(listed)[:5])
    return Finding(
        name, "warning", f"its endpoint answers, but does not list this model; it lists {len(listed)}: {some}"
    )
