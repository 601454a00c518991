"""`ToolOption`: what a feature adds to the options of a tool, as it is declared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import JsonValue

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


_ROLE = re.compile(r"[A-Za-z0-9._@+-]{1,64}")


def is_role(text: str) -> bool:
    """Whether a text can be the name of a role."""
    return _ROLE.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What options of features say of a tool's calls.

    Attributes:
        policy: Whether a person is asked before a call runs; or this person's role; or a function that says it.
        is_question: Whether a call is a question to a person, whose answer is its result.
        may_ask: Whether a person may be asked for another reason.
        may_be_settled: Whether a call may get its result before a person is asked.
        ends_elsewhere: Whether a call has no result yet when the tool's function has returned.
        time_elsewhere: The seconds in which it must end there; None: no limit.
        returns: The type of the results, where the function does not return them.
        is_unseen: Whether the model does not see the tool before it has found it.
    """

    policy: Any = False
    is_question: bool = False
    may_ask: bool = False
    may_be_settled: bool = False
    ends_elsewhere: bool = False
    time_elsewhere: float | None = None
    returns: Any = None
    is_unseen: bool = False

    @classmethod
    def of(cls, options: Iterable[ToolOption]) -> Traits:
        """What the options of a tool say together."""
        return cls(**{name: value for each in options for name, value in each.traits.given.items()})

    @property
    def given(self) -> dict[str, Any]:
        """Those that are set, by their names."""
        return {name: value for name, value in vars(self).items() if value}

    @property
    def asks_first(self) -> bool:
        """Whether a call may wait for a person before it runs."""
        return self.may_ask or self.is_question or bool(self.policy)


@dataclass(frozen=True, kw_only=True)
class ToolOption:
    """The options of a tool that belong to one feature: `@tool(options=[Quiet(hours=(22, 7))])`.

    A tool has at most one of each class. Subclasses are frozen dataclasses, whose fields have defaults that change nothing.
    They belong to the feature of their module, or to `feature`, a class attribute. A feature has one such class.
    """

    feature: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """The name of the feature."""
        return self.feature or type(self).__module__.rpartition(".")[2]

    def faults(self, tool: Tool) -> dict[str, bool]:
        """What may be wrong, alone or beside the other options of `tool`: the ends of sentences, and whether it is."""
        return {}

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """What the calls of `tool` are scheduled by in runs of `agent`: pinned when a run opens. None: nothing.

        The feature reads it in `StepCall.pinned`; `mulligan agents --json` shows it. By default these are the values that
        are set, by their names; of an option with one field, its value.
        """
        usual = type(self)()
        given = {name: value for name, value in vars(self).items() if value != getattr(usual, name)}
        if not given:
            return None
        return next(iter(given.values())) if len(fields(self)) == 1 else given

    @classmethod
    def warnings(cls, agent: Agent) -> Iterable[str]:  # noqa: ARG003
        """A sentence for what is valid in the declaration of `agent`, but probably a mistake: workers print it."""
        return ()

    @property
    def traits(self) -> Traits:
        """What the loop and the doors have to know of the tool's calls. Of two options, one at most says each."""
        return Traits()
