"""Hands the conversation of a run over to another agent, which has it from the next step on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, Field
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from mulligan.errors import InvalidActivityResultError, ToolExecutionError
from mulligan.schema.optional_field import optional_field
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.checked_result import MOST_INT
from mulligan.wire.handoffs import HAND_OVER, HandoffOutcome, HandOver
from mulligan.wire.model_call import ModelAnswer
from mulligan.wire.tool_call import ToolOutcome, without_arguments
from mulligan.workflows import limits
from mulligan.workflows.agent_route import is_declined
from mulligan.workflows.feature import Feature
from mulligan.workflows.feature_facts import check_feature_facts
from mulligan.workflows.scheduling import Schedule, run_activity
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.agent_route import AgentRoute
    from mulligan.workflows.running_agent import RunningAgent

_Count = Annotated[int, Field(ge=0, le=MOST_INT)]


class HandoffFacts(BaseModel):
    """`targets`: the agents, by the names of the tools that hand over to them. `most`: the limit of a run that begins with
    the agent. `max_depth`: the levels of sub-agents that may be below such a run.
    """

    targets: dict[str, str]
    most: _Count
    max_depth: _Count


class _NextAgent(BaseModel):
    """The agent that has the conversation from the next step on. `call`: the index of the call that hands over."""

    agent: str
    call: int
    facts: AgentFacts | None = optional_field()


class Handoffs(Feature):
    """The handoffs of one run. Its state: the agent that takes over when the open step's calls have ended, and the limits
    of the run, which are those of the agent that it began with.
    """

    facts_type = HandoffFacts
    schedules: ClassVar = {
        HAND_OVER: Schedule(timeout=limits.OPEN_RUN_TIMEOUT, retry=limits.OPEN_RUN_RETRY, waits=False)
    }

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._next: _NextAgent | None = None
        self._route: AgentRoute | None = None
        """Where the next agent is served, if this workflow run has called it."""
        self._limits: tuple[int, HandoffFacts] | None = None
        """The number of the turn, and the facts of the agent that it began with."""

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """Carry a call of `transfer_to_NAME` out.

        Here, and not in `run_call`: in a fork with recorded tools, the result of an equal call hands nothing over.
        """
        facts, agent = self.agent.pinned(self, HandoffFacts), self.agent
        target = facts.targets.get(call.call.name) if facts else None
        if facts is None or target is None or agent.is_stopped:
            return None
        most, number = self._of_run(facts).most, agent.turn.handoffs
        first = next(each for each in agent.calls if each.call.name in facts.targets and each.prepared.text is None)
        if first is not call:
            return await self._refuse(
                call, f"`{first.call.name}` of the same step hands the conversation over already."
            )
        if number >= most:
            times = "once" if most == 1 else f"{most} times"
            said = f"it was handed over {times} in this run, the limit of its max_handoffs"
            why = said if most else "max_handoffs is 0"
            return await self._refuse(call, f"The conversation stays here: {why}. Go on with it yourself.")
        agent.conversation.event_log.tool_call_started(call.index)
        with agent.running(call):
            return await self._hand_over(call, target)

    async def _hand_over(self, call: StepCall, target: str) -> ToolOutcome:
        agent, started = self.agent, workflow.time()
        request = HandOver(
            where=agent.context.model_copy(update={"input": None}),
            call=without_arguments(call.call),
            arguments=call.record.arguments,
            repaired_by=call.repaired_by,
            step=agent.turn.result.steps,
            digest=call.digest,
            agent=target,
            input=agent.turn.input_of(target),
            is_pinned=(before := agent.turn.pinned.get(target)) is not None,
            is_file=before is not None and before.version is not None,
        )
        route, row = agent.new_route(), self.schedules[HAND_OVER]
        try:
            outcome = await run_activity(HAND_OVER, request, HandoffOutcome, row, route=route, summary=call.call.name)
            if outcome.facts is not None:
                check_feature_facts(agent.features_for(outcome.facts), outcome.facts, HAND_OVER)
        except (ActivityError, InvalidActivityResultError) as error:
            if is_cancelled_exception(error):
                raise
            message = f"The conversation was not handed over to `{target}`: {_why(error)}."
            return await self._fail(call, message, "tool_lost")
        if outcome.failure_without_policy is not None:
            return await self._record(call, outcome.failure_without_policy, "failed", outcome.attempts, started)
        self._next, self._route = _NextAgent(agent=target, call=call.index, facts=outcome.facts), route
        return ToolOutcome(text=outcome.text, attempts=outcome.attempts)

    async def _refuse(self, call: StepCall, why: str) -> ToolOutcome:
        return await self._fail(call, f"`{call.call.name}` was not run. {why}", "denied")

    async def _fail(self, call: StepCall, message: str, kind: str) -> ToolOutcome:
        error = ToolExecutionError(message, kind=kind, tool_name=call.call.name, call_id=call.call.id)
        return await self._record(call, error.to_json(), kind, 0, workflow.time())

    async def _record(
        self, call: StepCall, failure: dict[str, Any], kind: str, attempts: int, started: float
    ) -> ToolOutcome:
        """The result of a call that hands nothing over, by the policy of the agent that has the conversation."""
        fields = {"kind": kind, "attempts": attempts, "started": started, "failure": failure}
        return await self.agent.record_failed(call, kind, call=call.written_call, **fields)

    async def accept(self, answer: ModelAnswer) -> None:
        """All calls of the step have ended: the next agent has the conversation, unless the answer ends the turn."""
        self._take_over(answer)

    def cut_short(self) -> None:
        """The next agent has the conversation all the same: the result of its call says so, and the next turn is its own."""
        if self.agent.open_step is not None:
            self._take_over(self.agent.open_step.answer)

    def _take_over(self, answer: ModelAnswer) -> None:
        following, self._next = self._next, None
        if following is None or answer.output is not None:
            return
        agent, turn, before = self.agent, self.agent.turn, self.agent.name
        pinned = agent.pinned(self, HandoffFacts)
        facts = following.facts or turn.pinned[following.agent]
        if following.facts is not None and pinned is not None:
            facts = facts.with_limits_of(agent.facts, self._of_run(pinned).max_depth)
        agent.hand_over(following.agent, facts, self._route or agent.new_route())
        agent.conversation.event_log.handed_over(following.call, before, following.agent, turn.model)

    def _of_run(self, pinned: HandoffFacts) -> HandoffFacts:
        """The limits of the run. `pinned`: of the agent that has the conversation now."""
        turn = self.agent.turn
        if self._limits is None or self._limits[0] != turn.number:
            self._limits = turn.number, pinned
        return self._limits[1]

    def dump(self) -> dict[str, Any] | None:
        """The limits, and the next agent, as JSON."""
        if self._limits is None:
            return None
        number, facts = self._limits
        following = self._next.model_dump(mode="json") if self._next else None
        return {"turn": number, "limits": facts.model_dump(mode="json"), "next": following}

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._limits = state["turn"], HandoffFacts.model_validate(state["limits"])
        self._next = _NextAgent.model_validate(state["next"]) if state["next"] else None


def _why(error: ActivityError | InvalidActivityResultError) -> str:
    """Why an agent could not take a conversation over, as the end of a sentence."""
    cause = error.cause if isinstance(error, ActivityError) else None
    if isinstance(error, ActivityError) and is_declined(error):
        return "no worker serves it"
    if isinstance(cause, ApplicationError) and cause.type != InvalidActivityResultError.__name__:
        return f"{cause.type}: {cause.message.rstrip('.')}"
    return "its worker was lost, or is of another version"
