"""The handler of the update `complete`: it brings the result of a deferred call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.schema.json_limits import MOST_DEPTH, is_deeper
from mulligan.wire.deferred_call import COMPLETE, Complete, has_result
from mulligan.workflows.deferred.deferred_calls import DeferredCall
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.parse_update import check_size, parse_update

__all__ = ["CompleteHandler"]


class CompleteHandler:
    """`inboxes`: those of the workflow's agents, by their keys. `is_ready`: whether a continued run has its state."""

    def __init__(self, inboxes: Mapping[str, Inbox], answered: AnsweredUpdates, is_ready: Callable[[], bool]) -> None:
        self._inboxes, self._is_ready = inboxes, is_ready
        answered.set_handler(COMPLETE, self.complete, self._check)

    async def complete(self, argument: Any = None) -> dict[str, Any]:
        """Accept the result, or the error, of a deferred call; also before its tool has returned."""
        completion = parse_update(Complete, argument)
        one = self._find(completion)
        one.completion, one.completed_at = completion, workflow.time()
        return {"accepted": True, "call_id": completion.call_id}

    def _check(self, argument: Any = None) -> None:
        completion = parse_update(Complete, argument)
        if has_result(argument) == completion.is_error:
            raise UpdateRefusedError('Give either "result" or "error".')
        check_size("result", completion.model_dump_json(include={"result"}))
        if is_deeper(completion.result):
            raise UpdateRefusedError(f'"result" is nested more than {MOST_DEPTH} levels deep.')
        if self._is_ready():
            self._find(completion)

    def _find(self, completion: Complete) -> DeferredCall:
        """The open call that is meant.

        Raises:
            UpdateRefusedError: there is none, or it has its result, or calls of several agents have the id.
        """
        call_id, key = completion.call_id, completion.conversation
        inboxes = [inbox for one, inbox in self._inboxes.items() if key in (None, one)]
        found = [one for inbox in inboxes if (one := inbox.deferred.open.get(call_id)) is not None]
        if len(found) > 1:
            raise UpdateRefusedError(f'Calls of several agents have the id "{call_id}"; name one as "conversation".')
        if not found or completion.trace_id not in (None, found[0].trace_id):
            for inbox in inboxes:
                if (how := inbox.deferred.settled(call_id)) is not None:
                    raise UpdateRefusedError(f'"{call_id}" no longer waits: {how}.', ended_by=how)
            waiting = [each.call.id for inbox in inboxes for each in inbox.deferred.waiting if not each.is_timer]
            raise UpdateRefusedError(
                f'No call "{call_id}" waits to be completed; those that wait: {", ".join(waiting[:20]) or "none"}.',
                ended_by="",
            )
        [one] = found
        if one.completed_at is not None:
            how = "it was completed already"
            raise UpdateRefusedError(f'"{call_id}" no longer waits: {how}.', ended_by=how)
        if one.is_timer:
            raise UpdateRefusedError(f'"{call_id}" waits for a point in time; a message to the run ends that early.')
        return one
