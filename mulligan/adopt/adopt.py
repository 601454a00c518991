"""`adopt`: an agent of openai-agents or of pydantic-ai, as it is declared, as an agent of Mulligan's (docs/adopt.md)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from mulligan.adopt.terms import Terms
from mulligan.agent import Agent
from mulligan.errors import DeclarationError
from mulligan.schema.error_text import type_name
from mulligan.tool import ToolContext

_FRAMEWORKS = {"agents": ("openai_agents", "openai-agents"), "pydantic_ai": ("pydantic_ai", "pydantic-ai-slim")}
"""By the package that defines an agent's class: the file here, and the distribution."""
_ADOPTED: dict[tuple[int, int, str | None], tuple[Any, Any, Agent[Any]]] = {}
"""What was adopted, with what it was made of, by the ids of these and the model."""
_OPEN: set[tuple[int, int, str | None]] = set()
"""What is being adopted."""


def adopt(agent: Any, context: Callable[[ToolContext], Any] | None = None, *, model: str | None = None) -> Agent[Any]:
    """An agent that runs durably what an `Agent` of another framework declares; the framework must be installed.

    ```python
    support = adopt(support_agent, context=lambda ctx: Shop(ctx.metadata["customer"], ctx.resources))
    ```

    The same agent with the same arguments gives the same object, so that an agent that is adopted as the target of a handoff
    may be adopted by itself as well. `dataclasses.replace` changes options that the framework does not have.

    Args:
        agent: An `Agent` of openai-agents, or of pydantic-ai 2.
        context: A function, sync or async, of a ToolContext that returns the framework's context or deps object, for one
            call of a function of the agent's. None: that object is the context's `resources`.
        model: The model as Mulligan names it, in place of the agent's, and of those that it hands conversations to.

    Raises:
        DeclarationError: it is no such agent, its framework has another version, or a part of it cannot be carried over.
            What is left out without harm is named by a UserWarning.
    """
    packages = [each.__module__.partition(".")[0] for each in type(agent).__mro__]
    package = next((each for each in packages if each in _FRAMEWORKS), None)
    if package is None:
        raise DeclarationError(
            f"adopt was given a value of type {type_name(agent)}; give an Agent of openai-agents or of pydantic-ai."
        )
    file, distribution = _FRAMEWORKS[package]
    key = (id(agent), id(context), model)
    if key not in _ADOPTED:
        privates = import_module(f"mulligan.adopt.{file}_privates")
        _check_version(distribution, version(distribution), privates.TRIED)
        framework = import_module(f"mulligan.adopt.{file}")
        _OPEN.add(key)
        try:
            _ADOPTED[key] = agent, context, framework.adopted(agent, Terms(context, model, _other))
        finally:
            _OPEN.discard(key)
    return _ADOPTED[key][2]


def _other(agent: Any, context: Any, model: str | None) -> Agent[Any] | str:
    """An agent that another one names; its name where it is being adopted, as agents may name each other."""
    return agent.name if (id(agent), id(context), model) in _OPEN else adopt(agent, context, model=model)


def _check_version(distribution: str, installed: str, tried: tuple[str, ...]) -> None:
    """Check that private names of a framework are as they were when they were tried.

    Raises:
        DeclarationError: its version is older than all that were tried, or newer by more than a patch.
    """
    oldest, newest, given = (_numbers(each) for each in (tried[0], tried[-1], installed))
    if not oldest <= given or given[:2] > newest[:2]:
        raise DeclarationError(
            f"adopt does not know {distribution} {installed}: it was tried with {tried[0]} to {tried[-1]}. Install one of "
            "these, or a newer Mulligan."
        )


def _numbers(version_text: str) -> tuple[int, ...]:
    digits = ("".join(filter(str.isdigit, part)) for part in version_text.split(".")[:3])
    return tuple(int(each or 0) for each in digits)
