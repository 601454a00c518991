"""An agent of a workflow while it works: its conversation, its turn, what it waits for, and its features."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError

from mulligan.schema.optional_field import optional_field
from mulligan.values import Spent
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.model_call import CALL_MODEL, ConversationRequest, ModelAnswer, ModelCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_priority import run_priority
from mulligan.wire.run_status import RunStatus, open_status
from mulligan.wire.start_input import StartInput
from mulligan.wire.tool_call import RECORD_FAILED_CALL, CallTool, FailedCall, ToolOutcome, without_arguments
from mulligan.workflows import limits
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.conversation.continue_as_new import (
    ContinueAsNewPolicy,
    continue_as_new,
    decode_state,
    encode_state,
    fits_in_state,
    size_to_carry,
)
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.feature import Feature
from mulligan.workflows.features import FEATURE_CLASSES, installed
from mulligan.workflows.former_turns import FormerTurns
from mulligan.workflows.model_errors import raise_model_error
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.scheduling import Schedule, run_activity
from mulligan.workflows.shown_wait import ModelWait, RunningCall, WorkerWait
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.turn import Turn
from mulligan.workflows.waits import Waits

if TYPE_CHECKING:
    from mulligan.workflows.step_calls import StepCalls

Result = TypeVar("Result", bound=BaseModel)
F = TypeVar("F", bound=Feature)


class OpenStep(BaseModel):
    """A step from the model's answer to the results of all of its calls. Continue-as-new carries it.

    `started`: the ids of the calls that have started to run. `is_carried`: whether it began in an earlier workflow run.
    """

    answer: ModelAnswer
    started: list[str] = optional_field([])
    is_carried: bool = optional_field(False)


class RunningAgent:
    """One agent of a workflow.

    Attributes:
        name: The agent's.
        key: Its number in the workflow.
        inbox: What has been sent to it.
        waits: What it waits for.
        input: The input of the newest turn; None before the first one.
        status: The status of the newest turn.
        conversation: The messages of all turns.
        route: The task queue of a worker that has the agent, where workers of one queue serve different agents.
        open_step: The step whose calls have not all ended.
        is_answering: Whether the model of a step was called, and has not answered.
        cached_messages: How many messages are in the cache of the worker that called the model last, counted in the view.
        calls: The calls of the open step, those that calls make included.
        step_calls: What runs the calls of the open step: a feature whose call makes calls settles them by it.
        is_closing: Whether the trace of a turn that is over is being closed.
        may_leave: Whether the workflow may continue as new while the agent waits. For `AgentWorkflow` only, as the state
            must be the workflow's only argument.
    """

    def __init__(self, name: str, key: str, inbox: Inbox, state: bytes | None) -> None:
        carried = decode_state(state) if state else {}
        self.name: str = carried.get("agent", name)
        self.key, self.inbox = key, inbox
        info = workflow.info()
        self.workflow_id, self.run_id = info.workflow_id, info.run_id
        self.waits: Waits = inbox.waits
        self.input: StartInput | None = None
        self.status: RunStatus = carried.get("status", "running")
        self.conversation = Conversation.load(carried["conversation"]) if carried else Conversation()
        self._turn = Turn.model_validate(carried["turn"]) if carried.get("turn") else None
        self._former_turns = FormerTurns()
        self.cached_messages = self.conversation.count_at_answer
        self.open_step: OpenStep | None = None
        self.calls: list[StepCall] = []
        self.step_calls: StepCalls | None = None
        self.is_answering = self.is_closing = False
        self.may_leave = False
        self._policy = ContinueAsNewPolicy(is_carried=state is not None)
        self._worker_waits = 0
        self.route = self.new_route()
        self._installed = installed()
        self.features: list[Feature] = [each(self) for each in FEATURE_CLASSES]
        self._used: list[Feature] = []
        self._links: dict[str, list[Feature]] = {}
        if self._turn:
            self.take_features(self._turn.facts)
        inbox.on_stop = self.conversation.event_log.stopping
        self.waits.is_due, self.waits.leave = self._is_due_while_waiting, self._leave
        self.waits.open_threads = self._open_threads
        if carried:
            self._load(carried)
        if self._turn is not None:
            self._link_features(self._turn)

    def _load(self, carried: dict[str, Any]) -> None:
        self.inbox.load(carried["inbox"])
        self.waits.load(carried["waits"], self._installed.waits)
        self.is_answering = carried["answering"]
        if former := carried.get("former_turns"):
            self._former_turns.load(former, self.turn)
        states = carried["features"]
        for feature in self.features:
            if (name := feature.feature) in states:
                feature.load(states[name])
        if step := carried["step"]:
            answer = {**step["answer"], "message": self.conversation.messages[self.conversation.steps[-1].at]}
            self.open_step = OpenStep.model_validate({**step, "answer": answer, "is_carried": True})

    def carry(self) -> bytes:
        """The state of the agent for the next workflow run: its turn and its conversation, compressed."""
        step, states = self.open_step, {each.feature: each.dump() for each in self.features}
        # The conversation has the message, and its records have the arguments.
        elsewhere: Any = {"answer": {"message": True, "prepared": {"__all__": {"arguments"}}}}
        conversation = self.conversation.dump(self.run_id)
        first_step = conversation.get("earlier", {}).get("steps", 0)
        former = self._former_turns.dump(self._turn, first_step) if self._turn else None
        return encode_state(
            {
                "agent": self.name,
                "status": self.status,
                "turn": self._turn.model_dump(mode="json") if self._turn else None,
                **({"former_turns": former} if former else {}),
                "conversation": conversation,
                "inbox": self.inbox.dump(),
                "waits": self.waits.dump(),
                "answering": self.is_answering,
                "step": step.model_dump(mode="json", exclude=elsewhere) if step else None,
                "features": {name: state for name, state in states.items() if state is not None},
            }
        )

    # What identifies the turn

    @property
    def turn(self) -> Turn:
        """The newest turn.

        Raises:
            RuntimeError: there is none yet.
        """
        if self._turn is None:
            raise RuntimeError("No turn is open: call begin(), or run(), first.")
        return self._turn

    @turn.setter
    def turn(self, turn: Turn) -> None:
        if self._turn is not None:
            self._former_turns.add(self._turn, turn)
        self._turn = turn
        self._link_features(turn)

    @property
    def used(self) -> list[Spent]:
        """What its turns in this workflow have used; several of the oldest ones in one sum."""
        return [*self._former_turns.used, *([self._turn.used] if self._turn is not None else [])]

    def turn_of(self, step: int) -> Turn:
        """The turn that a step of the conversation belongs to, if this run has the step."""
        turns = [*self._former_turns.turns, self.turn]
        return next((each for each in reversed(turns) if each.first_step <= step), turns[0])

    @property
    def has_turn(self) -> bool:
        """Whether a first turn was opened."""
        return self._turn is not None

    @property
    def has_begun(self) -> bool:
        """Whether a first turn has begun."""
        return self._turn is not None or self.input is not None

    @property
    def is_turn_open(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self.status == "running" and self.has_begun

    @property
    def shown_status(self) -> RunStatus:
        """The newest turn's status as people are shown it: also whether an open turn works, or waits."""
        return open_status(wait.kind for wait in self.waits.open.values()) if self.status == "running" else self.status

    @property
    def facts(self) -> AgentFacts:
        """The facts of the agent that were pinned when the turn opened."""
        return self.turn.facts

    @property
    def context(self) -> RunContext:
        """What identifies the turn in the inputs of its activities."""
        turn = self.turn
        given = turn.input
        return RunContext(
            agent=self.name,
            conversation=self.key,
            trace=turn.trace,
            tenant=given.tenant,
            user=given.user,
            client_metadata=given.client_metadata,
            labels=given.carried.labels,
            version=turn.facts.version.digest if turn.facts.version else None,
            input=given.without_conversation if turn.facts.tools_by_function else None,
        )

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has requested the turn to stop."""
        return self.inbox.stop is not None

    def new_route(self) -> AgentRoute:
        """A route that begins at the run's own task queue."""
        route = AgentRoute(lambda: self.inbox.stop is not None, self._waiting_for_worker)
        route.priority = run_priority(self._turn.input if self._turn else None)
        return route

    def hand_over(self, name: str, facts: AgentFacts, route: AgentRoute) -> None:
        """From the next step on, the turn is another agent's. `route`: where that one is served.

        Raises:
            MissingFeatureError: this worker lacks one of its features.
        """
        self.take_features(facts)
        self.turn.hand_over(name, facts)
        if self.input is not None:
            self.input = self.input.model_copy(update={"agent": name, "version": None})
        self.name, self.route = name, route
        self._link_features(self.turn)

    # Features

    def take_features(self, facts: AgentFacts) -> None:
        """Add the features of loaded modules that a turn's agent is declared with.

        Raises:
            MissingFeatureError: this worker lacks one of its features.
        """
        self.features = self.features_for(facts)

    def features_for(self, facts: AgentFacts) -> list[Feature]:
        """The features of a turn with these facts. Those of loaded modules are the innermost of each chain.

        Raises:
            MissingFeatureError: this worker lacks one of them.
        """
        former = {type(each): each for each in self.features}
        declared = self._installed.declared(facts.features)
        return [former.get(each) or each(self) for each in (*FEATURE_CLASSES, *declared)]

    def feature(self, kind: type[F]) -> F:
        """The agent's feature of a class."""
        return next(each for each in self.features if isinstance(each, kind))

    def pinned(self, feature: Feature, kind: type[Result]) -> Result | None:
        """What was pinned for a feature when the turn opened; None if the agent is declared without it."""
        facts = self.facts.features.get(feature.feature)
        return None if facts is None else kind.model_validate(facts)

    def with_method(self, name: str) -> Iterator[Feature]:
        """The features that have a method of their own, whether the turn uses them or not, in the order of the list."""
        return (each for each in self.features if _overrides(each, name))

    def linked(self, name: str) -> Sequence[Feature]:
        """The features that the turn uses and that have a method of their own, in the order of the list."""
        if name not in self._links:
            self._links[name] = [each for each in self._used if _overrides(each, name)]
        return self._links[name]

    def around(
        self, name: str, inner: Callable[..., Awaitable[Any]], *, late: bool = False
    ) -> Callable[..., Awaitable[Any]]:
        """A function with the methods of that name of the turn's features around it: the first one's is the outermost.

        `late`: those of the features that the turn had no use for when it opened.
        """
        chosen = [each for each in self.with_method(name) if each not in self._used] if late else self.linked(name)
        for feature in chosen[::-1]:
            inner = partial(getattr(feature, name), then=inner)
        return inner

    def _link_features(self, turn: Turn) -> None:
        # Once for a turn: a step then asks nothing of the features that it does not use.
        self._used = [each for each in self.features if each.is_used(turn) or any(map(self.waits.of, each.waits))]
        self._links = {}

    # Activities

    async def activity(
        self,
        name: str,
        request: BaseModel,
        result_type: type[Result],
        *,
        summary: str | None = None,
        schedule: Schedule | None = None,
    ) -> Result:
        """The result of an activity, as `run_activity`. `schedule`: in place of its row in the table.

        Raises:
            ActivityError: it has failed, or its result is none that the run can use.
        """
        row = schedule or self._installed.schedules[name]
        version = self._turn.facts.version if self._turn else None
        if version is not None and version.text is not None and row.is_routed:
            # The worker may have to ask this workflow for the version, which waits for a local activity.
            row = replace(row, is_local=False)
        return await run_activity(name, request, result_type, row, route=self.route, summary=summary)

    async def model_activity(
        self,
        name: str,
        request: ConversationRequest,
        result_type: type[Result],
        *,
        summary: str,
        attempts: int | None = None,
    ) -> Result:
        """The result of an activity that calls a model, with the timeout and the task queue of the agent's model calls.

        After a request to stop, it may run for the grace time only. `attempts`: how often it is tried; None: no limit.

        Raises:
            ActivityError: it has failed, or its result is none that the run can use.
        """
        schedule = self.model_schedule(self._installed.schedules[name], retry=limits.model_retry(attempts))
        return await run_activity(
            name, request, result_type, schedule, route=self.route, summary=summary, wait=self.inbox.unless_stopped
        )

    def model_schedule(self, row: Schedule, **fields: Any) -> Schedule:
        """The row of an activity that calls a model, completed by the agent's facts, and with these fields."""
        facts = self.facts
        return replace(
            row,
            timeout=limits.model_attempt_timeout(facts.model_timeout),
            queue=facts.model_task_queue,
            suffix="-models" if facts.model_task_queue else "",
            **fields,
        )

    def model_request(self) -> ModelCall:
        """The input of the next model call."""
        return self.turn.model_request(self.context, self.conversation, self.cached_messages)

    async def call_model(self, call: ModelCall) -> ModelAnswer:
        """Call one model by an activity.

        Raises:
            ModelRequestError, ModelUnavailableError: the endpoint refuses, or is unavailable for longer than the call's
                patience.
        """
        wait = ModelWait(key="", model=call.model, step=call.step, patience=call.patience)
        summary = f"step {call.step}: {call.model.partition(':')[2]}"
        with self.waits.entered(wait):
            try:
                return await self.model_activity(
                    CALL_MODEL, call, ModelAnswer, summary=summary, attempts=self.facts.model_attempts
                )
            except ActivityError as error:
                raise_model_error(call, error)

    def running(self, call: StepCall) -> AbstractContextManager[RunningCall]:
        """Show a call as running for the time of a block."""
        return self.waits.entered(RunningCall(key=call.call.id, call=call.call, record=call.record))

    def call_request(self, call: StepCall) -> CallTool:
        """The input of the activity that runs a call, from which the inputs of others for the call are made."""
        return CallTool(
            where=self.context,
            call=without_arguments(call.call),
            arguments=call.record.arguments,
            repaired_by=call.repaired_by,
            step=self.turn.result.steps,
            metadata=self.turn.input.metadata,
            decision=call.decision,
            digest=call.digest,
            pinned=self.facts.features.get(call.facts.feature, {}) if call.facts and call.facts.feature else {},
            in_script=call.of is not None,
            after_untrusted=call.after_untrusted,
        )

    async def record_failed(self, call: StepCall, summary: str, /, **fields: Any) -> ToolOutcome:
        """The result of a call that is not run, by the policy for its failure. `fields`: those of its `FailedCall`."""
        failed = FailedCall.like(self.call_request(call), **{"message": "", "attempts": 0} | fields)
        return await self.activity(RECORD_FAILED_CALL, failed, ToolOutcome, summary=f"{call.call.name}: {summary}")

    @contextmanager
    def _waiting_for_worker(self) -> Iterator[None]:
        self._worker_waits += 1
        with self.waits.entered(WorkerWait(key=str(self._worker_waits), agent=self.name, opens=False)):
            yield

    # Messages

    def add_new_messages(self) -> None:
        """Add the messages that people have sent since the last step to the conversation."""
        for message in self.inbox.take_messages():
            self.conversation.event_log.message(self.conversation.append(message))

    # Continue-as-new

    def is_due(self) -> bool:
        """Whether to continue as new at this step boundary. False while the state is too large to be carried."""
        if not self._policy.is_due():
            return False
        if not (fits := self.is_small_enough()):
            self._policy.postpone()
        return fits

    def is_small_enough(self) -> bool:
        """Whether the state fits into what continue-as-new carries."""
        return fits_in_state(size_to_carry(self.carry()), self._most_to_carry, at=self.conversation.next_step)

    def postpone(self) -> None:
        """The state was too large: wait for more history before the next try."""
        self._policy.postpone()

    @property
    def _most_to_carry(self) -> int:
        return (self._turn.facts.carry_bytes if self._turn else None) or limits.CARRY_BYTES

    def _is_due_while_waiting(self) -> bool:
        return self.may_leave and self._policy.is_due_while_waiting() and workflow.all_handlers_finished()

    def _leave(self) -> Callable[[], NoReturn] | None:
        if self._policy.may_continue_while_waiting(lambda: size_to_carry(self.carry()) <= self._most_to_carry):
            return partial(continue_as_new, self.carry())
        return None

    def _open_threads(self) -> int:
        if self.open_step is None:
            return 1
        calls = len(self.open_step.answer.message.tool_calls) - len(self.conversation.early_results)
        return calls + sum(each.result is None for _, each in self.conversation.inner_calls())


def _overrides(feature: Feature, method: str) -> bool:
    return getattr(type(feature), method) is not getattr(Feature, method)
