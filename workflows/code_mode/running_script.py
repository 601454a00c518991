"""One script from its start to its result: parts of it in activities, and between them the calls that it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from temporalio import workflow
from temporalio.exceptions import FailureError

from mulligan.values import ToolCall, ToolMessage, Usage
from mulligan.wire.code_mode import RUN_SCRIPT, CallResult, RunScript, ScriptFacts, ScriptPart
from mulligan.wire.model_call import GuardContext
from mulligan.wire.tool_call import ToolOutcome, without_arguments
from mulligan.workflows import limits
from mulligan.workflows.finish_despite_cancellation import finish_despite_cancellation
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.waits import Wait

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent


@dataclass(kw_only=True, eq=False)
class ScriptWait(Wait):
    """A script that waits for its calls. It is not shown: people see what the calls wait for."""

    name: ClassVar[str] = "script"
    is_carried_over: ClassVar[bool] = False
    leaves_first: ClassVar[bool] = True


@dataclass(kw_only=True, eq=False)
class RunningScript:
    """A script that runs.

    Attributes:
        agent: The agent whose model has written it.
        call: The call of `run_code`.
        max_calls: How many calls it may make.
        schedule: How its parts are scheduled.
        timeout: Seconds of the interpreter's own time.
        parts: The agent's scripts of which a part runs, or is to run, in their order: this one adds itself.
    """

    agent: RunningAgent
    call: StepCall
    max_calls: int
    timeout: float
    schedule: Schedule
    parts: list[RunningScript]
    _has_sent_facts: bool = False
    """Whether this workflow run has sent what stays the same for all parts."""
    _tasks: dict[int, asyncio.Task[ToolMessage]] = field(default_factory=dict)
    """The calls without a result, by their numbers."""
    _settled: list[int] = field(default_factory=list)
    """The numbers of the calls whose results the script does not have, in the order in which they came."""

    async def run(self) -> ToolOutcome:
        """Run it to its end, and wait for the calls that it has not waited for.

        Raises:
            MulliganError: the policy for a failure of the script, or of one of its calls, is to fail the run.
        """
        try:
            outcome = await self._run()
            if self._tasks:
                await self._until(lambda: not self._tasks)
            return outcome
        except (asyncio.CancelledError, FailureError):
            await finish_despite_cancellation(self._cancel())
            raise

    async def _run(self) -> ToolOutcome:
        record = self.call.record
        if record.started is None:
            record.started = workflow.time()
            part = await self._part(code=self._code)
        else:
            self._carry_over()
            part = ScriptPart()
        while part is not None:
            if part.outcome is not None:
                return part.outcome
            self._begin(part)
            if not part.more:
                await self._until(lambda: bool(self._settled))
            part = None if self.agent.is_stopped else await self._part()
        await self._until(lambda: not self._tasks)
        self.call.is_stopped = True
        return await self._end("stopped")

    @property
    def _code(self) -> str:
        arguments = self.call.record.arguments
        return str(arguments.get("code", "")) if isinstance(arguments, dict) else ""

    def _begin(self, part: ScriptPart) -> None:
        """Begin the calls that the script has made."""
        assert self.agent.step_calls is not None
        turn, repairs = self.agent.turn, part.usage_of_repairs
        if repairs:
            turn.add_model_call(turn.model, sum(repairs.values(), Usage()), repairs)
        first = len(self.agent.conversation.inner_calls(self.call.index)) + 1
        calls = [
            (ToolCall(id=f"{self.call.call.id}.{number}", name=each.name, arguments=each.arguments), each.prepared)
            for number, each in enumerate(part.calls, first)
        ]
        for call in self.agent.step_calls.add(self.call, calls, after_untrusted=self._has_read_untrusted):
            self._start(call)

    def _carry_over(self) -> None:
        """Go on with what an earlier workflow run has left."""
        assert self.agent.step_calls is not None
        has = set(self.call.record.delivered)
        inner = self.agent.conversation.inner_calls(self.call.index)
        self._settled = [n for n, (_, each) in enumerate(inner, 1) if each.result is not None and n not in has]
        for call in self.agent.step_calls.carried(self.call, after_untrusted=self._has_read_untrusted):
            self._start(call)

    @property
    def _has_read_untrusted(self) -> bool:
        """Whether the script has a result that others may have written."""
        inner = [each for _, each in self.agent.conversation.inner_calls(self.call.index)]
        return any(inner[number - 1].record.untrusted for number in self.call.record.delivered)

    def _start(self, call: StepCall) -> None:
        assert self.agent.step_calls is not None
        number = int(call.call.id.rpartition(".")[2])
        self._tasks[number] = asyncio.create_task(self.agent.step_calls.settle(call))

    async def _until(self, is_over: Callable[[], bool]) -> None:
        """Wait until `is_over`, while results come. The run may continue as new here, also if it is over already.

        Raises:
            MulliganError, CancelledError: a call has failed the run, or it was cancelled.
        """
        with self.agent.waits.entered(ScriptWait(key=self.call.call.id)) as wait:
            while True:
                await self.agent.waits.until(wait, lambda: self._take_results() or is_over())
                for task in self._failed:
                    task.result()
                if is_over():
                    return

    def _take_results(self) -> bool:
        """Note which calls have their results. Returns whether one has failed the run."""
        for number, task in [*self._tasks.items()]:
            if task.done() and not task.cancelled() and task.exception() is None:
                del self._tasks[number]
                self._settled.append(number)
        return bool(self._failed)

    @property
    def _failed(self) -> list[asyncio.Task[ToolMessage]]:
        return [task for task in self._tasks.values() if task.done() and (task.cancelled() or task.exception())]

    async def _part(self, code: str | None = None) -> ScriptPart | None:
        """Let the script run until it waits or ends, when it is its turn. None: the run was stopped before that."""
        self.parts.append(self)
        try:
            if not self._is_next:
                await workflow.wait_condition(lambda: self._is_next or self.agent.is_stopped)
            return await self._run_part(code) if self._is_next else None
        finally:
            self.parts.remove(self)

    @property
    def _is_next(self) -> bool:
        return self in self.parts[: limits.SCRIPTS_AT_ONCE]

    async def _run_part(self, code: str | None) -> ScriptPart:
        """Let the script run with the results that have come."""
        record = self.call.record
        conversation, numbers = self.agent.conversation, self._settled
        inner = [each for _, each in conversation.inner_calls(self.call.index)]
        messages = [(number, inner[number - 1].result) for number in numbers]
        results = [
            CallResult(n=number, text=message.text, failed=message.error is not None, has_parts=bool(message.content))
            for number, message in messages
            if message is not None
        ]
        request = self._request()
        is_small = sum(len(each.text) for each in results) <= limits.INLINE_BYTES // 4
        request.code, request.results = code, results if is_small else None
        record.delivered, self._settled = [*record.delivered, *numbers], []
        request.untrusted = self._has_read_untrusted
        # The other parts are short, as each call of the script has one in history.
        summary = None if self._has_sent_facts else self.call.call.name
        if not self._has_sent_facts:
            request.facts, self._has_sent_facts = self.facts, True
        with self.agent.running(self.call):
            return await self.agent.activity(RUN_SCRIPT, request, ScriptPart, summary=summary, schedule=self.schedule)

    async def _end(self, how: Literal["stopped", "cancelled"]) -> ToolOutcome:
        request, stop = self._request(), self.agent.inbox.stop
        request.end, request.reason = how, stop.reason if stop else None
        request.facts, request.untrusted = self.facts, self._has_read_untrusted
        part = await self.agent.activity(
            RUN_SCRIPT, request, ScriptPart, summary=f"{self.call.call.name}: {how}", schedule=self.schedule
        )
        assert part.outcome is not None
        return part.outcome

    async def _cancel(self) -> None:
        """Cancel the calls, wait until each has ended, and write the script's span."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._end("cancelled")

    def _request(self) -> RunScript:
        return RunScript(
            call_id=self.call.call.id,
            conversation=self.agent.key,
            delivered=len(self.call.record.delivered),
            asked=len(self.agent.conversation.inner_calls(self.call.index)),
        )

    @property
    def facts(self) -> ScriptFacts:
        """What stays the same for all of its parts."""
        agent, call, turn = self.agent, self.call, self.agent.turn
        assert call.record.started is not None
        copies = 2 if turn.facts.tools_by_function else 1
        return ScriptFacts(
            where=agent.context,
            call=without_arguments(call.call),
            step=turn.result.steps,
            digest=call.digest,
            started=call.record.started,
            definition=turn.facts.digest,
            model=turn.model,
            guard=GuardContext(metadata=turn.input.metadata) if turn.facts.guarded else None,
            on_invalid_tool_input=turn.input.on_invalid_tool_input,
            repaired_by=call.repaired_by,
            failures=turn.repeats.get(call.key, 0),
            max_calls=self.max_calls,
            timeout=self.timeout,
            most=limits.max_scheduled_at_once(limits.SCRIPT_CALLS, turn.input, copies=copies),
        )
