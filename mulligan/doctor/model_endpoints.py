"""Checks of the models' endpoints: whether they answer, take the key, and list the models that agents use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.protocol import ListsModels, MayDropTools, Unavailable
from mulligan.activities.registry import Registry
from mulligan.client.settings import settings
from mulligan.doctor.finding import Finding
from mulligan.errors import DeclarationError, ModelRequestError
from mulligan.extras import is_installed
from mulligan.model_name import SCRIPTED, ModelName
from mulligan.provider_plugin import BUILT_IN, ProviderTraits
from mulligan.worker.all_endpoints import all_endpoints
from mulligan.worker.loading import LoadedModules

ANSWER_TIMEOUT = 10.0
"""Seconds for one endpoint."""
NO_TOOLS = (
    "its endpoint (llama.cpp) answers, but leaves out tools silently, as the chat template of its model has none; an agent"
    " with tools needs the feature CallsInText() there, or the server another template"
)


async def check_models(loaded: LoadedModules | None) -> list[Finding]:
    """Return a finding for each model of the loaded agents; without modules, for each provider whose key is set."""
    agents = loaded.registry.agents.values() if loaded else ()
    models = sorted({model for agent in agents for model in agent.all_models(agent.models)})
    if loaded is None:
        is_openai = bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))
        others = [f"{provider}:" for provider, traits in BUILT_IN.items() if _has_key(traits)]
        others = [each for each in others if not each.startswith("openai")]
        models = [*(["openai:"] if is_openai else []), *others]
    if not models:
        return [Finding("models", "ok", "no model is declared here, and no key is set; `scripted:` models need none")]
    registry = loaded.registry if loaded else Registry([])
    try:
        providers = AvailableProviders(registry.scripts, all_endpoints(registry, settings().endpoints))
    except DeclarationError as error:
        return [Finding("models", "problem", str(error).rstrip("."))]
    by_place: dict[tuple[str, str], list[str]] = {}
    for model in models:
        parsed = ModelName.parse(model)
        by_place.setdefault((parsed.provider, parsed.endpoint), []).append(model)
    try:
        results = await asyncio.gather(*(_check_place(providers, names) for names in by_place.values()))
        return [finding for findings in results for finding in findings]
    finally:
        await providers.close()


def _has_key(traits: ProviderTraits) -> bool:
    """Whether the provider's key is set, and its extra installed."""
    is_set = any(os.environ.get(variable) for variable in traits.key_variables)
    return is_set and (not traits.extra or is_installed(traits.extra))


async def _check_place(providers: AvailableProviders, models: Sequence[str]) -> list[Finding]:
    """The findings for models of one provider at one endpoint."""
    names = [model.rstrip(":") for model in models]
    endpoint = providers.endpoint_of(models[0])
    if endpoint is not None and (missing := endpoint.missing_variables()):
        return [Finding(name, "problem", f"{' and '.join(missing)} is not set here") for name in names]
    try:
        provider = providers.of(models[0])
        async with asyncio.timeout(ANSWER_TIMEOUT):
            listed = await provider.model_names() if isinstance(provider, ListsModels) else None
            drops_tools = isinstance(provider, MayDropTools) and await provider.drops_tools()
    except TimeoutError:
        return [Finding(name, "problem", f"its endpoint does not answer within {ANSWER_TIMEOUT:g} s") for name in names]
    except (ModelRequestError, Unavailable) as error:
        return [Finding(name, "problem", str(error).rstrip(".")) for name in names]
    if drops_tools:
        return [Finding(name, "warning", NO_TOOLS) for name in names]
    if not isinstance(provider, ListsModels):
        return [Finding(name, "ok", "its provider cannot list models, so nothing was requested") for name in names]
    return [_finding(name, ModelName.parse(model).name, listed) for name, model in zip(names, models, strict=True)]


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
