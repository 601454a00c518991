"""The loop: call the model, run the tool calls of its answer, until the turn is over. Any workflow can use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

from mulligan.agent import Agent
from mulligan.content import Media, Part, Text
from mulligan.endpoint_model import Model
from mulligan.errors import ModelRequestError, ModelUnavailableError, error_of, from_json
from mulligan.output import with_typed_output
from mulligan.run_input import RunInput, make_run_input
from mulligan.values import ErrorInfo, Message, OutputT, RunResult, Status, UserMessage
from mulligan.wire.model_call import ModelAnswer, RejectedAnswer
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.run_status import RunStatus
from mulligan.wire.start_input import StartInput
from mulligan.workflows import limits
from mulligan.workflows.clean_up import is_run_cancelled
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.feature import EndTurn, StepAgain
from mulligan.workflows.finish_despite_cancellation import finish_despite_cancellation
from mulligan.workflows.kept_cancellation import kept_cancellation
from mulligan.workflows.listed_status import list_run, set_listed_status
from mulligan.workflows.model_errors import ModelNotCalled
from mulligan.workflows.open_turn import open_turn
from mulligan.workflows.running_agent import OpenStep, RunningAgent
from mulligan.workflows.scheduling import NoResult
from mulligan.workflows.step_calls import StepCalls
from mulligan.workflows.turn import Turn, status_of
from mulligan.workflows.unfinished_calls import settle_unfinished_calls
from mulligan.workflows.workflow_agents import WorkflowAgents


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
    """

    def __init__(self, agent: str | Agent[OutputT] = "", *, state: bytes | None = None) -> None:
        self._output = agent.declared_output if isinstance(agent, Agent) else None
        self._declared = name = agent.name if isinstance(agent, Agent) else agent
        self._agent: RunningAgent = WorkflowAgents.of_this_workflow().add(name, state)

    @property
    def agent(self) -> str:
        """The name of the agent."""
        return self._agent.name

    @property
    def input(self) -> RunInput | None:
        """The input of the newest turn; None before the first one."""
        return self._agent.input

    @property
    def status(self) -> RunStatus:
        """The status of the newest turn."""
        return self._agent.shown_status

    @property
    def conversation(self) -> Conversation:
        """The messages of all turns."""
        return self._agent.conversation

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
            MulliganError: one of the typed errors: an argument is invalid, the turn before is open, or there is no such
                agent (InvalidRunInputError); the model's endpoint refuses or is unavailable; or a failure whose policy
                (`handle_errors=False`) is to fail the run.
            CancelledError: its task was cancelled. As after an error, the next turn goes on with what the conversation has.
        """
        is_messages = isinstance(prompt, list | tuple) and not any(isinstance(e, str | Text | Media) for e in prompt)
        given = {"messages": [*prompt]} if is_messages else {"prompt": prompt}
        run_input = make_run_input(agent=self.agent, max_steps=max_steps, model=model or None, **given)
        await self.begin(run_input)
        while not await self.step():
            pass
        return await self.finish()

    async def begin(self, run_input: RunInput) -> None:
        """Open a turn: add the messages of `run_input` to the conversation, resolve the agent on a worker, open the trace.

        Raises:
            InvalidRunInputError: the turn before is open, no worker has the agent, or a field is invalid.
        """
        agent = self._agent
        turn = await open_turn(agent, StartInput.of(run_input))
        list_run(agent.name, turn.facts.search_attributes)
        agent.conversation.event_log.run_started(turn.number, agent.name, turn.model, turn.max_steps)
        agent.inbox.log_early_stop()

    async def step(self) -> bool:
        """Call the model once, and run the tool calls of its answer. Returns whether the turn is over.

        Raises:
            MulliganError, CancelledError: as `run`. Then the turn is over, and each of its calls has a result.
        """
        with kept_cancellation() as is_cancelled:
            try:
                await self._run_step()
                self._close_step()
                return False
            except EndTurn as end:
                return self._end_turn(end.status, end.reason)
            except StepAgain:
                self._close_step()
                return False
            except (FailureError, asyncio.CancelledError) as error:
                if self._is_due_to_stop(error) and not is_cancelled():
                    return self._end_turn("stopped")
                # These fail the run, so its trace is closed. A bug in workflow code is another error: it fails only the
                # workflow task, which Temporal retries until a fixed version is deployed.
                await self._close_failed_turn(self._agent.turn, asyncio.CancelledError() if is_cancelled() else error)
                raise

    async def _run_step(self) -> None:
        agent, turn = self._agent, self._agent.turn
        if agent.open_step is None:
            if not agent.is_answering:
                self._check_turn()
            await self._answer()
        await StepCalls(agent).run()
        await self._take_answer(turn)
        if agent.is_stopped:
            raise EndTurn("stopped")
        if limit := turn.limit_reached:
            raise EndTurn(limit)

    def _close_step(self) -> None:
        agent = self._agent
        settle_unfinished_calls(agent)
        agent.open_step, agent.is_answering, agent.waits.are_over = None, False, False

    async def _answer(self) -> None:
        """Get the model's answer.

        Raises:
            ModelUnavailableError: it was not called, for a reason that no feature of this worker knows.
        """
        try:
            await self._agent.around("step", self._call_model)()
        except ModelNotCalled as not_called:
            raise ModelUnavailableError(f"{self._agent.turn.model} was not called ({not_called.kind}).") from not_called

    def _check_turn(self) -> None:
        self._agent.add_new_messages()
        if self._agent.is_stopped:
            raise EndTurn("stopped")
        if limits.is_history_nearly_full():
            raise EndTurn("max_history")

    async def _call_model(self) -> None:
        agent, conversation = self._agent, self._agent.conversation
        if not agent.is_answering:
            if agent.is_stopped:
                raise EndTurn("stopped")
            called = conversation.event_log.writing
            if called is None or called.step != conversation.next_step:  # the step may have begun before
                conversation.event_log.step_started(conversation.next_step, agent.turn.model)
            agent.is_answering = True
        answer: ModelAnswer = await agent.around("answer", agent.call_model)(agent.model_request())
        conversation.begin_step(answer.message, answer.prepared, answer.usage, agent.turn.model).take(
            answer, agent.name
        )
        agent.cached_messages = conversation.ref().count
        agent.turn.add_answer(answer)
        agent.open_step, agent.is_answering = OpenStep(answer=answer), False

    async def _take_answer(self, turn: Turn) -> None:
        """Set the turn's output from the newest answer, all of whose calls have their results.

        Raises:
            EndTurn: it is a final answer.
            MulliganError: the policy for a mistake in the answer is to fail the run.
        """
        agent = self._agent
        assert agent.open_step is not None
        answer = agent.open_step.answer
        for feature in agent.linked("accept"):
            answer.rejected = answer.rejected or await feature.accept(answer)
        if answer.rejected is not None:
            self._handle_rejected(turn, answer.rejected)
        if turn.take_output(answer, agent.conversation.steps[-1]) and not self._has_messages_to_answer(turn):
            raise EndTurn(status_of(answer))

    def _handle_rejected(self, turn: Turn, rejected: RejectedAnswer) -> None:
        """Return feedback on an answer to the model, as a user message: no call of the answer is at fault."""
        conversation = self._agent.conversation
        conversation.steps[-1].error = rejected.error
        conversation.event_log.answer_rejected()
        if rejected.failure is not None:
            error = from_json(rejected.failure)
            conversation.append(UserMessage(role="user", text=error.message))  # the next turn reads it
            raise error
        turn.result.recovered_failures += 1
        conversation.append(UserMessage(role="user", text=rejected.text))

    def _has_messages_to_answer(self, turn: Turn) -> bool:
        """Whether people have sent messages that the final answer does not take into account, and another step may run."""
        return bool(self._agent.inbox.messages) and not self._agent.is_stopped and turn.limit_reached is None

    async def finish(self) -> RunResult[OutputT]:
        """Close the turn's trace and return its result."""
        turn = self._agent.turn
        status = turn.result.status
        self._agent.inbox.end_turn()
        self._agent.is_closing = True
        with kept_cancellation():
            try:
                await self._finish(turn, status)
            except (FailureError, asyncio.CancelledError):
                self._log_end(turn, status)
                raise
            finally:
                self._agent.is_closing = False
        self._log_end(turn, status)
        # An agent that has taken the conversation over has another type of output.
        return with_typed_output(turn.result, self._output if self.agent == self._declared else None)

    def is_continue_as_new_suggested(self) -> bool:
        """Whether to call `workflow.continue_as_new` with what `carry()` returns. Call it between two steps or turns.

        False while the conversation is too large to be carried: then the agent continues in this history.
        """
        return self._agent.is_due()

    async def can_continue_as_new(self) -> bool:
        """Whether to continue as new once the handlers of updates have finished: their state may be too large to carry."""
        if not self._agent.is_due():
            return False
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._agent.is_small_enough():
            return True
        self._agent.postpone()
        return False

    def carry(self) -> bytes:
        """The state of the agent, for the next run's `DurableAgent(state=…)`: its turn and its conversation, compressed."""
        return self._agent.carry()

    def _is_due_to_stop(self, error: BaseException) -> bool:
        """Whether a request to stop caused the error: the model call was cancelled for it, or failed while
        the request was pending.

        If the workflow itself was cancelled (with a reason that may be empty), the turn ends as cancelled instead.
        """
        if not self._agent.is_stopped or is_run_cancelled():
            return False
        return is_cancelled_exception(error) or isinstance(error_of(error), ModelRequestError | ModelUnavailableError)

    def _end_turn(self, status: Status, reason: str | None = None) -> bool:
        agent = self._agent
        self._close_step()
        # Messages that arrive after the last step get no answer, but a run that resumes this one has them.
        agent.add_new_messages()
        result, stop = agent.turn.result, agent.inbox.stop
        result.status = agent.status = status
        if stop and status == "stopped":
            result.reason = stop.reason
        elif status != "refused" or reason is not None:  # else the answer has said why
            result.reason = reason
        return True

    async def _close_failed_turn(self, turn: Turn, error: BaseException) -> None:
        """Close the trace of a turn that failed or was cancelled, and add to a typed error what the turn has used.

        A cancelled turn may be cancelled again meanwhile.
        """
        agent, info = self._agent, None
        status: Literal["cancelled", "failed"] = "cancelled" if is_cancelled_exception(error) else "failed"
        agent.inbox.is_closed = True
        if status == "failed":
            typed = error_of(error)
            kind = getattr(typed, "kind", None) or type(typed or error).__name__
            info = ErrorInfo(kind=kind, message=typed.message if typed else str(error))
            if typed is not None:
                typed.consumption = turn.consumption
        # First the activity: a worker that only drops the run from its cache cancels its tasks, too, and nothing may change.
        try:
            await finish_despite_cancellation(self._finish(turn, status, info))
        except ActivityError:
            workflow.logger.warning("The trace of a turn that is %s could not be closed.", status)
        self._close_step()
        agent.status = status
        agent.inbox.fail_turn()
        agent.add_new_messages()
        agent.waits.kinds_changed()  # the waits of calls that the failure has ended
        self._log_end(turn, status, info)

    async def _finish(self, turn: Turn, status: str, error: ErrorInfo | None = None) -> None:
        request = turn.finish_request(self._agent.context, status)
        request.error_type = error.kind if error else None
        await self._agent.activity(FINISH_RUN, request, NoResult, summary=status)

    def _log_end(self, turn: Turn, status: str, error: ErrorInfo | None = None) -> None:
        self._agent.conversation.event_log.run_ended(turn.number, status, error)
        set_listed_status(status)
