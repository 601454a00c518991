"""The loop: call the model, settle the calls it asked for, until it is done. Usable in anybody's workflow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal

import zstandard
from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from mulligan.errors import ModelRequestError, ModelUnavailableError, error_of, from_json
from mulligan.run_input import RunInput
from mulligan.values import ErrorInfo, Message, Progress, RunResult, Status, UserMessage
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.model_call import RejectedAnswer
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.run_context import RunContext
from mulligan.workflows import dispatch, limits
from mulligan.workflows.agent_registry import WorkflowAgents
from mulligan.workflows.conversation.compaction import compact_if_due
from mulligan.workflows.conversation.continue_as_new import ContinueAsNewPolicy
from mulligan.workflows.conversation.continue_as_new_state import read_continue_as_new_state
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.event_page import event_page
from mulligan.workflows.conversation.records import StepRecord
from mulligan.workflows.conversation.resume_state import resume_state_page
from mulligan.workflows.fallback import ask
from mulligan.workflows.step_calls import StepCalls
from mulligan.workflows.sub_agents import SubAgents
from mulligan.workflows.turn import Turn, output_of

__all__ = ["DurableAgent"]

_STATUS_OF_FINISH: dict[str, Status] = {"length": "truncated", "content_filter": "refused", "refusal": "refused"}


class DurableAgent:
    """An agent within a workflow: one conversation, of one turn or many.

    ```python
    agent = DurableAgent("support")
    result = await agent.run("Where is order 7?")
    again = await agent.run("And order 8?")
    ```

    The name is looked up on the worker (`--load`). A workflow that continues as new in the middle of a turn takes the
    turn in pieces: `begin()`, `step()` until it says True, `finish()`. When `is_continue_as_new_suggested()`, it gives
    what `carry()` returns to the next run's `DurableAgent(state=…)`, which goes on with `step()`.
    """

    def __init__(self, agent: str = "", *, state: bytes | None = None) -> None:
        carried = read_continue_as_new_state(state) if state else None
        self.agent: str = carried["agent"] if carried else agent
        self.input: RunInput | None = None
        self.status: Status | Literal["running", "failed", "cancelled"] = (
            carried.get("status", "running") if carried else "running"
        )
        self.conversation = Conversation.load(carried["conversation"]) if carried else Conversation()
        self._turn = Turn.model_validate(carried["turn"]) if carried and carried["turn"] else None
        self._sent = self.conversation.said
        """How many messages the model has been called with, or has said: what its worker holds."""
        self._running: list[str] = []
        self._growth = ContinueAsNewPolicy(is_carried=state is not None)
        workflow_agents = WorkflowAgents.of_this_workflow()
        self._key = workflow_agents.register(self)
        self._inbox = workflow_agents.handlers.inbox(self._key)
        self._sub_agents = SubAgents(self._inbox)
        self._inbox.on_stop = self.conversation.log.stopping
        if carried:
            self._inbox.load(carried.get("inbox", {}))
            self._inbox.log_early_stop()

    async def run(
        self, prompt: str | Sequence[Message], *, max_steps: int | None = None, model: str | None = None
    ) -> RunResult:
        """Take a turn: the prompt joins the conversation, and the agent works until it is done.

        Args:
            prompt: A text, or messages that end with the user's.
            max_steps: How many model calls this turn may make; the agent's own limit where None.
            model: Another model for this turn.

        Raises:
            MulliganError: one of the typed errors: no such agent, the model's endpoint refuses or stays away,
                or a policy (`handle_errors=False`) says that a failure is not to be recovered from.
        """
        text, messages = (prompt, []) if isinstance(prompt, str) else (None, list(prompt))
        await self.begin(RunInput(agent=self.agent, prompt=text, messages=messages, max_steps=max_steps, model=model))
        while not await self.step():
            pass
        return await self.finish()

    async def begin(self, run_input: RunInput) -> None:
        """Open a turn: its messages join the conversation, the agent is resolved, the trace begins."""
        self.input, self.status, self._inbox.is_idle = run_input, "running", False
        self._inbox.is_closed = False
        before = len(self.conversation.messages)
        prompt = [UserMessage(role="user", text=run_input.prompt)] if run_input.prompt is not None else []
        self.conversation.ask([*run_input.messages, *prompt])
        given = self.conversation.size(before) + limits.bytes_of(run_input.metadata)
        small = given <= limits.INLINE_BYTES
        number = self._turn.number + 1 if self._turn else 1
        try:
            opened = await dispatch.open_run(run_input, small=small, conversation=self._key, turn=number)
        except FailureError:
            self._take_in()
            self.status, self._inbox.is_closed = "failed", True
            raise
        self._turn = Turn(
            number=number,
            input=run_input.model_copy(update={"messages": [], "prompt": None}),
            facts=opened.facts,
            trace=opened.trace,
            result=RunResult(status="completed", trace_id=opened.trace.split("-")[1]),
        )
        if opened.facts.prices:
            self._turn.result.cost = 0.0
        self.conversation.log.run_started(number, self.agent, self._turn.model, self._turn.max_steps)
        self._inbox.log_early_stop()

    async def step(self) -> bool:
        """One model call, and the tool calls that it asks for. Returns whether the turn is over."""
        turn = self._open_turn
        result = turn.result
        self._take_in()
        if self._inbox.stop is not None:
            return self._ends("stopped")
        if limits.history_is_full():
            return self._ends("max_history")
        try:
            await self._compact(turn)
            if self._inbox.stop is not None:
                return self._ends("stopped")
            self.conversation.log.step_started(self.conversation.next_step, turn.model)
            order = turn.model_call(self.where, self.conversation, self._sent)
            answer = await ask(order, turn, self._inbox, self.conversation.log)
            record = self.conversation.begin_step(answer.message, answer.prepared, answer.usage, turn.model)
            self._sent = self.conversation.ref().count
            result.steps += 1
            turn.spend(answer.usage, turn.cost_of(turn.model, answer.usage, answer.others))
            about = (turn, self.where, self.conversation, self._inbox, self._running, self._sub_agents)
            await StepCalls(*about).settle(answer, record)
            if answer.rejected is not None:
                self._reject(turn, answer.rejected, record)
            is_final = not answer.message.tool_calls and answer.rejected is None
            result.output = None if turn.facts.structured and not is_final else answer.message.text
            if answer.output is not None:
                result.output, result.output_type = output_of(answer, record), answer.output.type
                is_final = True
            if is_final and not self._goes_on(turn):
                status = _STATUS_OF_FINISH.get(answer.finish_reason, "completed")
                return self._ends("completed" if answer.output is not None else status)
        except (FailureError, asyncio.CancelledError) as error:
            if self._ends_by_stop(error):
                return self._ends("stopped")
            # Just what ends a run: its trace is closed first. A bug of our own is neither, and fails the task only.
            await self._close_failed(turn, error)
            raise
        if self._inbox.stop is not None:
            return self._ends("stopped")
        limit = turn.limit_reached
        return self._ends(limit) if limit else False

    async def finish(self) -> RunResult:
        """Close the turn's trace and give its result."""
        turn = self._open_turn
        self._inbox.stop, self._inbox.is_idle = None, True
        await dispatch.finish_run(turn.finished(self.where, turn.result.status))
        self.conversation.log.run_ended(turn.number, turn.result.status)
        return turn.result

    def events(self, since: int = 0, limit: int = 100) -> dict[str, Any]:
        """What the query `events` of a workflow of one's own answers (docs/events.md)."""
        result = self._turn.result if self._turn and self.status not in ("failed", "cancelled") else None
        return event_page(self.conversation, self._key, result, since, limit)

    def is_continue_as_new_suggested(self) -> bool:
        """Whether it is time, at a step boundary or between turns, to `workflow.continue_as_new` with what `carry()` gives.

        Not while the conversation is too long to be handed over: then the agent goes on in this history.
        """
        if not self._growth.is_due():
            return False
        longest = self._turn.facts.carry_bytes if self._turn else None
        fits = len(self.carry()) <= (longest or limits.CARRY_BYTES)
        if not fits:
            self._growth.postpone()
        return fits

    def carry(self) -> bytes:
        """What a new run needs to go on with this agent: its turn and its conversation, as compressed JSON."""
        turn = self._turn.model_dump(mode="json") if self._turn else None
        conversation = self.conversation.dump(workflow.info().run_id)
        state = {"agent": self.agent, "status": self.status, "turn": turn, "conversation": conversation}
        if inbox := self._inbox.dump():
            state["inbox"] = inbox
        return zstandard.compress(json.dumps(state, separators=(",", ":")).encode())

    @property
    def progress(self) -> Progress:
        """Where the turn stands."""
        result = self._turn.result if self._turn else RunResult(status="completed")
        asked = self.input.max_steps if self.input else None
        return Progress(
            status="waiting" if self.status == "running" and self._inbox.waits and not self._running else self.status,
            step=result.steps,
            max_steps=self._turn.max_steps if self._turn else asked or 0,
            usage=result.usage,
            tool_calls=result.tool_calls,
            recovered_failures=result.recovered_failures,
            running=list(self._running),
            cost=result.cost,
        )

    def left(self, since: int) -> ResumeState | None:
        """What another run can go on with, from message `since` on; None where there is nothing."""
        run_input, trace = (self._turn.input, self._turn.trace) if self._turn else (self.input, "")
        return resume_state_page(run_input, trace, self.conversation, self._inbox, since) if run_input else None

    @property
    def facts(self) -> AgentFacts:
        """What was pinned when the turn opened."""
        return self._open_turn.facts

    @property
    def _open_turn(self) -> Turn:
        if self._turn is None:
            raise RuntimeError("No turn is open: call begin(), or run(), first.")
        return self._turn

    @property
    def where(self) -> RunContext:
        """What every activity of the turn is told."""
        return RunContext(agent=self.agent, conversation=self._key, trace=self._open_turn.trace)

    def _take_in(self) -> None:
        """What people said since joins the conversation."""
        for message in self._inbox.take():
            self.conversation.log.message(self.conversation.append(message))

    def _goes_on(self, turn: Turn) -> bool:
        """Whether somebody has said what the model's last word does not answer, and there is a step left for it."""
        return bool(self._inbox.messages) and self._inbox.stop is None and turn.limit_reached is None

    def _ends_by_stop(self, error: BaseException) -> bool:
        """Whether the run was to stop, and ends for that: its model call was given up, or has failed meanwhile.

        A cancel of the run itself (its reason may be empty) ends it as cancelled.
        """
        if self._inbox.stop is None or workflow.cancellation_reason() is not None:
            return False
        return is_cancelled_exception(error) or isinstance(error_of(error), ModelRequestError | ModelUnavailableError)

    def _ends(self, status: Status) -> bool:
        # Said in the last moment: unanswered, but in the conversation, with which a new run can go on.
        self._take_in()
        result = self._open_turn.result
        result.status = self.status = status
        result.reason = self._inbox.stop.reason if self._inbox.stop and status == "stopped" else None
        return True

    async def _compact(self, turn: Turn) -> None:
        step = turn.result.steps + 1
        about = (self.where, turn.facts, turn.model, step, self._inbox)
        done = await compact_if_due(self.conversation, self._sent, *about)
        if done is not None:
            self.conversation.log.compacted(self.conversation.next_step)
            asked = turn.facts.compact_model or turn.model
            turn.spend(done.usage, turn.cost_of(asked, done.usage) if done.usage.total_tokens else 0.0)
            self._sent = self._sent if done.error else self.conversation.ref().count

    def _reject(self, turn: Turn, rejected: RejectedAnswer, record: StepRecord) -> None:
        """Tell the model by a user's message what no call of its answer is to blame for."""
        if rejected.failure is not None:
            raise from_json(rejected.failure)
        record.error = rejected.error
        self.conversation.log.answer_rejected()
        turn.result.recovered_failures += 1
        self.conversation.append(UserMessage(role="user", text=rejected.text))

    async def _close_failed(self, turn: Turn, error: BaseException) -> None:
        self.status = "cancelled" if is_cancelled_exception(error) else "failed"
        self._take_in()
        self._inbox.is_closed = True
        finished, shown = turn.finished(self.where, self.status), None
        if self.status == "failed":
            typed = error_of(error)
            finished.error_type = getattr(typed, "kind", None) or type(typed or error).__name__
            shown = ErrorInfo(kind=finished.error_type, message=typed.message if typed else str(error))
            if typed is not None:
                typed.took = turn.took
        await dispatch.finish_run(finished)
        self.conversation.log.run_ended(turn.number, self.status, shown)
