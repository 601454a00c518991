"""`Script`: the answers of the deterministic `scripted:` model, for demos and tests. It needs no key."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.values import AssistantMessage, Message, ToolMessage

BUILT_IN_SCRIPTS = frozenset({"echo", "summary"})
"""The scripts that every worker has: `scripted:echo` and `scripted:summary`."""


@dataclass(frozen=True)
class Call:
    """A tool call of a script. `arguments` is a dict, or raw text where the script makes a mistake on purpose."""

    name: str
    """The name of the tool."""
    arguments: dict[str, Any] | str = field(default_factory=dict)
    id: str | None = None
    """The call's id; None: one is made."""

    @property
    def raw(self) -> str:
        """The arguments as the text that a model would write."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Say:
    """One answer of the model: text, calls, or both. `pace`: seconds for each word, so that the text can be watched."""

    text: str = ""
    """The text of the answer."""
    calls: Sequence[Call] = ()
    """The tool calls of the answer."""
    finish_reason: str | None = None
    """Such as `length` for an answer that was cut off. None: the model finished."""
    pace: float = 0


@dataclass(frozen=True, eq=False)
class Script:
    """The answers of the model `scripted:NAME`, turn by turn.

    A turn is a `Say`, or a function of the conversation so far that returns one. The number of the turn is the number of
    the assistant's messages in the conversation, those before a compaction included: retries and replays get the same
    answer. After its end a script repeats its last turn.
    """

    name: str
    """Selected as the model `scripted:NAME`."""
    turns: Sequence[Say | Callable[[Sequence[Message]], Say]]
    """The answers in their order."""
    source: str = field(default="", init=False, repr=False)
    """The file that declares it."""

    def __post_init__(self) -> None:
        frame = inspect.currentframe()
        while frame and frame.f_code.co_filename in (__file__, "<string>"):
            frame = frame.f_back
        object.__setattr__(self, "source", frame.f_code.co_filename if frame else "<unknown file>")

    def answer(self, messages: Sequence[Message], summarized_answers: int = 0) -> Say:
        """The answer to a conversation (`messages`), of which a compaction removed `summarized_answers` of the model."""
        spoken = summarized_answers + sum(isinstance(message, AssistantMessage) for message in messages)
        turn = self.turns[min(spoken, len(self.turns) - 1)]
        return turn if isinstance(turn, Say) else turn(messages)


def last_result(messages: Sequence[Message]) -> str:
    """The text of the newest tool result of `messages`, empty without one: a turn that is a function often needs it."""
    return next((message.text for message in reversed(messages) if isinstance(message, ToolMessage)), "")
