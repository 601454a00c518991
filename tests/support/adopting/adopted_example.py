"""An example of another framework, as the program compare_adopted runs it: in the framework's environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.openai_turn import Turn

DENIED = "`{tool}` was not run: a person denied it."
"""What the model is told of a call that is denied, by both runners."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """An agent, and what its model answers.

    Attributes:
        name: The file of the framework's repository, or the heading of its documentation, whose structure it has.
        agent: The framework's agent.
        prompt: What the user says.
        turns: The model's answers, or a function of (the request's JSON, its number among the requests of a conversation).
        context: The framework's context or deps object.
        options: Further arguments of the framework's runner.
        ends: The status of Mulligan's run.
        denies: Whether a person denies each call that needs approval.
    """

    name: str
    agent: Any
    prompt: str
    turns: Sequence[Turn] | Callable[[dict[str, Any], int], Turn]
    context: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    ends: str = "completed"
    denies: bool = False
