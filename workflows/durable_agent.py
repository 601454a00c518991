"""The loop: call the model, run the tool calls of its answer, until the turn is over. Any workflow can use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Literal, cast

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from mulligan.agent import Agent
from mulligan.content import Media, Part, Text
from mulligan.endpoint import Model, model_name
from mulligan.errors import ModelRequestError, ModelUnavailableError, error_of, from_json
from mulligan.output import with_typed_output
from mulligan.run_input import RunInput
from mulligan.values import ErrorInfo, Message, OutputT, Progress, RunResult, Status, UserMessage, WaitingFor
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.model_call import ModelAnswer, ModelCall, RejectedAnswer
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_priority import run_priority
from mulligan.wire.tenant_budget import OverBudgetDetails
from mulligan.wire.ui_summary import task_of
from mulligan.workflows import dispatch, limits
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.background.background_responses import BackgroundResponses, is_background
from mulligan.workflows.batch.batch_calls import BatchCalls
from mulligan.workflows.budgets.over_budget import BudgetWait, OverBudget
from mulligan.workflows.conversation.compaction import compact_if_due
from mulligan.workflows.conversation.continue_as_new import (
    ContinueAsNewPolicy,
    continue_as_new,
    decode_state,
    encode_state,
    fits_in_state,
    size_to_carry,
)
from mulligan.workflows.conversation.conversation import Conversation, messages_that_fit
from mulligan.workflows.conversation.event_page import event_page
from mulligan.workflows.conversation.records import StepRecord
from mulligan.workflows.fallback import call_model_with_fallback
from mulligan.workflows.listed_status import list_run, set_listed_status
from mulligan.workflows.once.once_calls import OnceCalls
from mulligan.workflows.step_calls import OpenStep, StepCalls
from mulligan.workflows.sub_agents import SubAgents
from mulligan.workflows.turn import Turn, status_of
from mulligan.workflows.waiting_for import (
    RunningCall,
    waiting_for,
    waiting_for_agent,
    waiting_for_budget,
    waiting_for_opening,
    waiting_for_summary,
)
from mulligan.workflows.workflow_agents import WorkflowAgents

__all__ = ["DurableAgent"]

IN_STEP = "in_step"
"""The key of the conversation in the state of a run that continued as new within a step."""
IN_RESPONSE = "in_response"
"""The same, where the run waited for a background response."""


class DurableAgent(Generic[OutputT]):
    """An agent inside a workflow: one conversation, of one turn or several.

    ```python
    agent = DurableAgent("support")
    result = await agent.run("Where is order 7?")
    again = await agent.run("And order 8?")
    ```

    `DurableAgent(support)`, with the declared agent itself: the `output` of its results is an object of the agent's output
    type. With its name: the `output` is JSON.

    The worker looks up the agent by its name (`--load`). A workflow that continues as new in the middle of a turn calls
    `begin()`, then `step()` until it returns True, then `finish()`. When `is_continue_as_new_suggested()`, it passes what
    `carry()` returns to the next run, whose `DurableAgent(state=…)` continues with `step()`.

    Attributes:
        agent: The name of the agent.
        input: The input of the newest turn; None before the first one.
        status: The status of the newest turn.
        conversation: The messages of all turns.
        route: The task queue of a worker that has the agent, where workers of one queue serve different agents.
        continues_while_waiting: Whether `step()` may continue the workflow as new while calls wait for people. For
            `AgentWorkflow` only, as the state must be the workflow's only argument.
    """

    def __init__(self, agent: str | Agent[OutputT] = "", *, state: bytes | None = None) -> None:
        carried = decode_state(state) if state else {}
        self._output = agent.declared_output if isinstance(agent, Agent) else None
        self.agent: str = carried["agent"] if carried else agent.name if isinstance(agent, Agent) else agent
        self.input: RunInput | None = None
        self.status: Status | Literal["running", "failed", "cancelled"] = carried.get("status", "running")
        self.conversation = Conversation.load(_conversation_of(carried)) if carried else Conversation()
        self._turn = Turn.model_validate(carried["turn"]) if carried.get("turn") else None
        self._cached_messages = self.conversation.count_at_answer
        """How many messages are in the cache of the worker that called the model last. They are counted in the view: the
        messages as the model is sent them, after a compaction (conversation.py)."""
        self._running: list[RunningCall] = []
        """The tool calls that are running."""
        self._open_step: OpenStep | None = None
        """The step whose calls have not all ended."""
        self.continues_while_waiting = False
        self._preparation: WaitingFor | None = None
        """What the turn waits for before it can call the model: a worker that opens it, a summary, or a budget."""
        self._continue_as_new = ContinueAsNewPolicy(is_carried=state is not None)
        workflow_agents = WorkflowAgents.of_this_workflow()
        self._key = workflow_agents.register(self)
        self._inbox = workflow_agents.handlers.inbox(self._key)
        self.route = AgentRoute(lambda: self._inbox.stop is not None)
        self.route.priority = run_priority(self._turn.input if self._turn else None)
        self._sub_agents = SubAgents(self._inbox, self.route)
        self._background = BackgroundResponses(self._inbox, self.route, self._continue_if_due)
        self._budget = BudgetWait()
        self._once = OnceCalls(self.conversation)
        self._inbox.on_stop = self.conversation.event_log.stopping
        if carried:
            self._inbox.load(carried.get("inbox", {}))
            self._inbox.log_early_stop()
            if "response" in carried:
                self._background.load(carried["response"])
            self._once.load(carried.get("once", []))
            if "budget" in carried:
                self._budget.load(carried["budget"])
            if "step" in carried:
                answer = {
                    **carried["step"]["answer"],
                    "message": self.conversation.messages[self.conversation.steps[-1].at],
                }
                self._open_step = OpenStep.model_validate({**carried["step"], "answer": answer, "is_carried": True})

    async def run(
        self, prompt: str | Sequence[Message | Part], *, max_steps: int | None = None, model: str | Model | None = None
    ) -> RunResult[OutputT]:
        """Run a turn: add the prompt to the conversation, and let the agent work until it is done.

        Args:
            prompt: A text, parts (`mulligan.Text`, `Image` …), or messages that end with the user's.
            max_steps: How many model calls this turn may make; None: the agent's own limit.
            model: Another model for this turn. The worker must know its endpoint: a `Model` is sent as its name, so it
                must stand in an agent, or at the top level of a loaded module, as well.

        Raises:
            MulliganError: one of the typed errors: there is no such agent, the model's endpoint refuses or is
                unavailable, or a failure whose policy (`handle_errors=False`) is to fail
                the run.
        """
        is_prompt = isinstance(prompt, str) or any(isinstance(each, str | Text | Media) for each in prompt)
        run_input = RunInput(
            agent=self.agent,
            prompt=cast(Any, prompt) if is_prompt else None,
            messages=[] if is_prompt else cast(Any, list(prompt)),
            max_steps=max_steps,
            model=model_name(model) if model else None,
        )
        await self.begin(run_input)
        while not await self.step():
            pass
        return await self.finish()

    async def begin(self, run_input: RunInput) -> None:
        """Open a turn: add the messages of `run_input` to the conversation, resolve the agent on a worker, open the trace.

        Raises:
            InvalidRunInputError: no worker has the agent, or a field is invalid.
        """
        self.input = run_input = self._once.begin_turn(run_input, self.status)
        self.status = "running"
        self.route.priority = run_priority(run_input)
        self._inbox.begin_turn()
        first_new = len(self.conversation.messages)
        self.conversation.append_request(run_input.new_messages)
        added = range(first_new, len(self.conversation.messages))
        longest_message = max((self.conversation.size(index, index + 1) for index in added), default=0)
        input_bytes = self.conversation.size(first_new) + limits.bytes_of(run_input.metadata)
        is_inline = input_bytes <= limits.INLINE_BYTES
        number = self._turn.number + 1 if self._turn else 1
        self._preparation = waiting_for_opening(self.agent, workflow.time())
        try:
            opened = await dispatch.open_run(
                run_input,
                inline=is_inline,
                conversation=self._key,
                turn=number,
                longest_message=longest_message,
                route=self.route,
            )
        except FailureError:
            self._add_new_messages()
            self.status, self._inbox.is_closed = "failed", True
            raise
        finally:
            self._preparation = None
        self._turn = Turn.opened(number, run_input, opened)
        list_run(self.agent, opened.facts.search_attributes)
        self.conversation.event_log.run_started(number, self.agent, self._turn.model, self._turn.max_steps)
        self._inbox.log_early_stop()

    async def step(self) -> bool:
        """Call the model once, and run the tool calls of its answer. Returns whether the turn is over."""
        turn, inbox = self._open_turn, self._inbox
        if self._open_step is None and self._background.open is None:
            self._add_new_messages()
            if inbox.stop is not None:
                return self._end_turn("stopped")
            if limits.is_history_full():
                return self._end_turn("max_history")
        try:
            open_step = self._open_step = self._open_step or await self._call_model(turn)
            if open_step is None:
                return self._end_turn("stopped")
            answer, record = open_step.answer, self.conversation.steps[-1]
            await self._step_calls(turn, open_step).run(record)
            if answer.rejected is not None:
                self._handle_rejected(turn, answer.rejected, record)
            is_final = turn.take_output(answer, record)
            if is_final and not self._has_messages_to_answer(turn):
                return self._end_turn(status_of(answer))
        except OverBudget as refused:
            return await self._wait_for_budget(refused.details)
        except (FailureError, asyncio.CancelledError) as error:
            if self._is_due_to_stop(error):
                return self._end_turn("stopped")
            # These fail the run, so its trace is closed. A bug in workflow code is another error: it fails only the
            # workflow task, which Temporal retries until a fixed version is deployed.
            await self._close_failed_turn(turn, error)
            raise
        finally:
            self._open_step = None
        if inbox.stop is not None:
            return self._end_turn("stopped")
        limit = turn.limit_reached
        return self._end_turn(limit) if limit else False

    async def _call_model(self, turn: Turn) -> OpenStep | None:
        """Call the model, after a compaction if one is due. None if the turn was stopped before."""
        conversation, inbox = self.conversation, self._inbox
        if self._background.open is None:
            await self._compact_if_due(turn)
            if inbox.stop is not None:
                return None
            called = conversation.event_log.writing
            if called is None or called.step != conversation.next_step:  # it may have waited for a budget since
                conversation.event_log.step_started(conversation.next_step, turn.model)
        request = turn.model_request(self.context, conversation, self._cached_messages)
        answer = await call_model_with_fallback(
            request, turn, call=self._carry_out, inbox=inbox, event_log=conversation.event_log
        )
        self._budget.end()
        conversation.begin_step(answer.message, answer.prepared, answer.usage, turn.model)
        self._cached_messages = conversation.ref().count
        turn.add_answer(answer)
        return OpenStep(answer=answer)

    async def _carry_out(self, call: ModelCall) -> ModelAnswer:
        """Call one model, in the way that its agent has chosen."""
        if is_background(call.model, self.facts):
            return await self._background.answer(call, self.facts)
        if self._open_turn.is_batched(call.model):
            return await BatchCalls(self._inbox, self.route).answer(call)
        return await dispatch.call_model(call, self.facts, self._inbox, self.route)

    async def _wait_for_budget(self, refused: OverBudgetDetails) -> bool:
        """End the turn, or wait a while for a new budget; the step begins again then. Returns whether the turn is over."""
        if refused.then == "stop":
            return self._end_turn("max_cost")
        self._budget.begin()
        self._preparation = waiting_for_budget(refused, self._budget.since or 0.0)
        try:
            await self._budget.wait(refused.until, lambda: self._inbox.stop is not None)
        finally:
            self._preparation = None
        return False

    def _continue_if_due(self) -> None:
        """Continue as new while a background response is waited for, as soon as that is due and the state small enough."""
        policy = self._continue_as_new
        if not (self.continues_while_waiting and policy.is_due_while_waiting() and workflow.all_handlers_finished()):
            return
        if policy.may_continue_while_waiting(lambda: size_to_carry(self.carry()) <= self._most_to_carry):
            continue_as_new(self.carry())

    async def _continue_while(self, only_waits: Callable[[], bool]) -> None:
        """Continue as new as soon as that is due while `only_waits` is true, and the state is small enough."""
        policy = self._continue_as_new
        while True:
            await workflow.wait_condition(lambda: only_waits() and policy.is_due_while_waiting())
            if policy.may_continue_while_waiting(lambda: size_to_carry(self.carry()) <= self._most_to_carry):
                leave = partial(continue_as_new, self.carry())
                self._inbox.decisions.continue_as_new(leave)
                self._inbox.deferred.continue_as_new(leave)
                return

    async def finish(self) -> RunResult[OutputT]:
        """Close the turn's trace and return its result."""
        turn = self._open_turn
        self._inbox.end_turn()
        await dispatch.finish_run(turn.finish_request(self.context, turn.result.status))
        self.conversation.event_log.run_ended(turn.number, turn.result.status)
        set_listed_status(turn.result.status)
        return with_typed_output(turn.result, self._output)

    def events(self, since: int = 0, limit: int = 100, step: int | None = None) -> dict[str, Any]:
        """A page of the run's events, from number `since` on and at most `limit` of them (docs/events.md).

        `step`: only those of one step.
        """
        result = self._turn.result if self._turn and self.status not in ("failed", "cancelled") else None
        # With external storage, results may be as large as what is carried: a query's answer is stored, too.
        carried = (self._turn.facts.carry_bytes if self._turn else None) or 0
        most_bytes = max(limits.EVENT_BYTES, carried)
        page = event_page(self.conversation, self._key, result, since, limit, most_bytes, step)
        if page["writing"] is not None and self._background.open is not None:
            page["writing"]["attempt"] = self._background.open.newest_attempt
        return page

    def is_continue_as_new_suggested(self) -> bool:
        """Whether to call `workflow.continue_as_new` with what `carry()` returns. Call it between two steps or turns.

        False while the conversation is too large to be carried: then the agent continues in this history.
        """
        if not self._continue_as_new.is_due():
            return False
        fits = self._is_small_enough_to_carry()
        if not fits:
            self._continue_as_new.postpone()
        return fits

    async def can_continue_as_new(self) -> bool:
        """The same, once the handlers of updates have finished: what they bring may be too large to be carried as well."""
        if not self.is_continue_as_new_suggested():
            return False
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._is_small_enough_to_carry() or not workflow.patched("measured_again"):
            return True
        self._continue_as_new.postpone()
        return False

    def _is_small_enough_to_carry(self) -> bool:
        return fits_in_state(size_to_carry(self.carry()), self._most_to_carry, at=self.conversation.next_step)

    @property
    def _most_to_carry(self) -> int:
        return (self._turn.facts.carry_bytes if self._turn else None) or limits.CARRY_BYTES

    def carry(self) -> bytes:
        """The state of the agent, for the next run's `DurableAgent(state=…)`: its turn and its conversation, compressed."""
        state: dict[str, Any] = {
            "agent": self.agent,
            "status": self.status,
            "turn": self._turn.model_dump(mode="json") if self._turn else None,
            "conversation": self.conversation.dump(workflow.info().run_id),
        }
        if inbox := self._inbox.dump():
            state["inbox"] = inbox
        if self._open_step is not None:
            state["step"] = self._open_step.model_dump(mode="json", exclude={"answer": {"message"}})
            # A version that cannot continue within a step must not load this: its workflow task fails, until another worker
            # takes it.
            state["conversation"] = {IN_STEP: state["conversation"]}
        elif self._background.open is not None:
            state["response"] = self._background.open.model_dump(mode="json")
            state["conversation"] = {IN_RESPONSE: state["conversation"]}
        if budget := self._budget.dump():
            state["budget"] = budget
        if once := self._once.dump():
            state["once"] = once
        return encode_state(state)

    @property
    def progress(self) -> Progress:
        """The status of the turn, and its numbers so far."""
        result = self._turn.result if self._turn else RunResult(status="completed")
        is_waiting = self.status == "running" and self._inbox.decisions.waiting and not self._running
        input_max_steps = self.input.max_steps if self.input else None
        return Progress(
            status="waiting" if is_waiting else self.status,
            step=result.steps,
            max_steps=self._turn.max_steps if self._turn else input_max_steps or 0,
            usage=result.usage,
            tool_calls=result.tool_calls,
            recovered_failures=result.recovered_failures,
            running=[each.call.name for each in self._running],
            cost=result.cost,
            waiting_for=self._waiting_for() if self.is_turn_open else None,
        )

    @property
    def task(self) -> str:
        """What the turn was asked for, in one line."""
        if self._turn is not None and self._preparation is None:
            return self._turn.task
        return task_of(self.input) if self.input else ""

    @property
    def has_begun(self) -> bool:
        """Whether a first turn has begun."""
        return self._turn is not None or self.input is not None

    @property
    def is_turn_open(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self.status == "running" and self.has_begun

    def _waiting_for(self) -> WaitingFor | None:
        if self._preparation is not None or self._turn is None:
            return self._preparation
        if self.route.waiting_since is not None:
            return waiting_for_agent(self.agent, self.route.waiting_since)
        return waiting_for(
            pending=[each for each in self._inbox.decisions.waiting.values() if each.decision is None],
            running=self._running,
            deferred=self._inbox.deferred.waiting,
            conversation=self.conversation,
            turn=self._turn,
            key=self._key,
            elsewhere=self._background.open or self._inbox.batch,
        )

    def resume_state(self, since: int) -> ResumeState | None:
        """A page of what another run needs to resume this one, from message `since` on; None if no turn was begun.

        At the end are people's messages that the model has not seen.
        """
        run_input, trace = (self._turn.input, self._turn.trace) if self._turn else (self.input, "")
        if run_input is None:
            return None
        messages = [*self.conversation.messages_to_resume(), *self._inbox.new_messages()]
        since = max(0, since)
        page = messages_that_fit(messages[since:], limits.PAGE_BYTES)
        end = since + len(page)
        return ResumeState(
            input=run_input.model_copy(update={"messages": [], "prompt": None}),
            trace=trace,
            messages=page,
            undecided=self._inbox.decisions.undecided(),
            once=self._once.for_resume(self.status) if end == len(messages) else [],
            next=end if end < len(messages) else None,
        )

    @property
    def facts(self) -> AgentFacts:
        """The facts of the agent that were pinned when the turn opened."""
        return self._open_turn.facts

    @property
    def context(self) -> RunContext:
        """What identifies the turn in the inputs of its activities."""
        turn = self._open_turn
        return RunContext(agent=self.agent, conversation=self._key, trace=turn.trace, tenant=turn.input.tenant)

    @property
    def _open_turn(self) -> Turn:
        if self._turn is None:
            raise RuntimeError("No turn is open: call begin(), or run(), first.")
        return self._turn

    def _step_calls(self, turn: Turn, step: OpenStep) -> StepCalls:
        return StepCalls(
            step=step,
            once_calls=self._once,
            continue_while=self._continue_while if self.continues_while_waiting else None,
            turn=turn,
            context=self.context,
            conversation=self.conversation,
            inbox=self._inbox,
            route=self.route,
            sub_agents=self._sub_agents,
            running=self._running,
        )

    def _add_new_messages(self) -> None:
        """Add the messages that people have sent since the last step to the conversation."""
        for message in self._inbox.take_messages():
            self.conversation.event_log.message(self.conversation.append(message))

    def _has_messages_to_answer(self, turn: Turn) -> bool:
        """Whether people have sent messages that the final answer does not take into account, and another step may run."""
        return bool(self._inbox.messages) and self._inbox.stop is None and turn.limit_reached is None

    def _is_due_to_stop(self, error: BaseException) -> bool:
        """Whether a request to stop caused the error: the model call was cancelled for it, or failed while
        the request was pending.

        If the workflow itself was cancelled (with a reason that may be empty), the turn ends as cancelled instead.
        """
        if self._inbox.stop is None or workflow.cancellation_reason() is not None:
            return False
        return is_cancelled_exception(error) or isinstance(error_of(error), ModelRequestError | ModelUnavailableError)

    def _end_turn(self, status: Status) -> bool:
        # Messages that arrive after the last step get no answer, but a run that resumes this one has them.
        self._add_new_messages()
        result = self._open_turn.result
        result.status = self.status = status
        result.reason = self._inbox.stop.reason if self._inbox.stop and status == "stopped" else None
        return True

    async def _compact_if_due(self, turn: Turn) -> None:
        self._preparation = waiting_for_summary(turn.facts.compact_model or turn.model, workflow.time())
        try:
            self._cached_messages = await compact_if_due(
                self.conversation,
                turn,
                context=self.context,
                known=self._cached_messages,
                inbox=self._inbox,
                route=self.route,
            )
        finally:
            self._preparation = None

    def _handle_rejected(self, turn: Turn, rejected: RejectedAnswer, record: StepRecord) -> None:
        """Return feedback on an answer to the model, as a user message: no call of the answer is at fault.

        Raises:
            MulliganError: the policy for the mistake is to fail the run.
        """
        if rejected.failure is not None:
            raise from_json(rejected.failure)
        record.error = rejected.error
        self.conversation.event_log.answer_rejected()
        turn.result.recovered_failures += 1
        self.conversation.append(UserMessage(role="user", text=rejected.text))

    async def _close_failed_turn(self, turn: Turn, error: BaseException) -> None:
        """Close the trace of a turn that failed or was cancelled, and add to a typed error what the turn has used."""
        self.status = "cancelled" if is_cancelled_exception(error) else "failed"
        self._add_new_messages()
        self._inbox.is_closed = True
        request, error_info = turn.finish_request(self.context, self.status), None
        if self.status == "failed":
            typed = error_of(error)
            request.error_type = getattr(typed, "kind", None) or type(typed or error).__name__
            error_info = ErrorInfo(kind=request.error_type, message=typed.message if typed else str(error))
            if typed is not None:
                typed.took = turn.consumption
        await dispatch.finish_run(request)
        self.conversation.event_log.run_ended(turn.number, self.status, error_info)
        set_listed_status(self.status)


def _conversation_of(state: dict[str, Any]) -> dict[str, Any]:
    conversation: dict[str, Any] = state["conversation"]
    within_step: dict[str, Any] | None = conversation.get(IN_STEP) or conversation.get(IN_RESPONSE)
    return within_step or conversation
