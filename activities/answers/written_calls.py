"""What is known of an answer's calls while the model writes them."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from mulligan.activities.answers.size_limits import MOST_CALLS, fit_name
from mulligan.activities.answers.unique_ids import unique_ids
from mulligan.activities.tool_running.find_tool import RunTools
from mulligan.values import ToolCall
from mulligan.wire.event_types import LiveCall


@dataclass
class WrittenCalls:
    """The calls of one answer.

    Args:
        tools: The tools of the run.
        used: The ids of calls in the conversation.
        step: The step's number.
        digest: As for `unique_ids`.
        write: Takes what is known of a call, and each piece of its arguments.
    """

    tools: RunTools
    used: Set[str]
    step: int
    digest: str
    write: Callable[[LiveCall, str], None]
    _calls: list[ToolCall] = field(default_factory=list)
    _known: dict[int, LiveCall] = field(default_factory=dict)

    def add(self, index: int, call_id: str, name: str, piece: str) -> None:
        """Pass on a piece of a call's arguments: of one that the run has seen, or of the next one. See `Request.on_call`."""
        if index == len(self._calls) < MOST_CALLS:
            self._calls.append(ToolCall(id=call_id, name=name, arguments=""))
            self._known[index] = self._call(index, call_id)
        if index in self._known:
            self.write(self._known[index], piece)

    def _call(self, index: int, call_id: str) -> LiveCall:
        name = fit_name(self._calls[index].name)
        unique = unique_ids(self._calls, self.used, self.step, self.digest)[index].id if call_id else ""
        return LiveCall(index=index, name=name, call_id=unique, may_wait=self._may_wait(name))

    def _may_wait(self, name: str) -> bool:
        """Whether a call may wait. What a guard holds up depends on more than the agent, and the tool of a name that has to
        be repaired is known later.
        """
        tool = self.tools.find(name)
        if tool is None:
            return name not in self.tools.names
        return bool(tool.needs_approval or tool.asks_person or tool.deferred or tool.consequential)
