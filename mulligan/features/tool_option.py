"""`ToolOption`: what a feature adds to the options of a tool, as it is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import JsonValue

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What options of features say of a tool's calls.

    Attributes:
        policy: Whether a person is asked before a call runs; or this person's role; or a function that says it.
        is_question: Whether a call is a question to a person, whose answer is its result.
        may_ask: Whether a person may be asked for another reason.
        ends_elsewhere: Whether a call has no result yet when the tool's function has returned.
        returns: The type of the results, where the function does not return them.
        is_unseen: Whether the model does not see the tool before it has found it.
    """

    policy: bool | str | Callable[..., Any] = False
    is_question: bool = False
    may_ask: bool = False
    ends_elsewhere: bool = False
    returns: Any = None
    is_unseen: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolOption:
    """The options of a tool that belong to one feature: `@tool(options=[Quiet(hours=(22, 7))])`.

    A tool has at most one of each class. Subclasses are frozen dataclasses, whose fields have defaults that change nothing.
    They belong to the feature of their module, or to `feature`, a class attribute.
    """

    feature: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """The name of the feature."""
        return self.feature or type(self).__module__.rpartition(".")[2]

    def validate(self) -> dict[str, bool]:
        """What may be wrong with the values alone, as the end of a sentence, and whether it is."""
        return {}

    def refuses(self, tool: Tool) -> dict[str, bool]:
        """What may be wrong with them beside the other options of `tool`, and whether it is."""
        return {}

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        """What the calls of `tool` are scheduled by in runs of `agent`: pinned when a run opens. None: nothing.

        The feature reads it by `Feature.pinned_for`; `mulligan agents --json` shows it.
        """
        return None

    @classmethod
    def warnings(cls, agent: Agent) -> Iterable[str]:  # noqa: ARG003
        """A sentence for what is valid in the declaration of `agent`, but probably a mistake: workers print it."""
        return ()

    @property
    def traits(self) -> Traits:
        """What the loop and the doors have to know of the tool's calls."""
        return Traits()
