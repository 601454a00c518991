"""Labels the results that others may have written, and guards the consequential calls of an agent that has read some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from temporalio import workflow

from mulligan.errors import ToolExecutionError
from mulligan.foreign_results import ForeignResult, ForeignResults, GuardAction, quoted_name, strictest
from mulligan.values import ToolMessage
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.start_input import StartInput
from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows.feature import Feature
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.turn import Turn


class GuardedFacts(BaseModel):
    """What was pinned for `Guarded`."""

    action: GuardAction


class Guarded(Feature):
    """The untrusted results that one agent has read. They count however the conversation that is sent changes later."""

    facts_type = GuardedFacts
    option_type = bool

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._results = ForeignResults()

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether one of the turn's agents may have read untrusted results, or is guarded, or the input tells of some.

        After a handoff, what the agents before have read counts, and their guards stay.
        """
        return turn.input.carried.foreign_results is not None or any(map(cls._concerns, turn.all_facts))

    @classmethod
    def _concerns(cls, facts: AgentFacts) -> bool:
        may_read = any(each.untrusted for each in facts.tools.values())
        return may_read or cls.feature in facts.features or bool(facts.definition.provider_tools)

    def begin_turn(self, run_input: StartInput) -> StartInput:
        """Take over the results that another run has read. Results in a client's conversation have no label: they count."""
        if run_input.carried.foreign_results is not None:
            self._results.add_all(run_input.carried.foreign_results)
        if run_input.carried.origin is None:
            for each in run_input.messages:
                if isinstance(each, ToolMessage):
                    self._results.add(ForeignResult.of(each.call_id, each.name, each.text))
        is_told = self._results.for_other_run() is not None
        return run_input.with_fields(foreign_results=ForeignResults() if is_told else None)

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """The model has answered. What its provider has looked up for the answer is not the agent's, nor the user's."""
        step = self._step
        assert self.agent.open_step is not None
        if any(call.of is not None for call in calls):
            return
        if not self.agent.open_step.is_carried:
            record = self.agent.conversation.steps[-1]
            cited = "; ".join(each.title or each.url for each in record.citations)
            for hosted in record.hosted_calls:
                self._results.add(ForeignResult.of(hosted.id, hosted.name, cited, step - 1))
        pinned = [each.features.get(self.feature) for each in self.agent.turn.all_facts]
        guards = [GuardedFacts.model_validate(each).action for each in pinned if each is not None]
        self._results.guard = strictest((self._results.guard, *guards))
        if self._results.before(step).count:
            self.agent.turn.result.trust = "untrusted"

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """Let a consequential call wait for a person, or deny it, if the model had read an untrusted result.

        A sub-agent's prompt is written by a model that has read these results, and its calls are guarded as well.
        """
        if call.facts is not None and call.facts.agent is not None:
            call.handed_down = {"foreign_results": self._read_before(call).for_other_run()}
        guard, decision = self._results.guard, call.record.decision
        if guard is None or not call.pinned.get(self.feature):
            return None
        if decision is not None and decision.decision == "approve":
            return None
        results = self._read_before(call)
        if not results.count:
            return None
        if guard == "deny":
            return await self._deny(call, results)
        call.waits_for, call.foreign_results = call.waits_for or "approval", results
        return None

    def settled(self, call: StepCall, outcome: ToolOutcome) -> None:
        """Label a result. What a call of an untrusted tool returned or raised counts; a call that never ran does not.

        What a script's later calls return after such a result counts as well: the script may have passed it on.
        """
        has_run = self.agent.open_step is not None and call.call.id in self.agent.open_step.started
        is_own = call.facts is not None and call.facts.untrusted and call.facts.agent is None
        if outcome.untrusted or ((is_own or call.after_untrusted) and (has_run or call.record.recorded)):
            call.record.untrusted = True
            self._results.add(ForeignResult.of(call.call.id, call.call.name, outcome.text, self._step))

    def for_resume(self, state: ResumeState) -> None:
        """Add the results for a run that goes on with this conversation, or is forked from it."""
        carried = state.input.carried
        if state.fork is None:
            carried.foreign_results = self._results.for_other_run()
        else:
            before = self._results.before(state.fork.step)
            carried.foreign_results = before if before.for_other_run() else None

    def dump(self) -> dict[str, Any] | None:
        """The results, as JSON."""
        results = self._results.for_other_run() and self._results
        return results.model_dump(mode="json", exclude_defaults=True) if results else None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._results = ForeignResults.model_validate(state)

    def _read_before(self, call: StepCall) -> ForeignResults:
        """What was read before a call was written; a script that makes it may have read results of its own step."""
        return self._results.before(self._step + call.after_untrusted)

    @property
    def _step(self) -> int:
        """The number of the newest step that the model has answered."""
        return self.agent.conversation.next_step - 1

    async def _deny(self, call: StepCall, results: ForeignResults) -> ToolOutcome:
        agent, name = self.agent, call.call.name
        tools = ", ".join(sorted({f"`{quoted_name(each.tool)}`" for each in results.results}))
        error = ToolExecutionError(
            f"`{name}` was not run: this conversation has results of {tools}, which others may have written, and no call of "
            f"`{name}` may follow from such results. Tell the user what you wanted to do, and why it was not done.",
            kind="denied",
            tool_name=name,
            call_id=call.call.id,
        )
        return await agent.record_failed(
            call,
            "denied",
            kind="denied",
            started=workflow.time(),
            failure=error.to_json(),
            on_invalid_tool_input=agent.turn.input.on_invalid_tool_input,
        )
