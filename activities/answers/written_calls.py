"""What is known of an answer's calls while the model writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mulligan.activities.answers.size_limits import fit_name
from mulligan.activities.answers.unique_ids import unique_ids
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.activities.tool_running.find_tool import RunTools
from mulligan.values import ToolCall
from mulligan.wire.event_types import LiveCall
from mulligan.wire.model_call import ModelCall


@dataclass(frozen=True)
class WrittenCalls:
    """The calls of the answer to a request."""

    request: ModelCall
    tools: RunTools
    conversation: CachedConversation

    def last_of(self, calls: Sequence[ToolCall]) -> LiveCall:
        """What is known of the last of some calls.

        Args:
            calls: Those that the model has begun, in their order, without arguments.
        """
        request, last = self.request, calls[-1]
        name, digest = fit_name(last.name), request.conversation.digest if request.summarized_answers else ""
        ids = unique_ids(calls, self.conversation.call_ids, request.step, digest) if last.id else ()
        call_id = ids[-1].id if ids else ""
        return LiveCall(index=len(calls) - 1, name=name, call_id=call_id, may_wait=self._may_wait(name))

    def _may_wait(self, name: str) -> bool:
        """Whether a call may wait. What a guard holds up depends on more than the agent, and the tool of a name that has to
        be repaired is known later.
        """
        tool = self.tools.find(name)
        if tool is None:
            return name not in self.tools.names
        return tool.traits.ends_elsewhere or tool.traits.asks_first
