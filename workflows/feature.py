"""A feature: something that an agent can do beside its loop, in a folder of its own (docs/features.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from mulligan.values import Message, Status
from mulligan.wire.model_call import ModelAnswer, ModelCall, RejectedAnswer
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.start_input import StartInput
from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.waits import Wait

if TYPE_CHECKING:
    from mulligan.wire.updates import Decide
    from mulligan.workflows.people.person_wait import PersonWait
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.step_call import StepCall
    from mulligan.workflows.turn import Turn
    from mulligan.workflows.workflow_agents import WorkflowAgents


AfterDecision = Callable[[], Awaitable[dict[str, Any]]]


class EndTurn(Exception):
    """Raised by a feature: the turn ends now, with a status, and perhaps the reason for people."""

    def __init__(self, status: Status, reason: str | None = None) -> None:
        super().__init__(status)
        self.status: Status = status
        self.reason = reason


class StepAgain(Exception):
    """Raised by a feature before the model has answered: the step begins again, after the run may have continued as new."""


class Feature:
    """One feature of one agent of a workflow. What a subclass does not override costs nothing, nor does what a turn does
    not use.

    `step`, `answer` and `run_call` stand around a step, a model call and a tool call: they do something before and after
    `then`, call it several times, or carry it out in another way, without calling it.

    Attributes:
        facts_type: The type of what was pinned for it when the turn opened, if an agent is declared with it.
        feature: Its name in the list of features: by default the last part of its module's.
        option_type: The type of what its `ToolOption` pins for a tool, if it has one.
        schedules: How its activities are scheduled, by their types.
        waits: The classes of its waits, which are carried over continue-as-new.
        agent: The agent that it belongs to.
    """

    facts_type: ClassVar[type[BaseModel] | None] = None
    feature: ClassVar[str] = ""
    option_type: ClassVar[Any] = None
    schedules: ClassVar[Mapping[str, Schedule]] = {}
    waits: ClassVar[tuple[type[Wait], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.feature = vars(cls).get("feature") or cls.__module__.rpartition(".")[2]

    def __init__(self, agent: RunningAgent) -> None:
        self.agent = agent

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the handlers of its updates and signals, once in a workflow. The agents need not exist yet."""

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether a turn uses it, by the turn's facts and input. Else its methods `step` to `cut_short` are not called.

        By default: if the agent, or a tool, is declared with it, or if neither can be (`facts_type`, `option_type`).
        """
        if cls.option_type is not None and any(cls.feature in each.features for each in turn.facts.tools.values()):
            return True
        return cls.feature in turn.facts.features or (cls.facts_type is None and cls.option_type is None)

    def begin_turn(self, run_input: StartInput) -> StartInput:
        """A turn begins, of which no facts are known yet. Returns its input, as the turn keeps it."""
        return run_input

    async def step(self, then: Callable[[], Awaitable[None]]) -> None:
        """Stand around a step that begins, before the model is called; `then` ends when the model has answered.

        Raises:
            EndTurn, StepAgain: the step does not go on.
        """
        await then()

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Stand around a model call, or carry it out.

        Raises:
            ModelRequestError, ModelUnavailableError: the model did not answer.
        """
        return await then(call)

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """Calls are about to run: those of an answer, or of a step that was carried over; or those that one of them makes,
        whose `of` is set. `agent.calls` has them already.
        """

    async def before_call(self, call: StepCall) -> ToolOutcome | None:  # noqa: ARG002
        """Before a valid call is approved or started. Returns its result if it does not run."""
        return None

    async def before_run(self, call: StepCall) -> ToolOutcome | None:  # noqa: ARG002
        """Before a call is started to which no feature has objected. Returns its result if it does not run."""
        return None

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Stand around a call that runs, or carry it out."""
        return await then(call)

    def deciding(self, wait: PersonWait, decision: Decide) -> AfterDecision | None:  # noqa: ARG002
        """A person decides on a call that waits for approval. Nothing must change yet.

        Returns what is to be done as soon as the decision is made; its result is what the person is told beside that.

        Raises:
            UpdateRefusedError: the decision is not possible.
        """
        return None

    def settled(self, call: StepCall, outcome: ToolOutcome) -> None:
        """A call has its result."""

    async def accept(self, answer: ModelAnswer) -> RejectedAnswer | None:  # noqa: ARG002
        """All calls of an answer have their results. Returns feedback for the model if it must answer again.

        Raises:
            EndTurn: the turn ends with this answer.
        """
        return None

    def keeps(self, message: Message) -> bool:  # noqa: ARG002
        """Whether requests need a message as it is, so that other features leave nothing of it out."""
        return False

    def cut_short(self) -> None:
        """The step has ended before its answer was accepted, as the turn is over. Each of its calls has a result."""

    def for_resume(self, state: ResumeState) -> None:
        """Add what another run needs that resumes this one, or with `state.fork`, that begins before that step.

        What a fork's part of the feature is to `load` is added to `state.fork.features`; to `state.fork.edited` what it is
        to load instead where results of the feature's tools were edited.
        """

    def dump(self) -> Any:
        """The state that continue-as-new carries, as JSON; None if there is none."""
        return None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
