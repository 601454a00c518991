"""The tool calls of one step: run side by side, each with one result, added in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from mulligan.errors import ToolCallError, from_json
from mulligan.values import ErrorInfo, ToolCall, ToolMessage
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.tool_call import ToolOutcome, tool_message
from mulligan.workflows import limits
from mulligan.workflows.finish_despite_cancellation import finish_despite_cancellation
from mulligan.workflows.people.decided_call import decide_on_call, refuse_if_stopped
from mulligan.workflows.running_agent import OpenStep, RunningAgent
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.tool_activity import call_tool


class StepCalls:
    """Runs the calls of an agent's open step. `tasks`: what features do for them, whatever is cancelled."""

    def __init__(self, agent: RunningAgent) -> None:
        assert agent.open_step is not None
        self._agent, self._step = agent, agent.open_step
        self._calls = [*_calls(agent, agent.open_step)]
        self.tasks: list[asyncio.Task[Any]] = []
        agent.calls, agent.step_calls = [*self._calls], self
        self._run_call = agent.around("run_call", self._call_tool)

    async def run(self) -> None:
        """Run the valid calls, and add a result for each call to the conversation.

        Raises:
            MulliganError: the policy for a failure (`handle_errors`) is to fail the run.
        """
        agent, result = self._agent, self._agent.turn.result
        for each in self._calls:
            if each.prepared.failure is not None:
                raise from_json(each.prepared.failure)
        if not self._step.is_carried:
            result.tool_calls += len(self._calls)
        for feature in agent.linked("begin_calls"):
            feature.begin_calls(self._calls)
        settled = dict(agent.conversation.early_results)
        settled |= await self._run_side_by_side([each for each in self._calls if each.call.id not in settled])
        messages = [settled[each.call.id] for each in self._calls]
        # A call that did not run because the run was stopped is not a mistake that the model recovers from.
        failed = [
            each.key
            for each, message in zip(self._calls, messages, strict=True)
            if message.error is not None and not each.is_stopped
        ]
        result.recovered_failures += len(failed)
        agent.turn.count_repeats(failed)
        result.repairs += sum(len(each.record.repairs) for each in self._calls)
        agent.conversation.end_step(messages)

    async def _run_side_by_side(self, calls: Sequence[StepCall]) -> dict[str, ToolMessage]:
        """The result of each call, by its id."""
        turn = self._agent.turn
        copies = 2 if turn.facts.tools_by_function else 1  # `RunContext.input` has the metadata, too
        # A rejected answer may have no calls.
        batch_size = max(1, limits.max_scheduled_at_once(len(calls), turn.input, copies=copies))
        if batch_size < len(calls):  # people are asked at once
            calls = sorted(calls, key=lambda each: each.waits_for is None)
        tasks: dict[str, asyncio.Task[ToolMessage]] = {}
        try:
            for start in range(0, len(calls), batch_size):
                batch = [each.call.id for each in calls[start : start + batch_size]]
                tasks |= {each.call.id: asyncio.create_task(self.settle(each)) for each in calls[start:][:batch_size]}
                await self._until_ended(tasks, batch, or_waiting=True)
            await self._until_ended(tasks, tasks)
        except (FailureError, asyncio.CancelledError):
            await finish_despite_cancellation(self._cancel(tasks.values()))
            raise
        return {call_id: task.result() for call_id, task in tasks.items()}

    async def _until_ended(
        self, tasks: Mapping[str, asyncio.Task[ToolMessage]], ids: Iterable[str], *, or_waiting: bool = False
    ) -> None:
        """Wait for calls. Each waits alone: a cancellation, or the failure of another call, ends this at once.

        `or_waiting`: calls that wait for a person, or for a result from elsewhere, do not count.
        """

        def is_over() -> bool:
            failed = any(task.done() and (task.cancelled() or task.exception()) for task in tasks.values())
            waits = self._agent.waits
            return failed or all(tasks[each].done() or (or_waiting and waits.is_waiting(each)) for each in ids)

        await workflow.wait_condition(is_over)
        ended = [task for task in tasks.values() if task.done()]
        for task in ended:
            if not task.cancelled():
                task.exception()  # asyncio reports an exception that nobody has read
        for task in ended:
            task.result()

    async def _cancel(self, tasks: Iterable[asyncio.Task[ToolMessage]]) -> None:
        """Cancel the calls, and wait until each has ended: an activity learns of it with its next heartbeat.

        One whose activity ends with a result all the same goes on, to this result; but not to a further wait.
        """
        self._agent.waits.are_over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def add(
        self, of: StepCall, calls: Iterable[tuple[ToolCall, PreparedCall]], *, after_untrusted: bool
    ) -> list[StepCall]:
        """Calls that another call makes, which its feature then settles. They count as calls of the run.

        `after_untrusted`: as of a StepCall.

        Raises:
            MulliganError: the policy for a mistake in one of them is to fail the run.
        """
        conversation = self._agent.conversation
        indexes = [conversation.add_inner_call(of.index, call, prepared) for call, prepared in calls]
        self._agent.turn.result.tool_calls += len(indexes)
        return self._begin_inner(of, indexes, is_carried=False, after_untrusted=after_untrusted)

    def carried(self, of: StepCall, *, after_untrusted: bool) -> list[StepCall]:
        """The calls without a result that another call has made in an earlier workflow run."""
        open_calls = [n for n, each in self._agent.conversation.inner_calls(of.index) if each.result is None]
        return self._begin_inner(of, open_calls, is_carried=True, after_untrusted=after_untrusted)

    def _begin_inner(
        self, of: StepCall, indexes: Sequence[int], *, is_carried: bool, after_untrusted: bool
    ) -> list[StepCall]:
        agent, known = self._agent, dict(self._agent.conversation.inner_calls(of.index))
        begun = []
        for index in indexes:
            inner = known[index]
            assert inner.prepared is not None
            if inner.prepared.failure is not None:
                raise from_json(inner.prepared.failure)
            facts = agent.facts.tools.get(inner.call.name)
            call = StepCall(
                index=index, of=of.index, call=inner.call, prepared=inner.prepared, record=inner.record, facts=facts,
                is_carried=is_carried, after_untrusted=after_untrusted,
            )  # fmt: skip
            begun.append(call)
        agent.calls += begun
        for feature in agent.linked("begin_calls") if begun else ():
            feature.begin_calls(begun)
        return begun

    async def settle(self, call: StepCall) -> ToolMessage:
        """Run a call, with all features around it; returns its result, which its step then has.

        Raises:
            MulliganError: the policy for a failure (`handle_errors`) is to fail the run.
        """
        agent = self._agent
        outcome = await self._outcome(call)
        for feature in agent.linked("settled"):
            feature.settled(call, outcome)
        call.record.attempts, call.record.is_cut = outcome.attempts, outcome.is_cut
        message = _message(call, outcome)
        agent.conversation.record_early_result(call.index, message)
        agent.conversation.event_log.tool_call_settled(call.index)
        if outcome.failure is not None:
            error = from_json(outcome.failure)
            if isinstance(error, ToolCallError) and not error.raw_arguments:
                # The raw text is not in the input of the tool's activity, so its error has none.
                error.raw_arguments = call.record.written(call.call)
            raise error
        if call.of is not None:
            # The calls of the answer are counted when all of them have their results.
            agent.turn.result.recovered_failures += message.error is not None and not call.is_stopped
            agent.turn.result.repairs += len(call.record.repairs)
            agent.calls.remove(call)
        return message

    async def _outcome(self, call: StepCall) -> ToolOutcome:
        prepared, agent = call.prepared, self._agent
        if prepared.text is not None:
            return ToolOutcome(text=prepared.text, error=prepared.error, attempts=0)
        if call.call.id not in self._step.started:
            refused = await self._refusal(call)
            if refused is not None:
                return refused
            agent.conversation.event_log.tool_call_started(call.index)
            self._step.started.append(call.call.id)
        call.request = agent.call_request(call)
        outcome: ToolOutcome = await self._run_call(call)
        if outcome.deferred is None:
            return outcome
        # A deploy has made its tool deferred since the turn opened.
        late: ToolOutcome = await agent.around("run_call", partial(_return, outcome), late=True)(call)
        return late

    async def _refusal(self, call: StepCall) -> ToolOutcome | None:
        """The result of a valid call that does not run. None if it may run, with the arguments that are in its record."""
        for feature in self._agent.linked("before_call"):
            if (refused := await feature.before_call(call)) is not None:
                return refused
        decision = call.record.decision
        if call.waits_for is not None and (decision is None or decision.decision != "approve"):
            # Whatever features there are, nothing runs that people must be asked about.
            return await decide_on_call(self._agent, call) or await self._refusal(call)
        if (stopped := await refuse_if_stopped(self._agent, call)) is not None:
            return stopped
        for feature in self._agent.linked("before_run"):
            if (refused := await feature.before_run(call)) is not None:
                return refused
        return None

    async def _call_tool(self, call: StepCall) -> ToolOutcome:
        with self._agent.running(call):
            return await call_tool(self._agent, call, self._most_bytes(call))

    def _most_bytes(self, call: StepCall) -> int | None:
        """The limit of a result, where all results of the step together would be too much; None: that of any result."""
        if call.of is None:
            return limits.share_of_results(len(self._calls), local=call.facts is not None and call.facts.local)
        inner = self._agent.conversation.inner_calls()
        used = sum(len(each.result.text) for _, each in inner if each.result is not None)
        return limits.share_of_rest(used, sum(each.result is None for _, each in inner))


async def _return(outcome: ToolOutcome, _: StepCall) -> ToolOutcome:
    return outcome


def _message(call: StepCall, outcome: ToolOutcome) -> ToolMessage:
    """The result of a call. The call that fails the turn has one as well: the next turn reads it."""
    text, error = outcome.text, outcome.error
    if outcome.failure is not None and error is None:  # of a feature that says no more
        message = from_json(outcome.failure).message
        text, error = text or message, ErrorInfo(kind="tool_exception", message=message)
    return tool_message(call.call, text, error, outcome.content)


def _calls(agent: RunningAgent, step: OpenStep) -> Iterable[StepCall]:
    record, tools = agent.conversation.steps[-1], agent.facts.tools
    parts = zip(step.answer.message.tool_calls, step.answer.prepared, record.calls, strict=True)
    for index, (call, prepared, call_record) in enumerate(parts):
        yield StepCall(
            index=index,
            call=call,
            prepared=prepared,
            record=call_record,
            facts=tools.get(call.name),
            is_carried=step.is_carried,
        )
