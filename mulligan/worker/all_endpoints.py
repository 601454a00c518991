"""The endpoints that a worker knows: those declared in code, and those of the operator's file, which come first."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mulligan.activities.registry import Registry
from mulligan.endpoint import Endpoint, check_address, read_endpoints
from mulligan.errors import DeclarationError
from mulligan.model_name import ModelName
from mulligan.provider_plugin import ProviderTraits

EMPTY_IS_UNSET = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL")
"""Google's package ignores these if they are empty. The other packages take an empty text for the address."""


def all_endpoints(registry: Registry, file: str) -> dict[str, Endpoint]:
    """All endpoints by their names. `file`: that of MULLIGAN_ENDPOINTS, or "".

    Raises:
        DeclarationError: the file cannot be read or has a fault.
    """
    return {**registry.endpoints, **read_endpoints(file)}


def check_endpoints(registry: Registry, file: str) -> list[str]:
    """Check the endpoints of all agents, and return a warning for each variable that one needs and that is not set.

    Raises:
        DeclarationError: an agent names an endpoint that is declared nowhere; the file has a fault; or the address of a
            provider's default endpoint that an agent uses is invalid.
    """
    known, used = all_endpoints(registry, file), {}
    for agent in registry.agents.values():
        for model in agent.all_models(agent.models):
            name = ModelName.parse(model).endpoint
            if name and name not in known:
                raise DeclarationError(
                    f"{agent.source}: agent {agent.name!r}: the model {model!r} names an endpoint that this worker does not "
                    f"know ({_names(known)}); add [{name}] to the file of MULLIGAN_ENDPOINTS, or declare it with Model(…)."
                )
            if name:
                used[name] = known[name]
    defaults = _default_endpoints(registry)
    _check_addresses(defaults)
    return [*_missing_keys(defaults), *_missing_variables(used)]


def _default_endpoints(registry: Registry) -> dict[str, ProviderTraits]:
    """The providers whose default endpoints agents use."""
    models = (model for agent in registry.agents.values() for model in agent.all_models(agent.models))
    names = (ModelName.parse(model) for model in models)
    return {name.provider: name.traits for name in names if not name.endpoint}


def _check_addresses(defaults: Mapping[str, ProviderTraits]) -> None:
    """Check the addresses of default endpoints.

    Raises:
        DeclarationError: one is set, and requests cannot be sent to it.
    """
    for traits in defaults.values():
        for variable in traits.url_variables:
            if (url := os.environ.get(variable)) is not None and (url or variable not in EMPTY_IS_UNSET):
                check_address(url, variable)


def _missing_keys(defaults: Mapping[str, ProviderTraits]) -> list[str]:
    """A warning for each provider whose key is not set."""
    return [
        f"{provider}: {traits.key_variables[0]} is not set; the requests to its models will fail."
        for provider, traits in defaults.items()
        if traits.key_variables and not any(os.environ.get(each, "").strip() for each in traits.key_variables)
    ]


def _missing_variables(used: Mapping[str, Endpoint]) -> list[str]:
    return [
        f"endpoint {name!r}: {variable} is not set; the requests to it will fail."
        for name, endpoint in used.items()
        for variable in endpoint.missing_variables()
    ]


def _names(known: Mapping[str, Endpoint]) -> str:
    return f"it knows {', '.join(sorted(known))}" if known else "it knows none"
