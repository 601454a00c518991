"""`Guardrails`: functions that check what a run begins with and what it ends with (docs/guardrails.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from mulligan.features.agent_feature import AgentFeature
from mulligan.tool import ToolContext
from mulligan.values import Message

if TYPE_CHECKING:
    from mulligan.agent import Agent

LONGEST_TIMEOUT = 300.0
"""Seconds for the functions of one check: a model's answer waits for them."""


class AnswerAgain(Exception):
    """A validator raises it: the model reads the text, and answers again."""


@dataclass(frozen=True, kw_only=True)
class Guardrails(AgentFeature):
    """Functions, sync or async, that check the input of a turn, and its final answer.

    The context of a function is a `ToolContext`, whose `call_id` is the function's name and the step, and whose `pinned` has
    the name of the answer's `output_type`. A guardrail that fails, or takes too long, refuses.

    Args:
        input: Functions of (the conversation: a list of Messages that ends with the user's; the context), called before the
            model is. A text that a function returns ends the turn with status `refused`, and is part of its reason.
        output: The same, of (the answer: a text, or an object of the agent's output type; the context), called with each
            final answer.
        validators: Functions of (the answer, the context), called in their order before the guardrails. Each returns the
            answer, which it may change, for the next one; or it raises `AnswerAgain`.
        retries: How many answers of a turn the validators may refuse; the run fails with the next. None: the limits of the
            run apply.
        timeout: Seconds (300 at most) for the functions of one check.
    """

    input: Sequence[Callable[[list[Message], ToolContext], str | Awaitable[str | None] | None]] = ()
    output: Sequence[Callable[[Any, ToolContext], str | Awaitable[str | None] | None]] = ()
    validators: Sequence[Callable[[Any, ToolContext], Any]] = ()
    retries: int | None = None
    timeout: float = 60

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check the functions and limits. `agent`: whose feature it is."""
        lists = {"input": self.input, "output": self.output, "validators": self.validators}
        faults = {
            f"Guardrails: {name} must be a list of functions, but is {each!r}": not isinstance(each, Sequence)
            or not all(map(callable, each))
            for name, each in lists.items()
        }
        is_count = self.retries is None or (type(self.retries) is int and self.retries >= 0)
        return faults | {
            "Guardrails: give it a function; input, output and validators are empty": not any(lists.values()),
            f"Guardrails: retries is {self.retries!r}; it must be a whole number, 0 or more, or None": not is_count,
            f"Guardrails: timeout must be more than 0 and at most {LONGEST_TIMEOUT:g} s, but is {self.timeout!r}": not (
                0 < self.timeout <= LONGEST_TIMEOUT
            ),
        }

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """What is checked, whatever the run's `models` are."""
        return {
            "input": bool(self.input),
            "output": bool(self.output or self.validators),
            "timeout": self.timeout,
        }
