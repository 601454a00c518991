"""Runs calls of `run_code`: the script itself in activities, and each call that it makes as a tool call of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel
from temporalio import workflow

from mulligan.wire.code_mode import (
    RUN_CODE,
    RUN_SCRIPT,
    SCRIPT_QUERY,
    RecordedScriptCall,
    ScriptPage,
    ScriptPageRequest,
)
from mulligan.wire.shorten import json_size
from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows import limits
from mulligan.workflows.code_mode.running_script import RunningScript, ScriptWait
from mulligan.workflows.feature import Feature
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.workflow_agents import WorkflowAgents


class CodeFacts(BaseModel):
    """What was pinned when the turn opened. `timeout`: seconds of the interpreter's own time."""

    max_calls: int
    timeout: float


class CodeMode(Feature):
    """The scripts of one agent. Their state is in the records of their step, where continue-as-new carries it."""

    facts_type = CodeFacts
    schedules: ClassVar = {
        # A part of a script has no effect: it is tried until it succeeds. Whether it ends its workers, its activity counts.
        RUN_SCRIPT: Schedule(has_heartbeat=True)
    }
    waits: ClassVar = (ScriptWait,)

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._parts: list[RunningScript] = []
        """The scripts of which a part runs, or is to run, in the order in which they began to wait for that."""

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the handler of the query for what a script has done."""

        def script(request: ScriptPageRequest) -> ScriptPage:
            """A page of what a script has done so far, for a worker that runs it again."""
            agent = agents.find(request.conversation)
            if agent is None or not agent.conversation.steps:
                raise ValueError("There is no such script.")
            return agent.feature(cls).page(request)

        if workflow.get_query_handler(SCRIPT_QUERY) is None:
            workflow.set_query_handler(SCRIPT_QUERY, script)

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run a script to its end, and all calls that it makes."""
        facts = self.agent.pinned(self, CodeFacts)
        if call.call.name != RUN_CODE or facts is None:
            return await then(call)
        return await self._script(call, facts).run()

    def _script(self, call: StepCall, facts: CodeFacts) -> RunningScript:
        timeout = timedelta(seconds=facts.timeout) + limits.SCRIPT_MARGIN + limits.SCRIPT_QUEUE
        return RunningScript(
            agent=self.agent,
            call=call,
            max_calls=facts.max_calls,
            timeout=facts.timeout,
            schedule=replace(self.schedules[RUN_SCRIPT], timeout=timeout),
            parts=self._parts,
        )

    def page(self, request: ScriptPageRequest) -> ScriptPage:
        """The calls of a script of the newest step from number `since` on: as many as fit, and at least one if there is any.

        Raises:
            ValueError: there is no such script.
        """
        facts = self.agent.pinned(self, CodeFacts)
        script = next((each for each in self.agent.calls if each.call.id == request.call_id and each.of is None), None)
        if script is None or facts is None:
            raise ValueError("There is no such script.")
        arguments = script.record.arguments
        inner = self.agent.conversation.inner_calls(script.index)
        page = ScriptPage(
            facts=self._script(script, facts).facts,
            code=str(arguments.get("code", "")) if isinstance(arguments, dict) else "",
            delivered=script.record.delivered,
            calls=[],
            total=len(inner),
        )
        size = 0
        for _, each in inner[max(0, request.since) :]:
            recorded = RecordedScriptCall(name=each.call.name, arguments=each.record.written(each.call))
            if each.result is not None:
                recorded.text, recorded.error = each.result.text, each.result.error
                recorded.has_parts = bool(each.result.content)
            size += json_size(recorded.model_dump(mode="json"))
            if page.calls and size > limits.PAGE_BYTES:
                break
            page.calls.append(recorded)
        return page
