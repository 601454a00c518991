"""The handler of the update `complete`: it brings the result of a deferred call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.schema.json_limits import MOST_DEPTH, is_deeper
from mulligan.wire.deferred import COMPLETE, Complete, has_result
from mulligan.wire.parse_update import check_size, parse_update
from mulligan.workflows.deferred.deferred_wait import DeferredWait

if TYPE_CHECKING:
    from mulligan.workflows.workflow_agents import WorkflowAgents


class CompleteHandler:
    """The handler of one workflow with agents."""

    def __init__(self, agents: WorkflowAgents) -> None:
        self._handlers = agents.handlers
        agents.handlers.answered.set_handler(COMPLETE, self.complete, self._check)

    async def complete(self, argument: Any = None) -> dict[str, Any]:
        """Accept the result, or the error, of a deferred call; also before its tool has returned."""
        completion = parse_update(Complete, argument)
        call = self._find(completion)
        call.completion, call.completed_at = completion, workflow.time()
        return {"accepted": True, "call_id": completion.call_id}

    def _check(self, argument: Any = None) -> None:
        completion = parse_update(Complete, argument)
        if has_result(argument) == completion.is_error:
            raise UpdateRefusedError('Give either "result" or "error".')
        check_size("result", completion.model_dump_json(include={"result"}))
        if is_deeper(completion.result):
            raise UpdateRefusedError(f'"result" is nested more than {MOST_DEPTH} levels deep.')
        if self._handlers.is_ready:
            self._find(completion)

    def _find(self, completion: Complete) -> DeferredWait:
        """The open call that is meant.

        Raises:
            UpdateRefusedError: there is none, or it has its result, or calls of several agents have the id.
        """
        call_id, key = completion.call_id, completion.conversation
        registries = [box.waits for name, box in self._handlers.inboxes.items() if key in (None, name)]
        open_calls = [call for waits in registries if (call := waits.find(DeferredWait, call_id)) is not None]
        if len(open_calls) > 1:
            raise UpdateRefusedError(f'Calls of several agents have the id "{call_id}"; name one as "conversation".')
        if not open_calls or completion.trace_id not in (None, open_calls[0].trace_id):
            for waits in registries:
                if (how := waits.how_ended(DeferredWait, call_id)) is not None:
                    raise UpdateRefusedError(f'"{call_id}" no longer waits: {how}.', ended_by=how)
            waiting = [each.key for waits in registries for each in waits.of(DeferredWait) if each.kind == "callback"]
            raise UpdateRefusedError(
                f'No call "{call_id}" waits to be completed; those that wait: {", ".join(waiting[:20]) or "none"}.',
                ended_by="",
            )
        [call] = open_calls
        if call.completed_at is not None:
            how = "it was completed already"
            raise UpdateRefusedError(f'"{call_id}" no longer waits: {how}.', ended_by=how)
        if call.is_timer:
            raise UpdateRefusedError(f'"{call_id}" waits for a point in time; a message to the run ends that early.')
        return call
