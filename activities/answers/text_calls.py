"""Tool calls in the text of answers, for models without tool calls of their own: the part of a feature that does that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol

from mulligan.activities.tool_running.find_tool import RunTools
from mulligan.agent import Agent
from mulligan.features import installed
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import ToolDefinition


class TextCalls(Protocol):
    """What a feature's module in `activities/` defines, if calls in the text of its agents' answers are run."""

    def describe(self, tools: Sequence[ToolDefinition]) -> str:
        """The part of the instructions that describes the tools; "" if there is none."""
        ...

    def as_text(self, call_name: str, arguments: str) -> str:
        """A call as text, in the form that `describe` asks for. `arguments` is a JSON object."""
        ...

    async def read_calls(self, text: str, tools: RunTools) -> tuple[str, list[ToolCall]]:
        """The text without the calls in it, and those calls."""
        ...


@cache
def _by_feature() -> Mapping[str, TextCalls]:
    """Loaded when it is needed: a feature's module may import what needs this one."""
    return installed("text_calls")


def text_calls_of(agent: Agent) -> TextCalls | None:
    """How calls stand in the text of an agent's answers; None if it has no such feature."""
    return next((each for name, each in _by_feature().items() if agent.has_feature(name)), None)
