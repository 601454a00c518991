"""On which terms an agent is adopted: its context, its model, and how what does not carry over is told."""

from __future__ import annotations

import asyncio
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mulligan.agent import Agent
from mulligan.errors import DeclarationError
from mulligan.features import OWN
from mulligan.features.agent_feature import AgentFeature
from mulligan.mcp import MAX_NAME_CHARS, McpServer
from mulligan.policy import Mistake
from mulligan.tool import ToolContext


@dataclass(frozen=True)
class Terms:
    """What `adopt` was given beside the agent. `adopt`: adopts an agent that this one names, or returns its name."""

    context: Callable[[ToolContext], Any] | None
    model: str | None
    adopt: Callable[..., Agent[Any] | str]

    async def context_of(self, ctx: ToolContext) -> Any:
        """The framework's context or deps object for a call of one of its functions."""
        return ctx.resources if self.context is None else await called(self.context, ctx)

    def other(self, agent: Any) -> Agent[Any] | str:
        """Another agent, adopted on the same terms; its name in a circle of agents."""
        return self.adopt(agent, self.context, self.model)


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function, sync or async, returns. A sync one is called in a thread, as it may block."""
    is_async = inspect.iscoroutinefunction(function)
    value = function(*arguments) if is_async else await asyncio.to_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


def failing_on(*kinds: str) -> Callable[[Mistake], str]:
    """The policy by which errors of these kinds fail a run; of all others, a person's "no" too, the model gets the text."""

    def policy(error: Mistake) -> str:
        if error.kind in kinds:
            raise error
        return error.text

    return policy


def refuse(agent: str, reasons: Iterable[str]) -> None:
    """Refuse an agent. `reasons`: what of it cannot be carried over, and what to do instead, as sentences.

    Raises:
        DeclarationError: there is a reason.
    """
    if told := " ".join(reasons):
        raise DeclarationError(f"adopt: agent {agent!r} cannot be carried over. {told}")


def warn(agent: str, what: str) -> None:
    """Warn about a part of an agent that is left out. `what`: a sentence that names it."""
    warnings.warn(f"adopt: agent {agent!r}: {what}", UserWarning, stacklevel=5)


def mcp_server(options: Mapping[str, Any]) -> McpServer:
    """A server with these options. What its name has that no name of a tool may have becomes `_`."""
    name = re.sub(r"[^A-Za-z0-9-]+", "_", options["name"])[:MAX_NAME_CHARS].strip("_")
    return McpServer(**{**options, "name": name or "mcp"})


def guardrails(agent: str, **options: Any) -> list[AgentFeature]:
    """The feature that calls functions of these options, if there are any.

    Raises:
        DeclarationError: the feature is not installed.
    """
    if not any(options[each] for each in ("input", "output", "validators") if each in options):
        return []
    kind = next((each.agent for each in OWN if each.name == "guardrails"), None)
    if kind is None:
        raise DeclarationError(
            f"adopt: agent {agent!r} has guardrails or validators, which need the feature 'guardrails': it is not installed."
        )
    return [kind(**options)]


def again(text: str) -> Exception:
    """The exception by which a validator wants another answer; the model reads the text."""
    kind = next(each.agent for each in OWN if each.name == "guardrails")
    assert kind is not None
    refused: Exception = import_module(kind.__module__).AnswerAgain(text)
    return refused
