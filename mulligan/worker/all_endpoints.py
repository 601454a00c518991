"""The endpoints that a worker knows: those declared in code, and those of the operator's file, which come first."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mulligan.activities.registry import Registry
from mulligan.endpoint import Endpoint, read_endpoints
from mulligan.errors import DeclarationError
from mulligan.model_name import ModelName

__all__ = ["all_endpoints", "check_endpoints"]


def all_endpoints(registry: Registry, file: str) -> dict[str, Endpoint]:
    """All endpoints by their names. `file`: that of MULLIGAN_ENDPOINTS, or "".

    Raises:
        DeclarationError: the file cannot be read or has a fault.
    """
    return {**registry.endpoints, **read_endpoints(file)}


def check_endpoints(registry: Registry, file: str) -> list[str]:
    """Check the endpoints of all agents, and return a warning for each variable that one needs and that is not set.

    Raises:
        DeclarationError: an agent names an endpoint that is declared nowhere; or the file has a fault.
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
    return [*_missing_keys(registry), *_missing_variables(used)]


def _missing_keys(registry: Registry) -> list[str]:
    """A warning for each provider whose default endpoint agents use, and whose key is not set."""
    models = (model for agent in registry.agents.values() for model in agent.all_models(agent.models))
    names = (ModelName.parse(model) for model in models)
    used = {name.provider: name.traits.key_variables for name in names if not name.endpoint}
    return [
        f"{provider}: {variables[0]} is not set; the requests to its models will fail."
        for provider, variables in used.items()
        if variables and not any(os.environ.get(variable, "").strip() for variable in variables)
    ]


def _missing_variables(used: Mapping[str, Endpoint]) -> list[str]:
    return [
        f"endpoint {name!r}: {variable} is not set; the requests to it will fail."
        for name, endpoint in used.items()
        for variable in endpoint.missing_variables()
    ]


def _names(known: Mapping[str, Endpoint]) -> str:
    return f"it knows {', '.join(sorted(known))}" if known else "it knows none"
