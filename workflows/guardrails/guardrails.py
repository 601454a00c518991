"""Has the input of a turn, and its final answer, checked by functions of the agent's; they may refuse it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field

from mulligan.output import TEXT
from mulligan.wire.guardrails import CHECK_INPUT, CHECK_OUTPUT, Checked, CheckInput, CheckOutput, OutputChecked
from mulligan.wire.model_call import AcceptedOutput, GuardContext, ModelAnswer, ModelCall, PreparedCall
from mulligan.workflows import limits
from mulligan.workflows.feature import EndTurn, Feature
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.turn import output_value, status_of

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent

_ROW = Schedule(retry=limits.OPEN_RUN_RETRY, has_heartbeat=True)


class GuardrailFacts(BaseModel):
    """What is checked: the `input`, the `output`, or both. `timeout`: seconds for the functions of one check."""

    input: bool
    output: bool
    timeout: float = Field(gt=0, le=1_000)


class Guardrails(Feature):
    """The guardrails of one run. Its state: how many answers of a turn the validators have refused."""

    facts_type = GuardrailFacts
    schedules: ClassVar = {CHECK_INPUT: _ROW, CHECK_OUTPUT: _ROW}

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._refused = (0, 0)
        """The number of a turn, and how many answers of it the validators have refused."""
        self._refusal: str | None = None
        """Why the answer of the open step ends the turn."""

    async def step(self, then: Callable[[], Awaitable[None]]) -> None:
        """Have the input checked before the turn's first model call; what a fork has changed, before the fork's first one.

        Raises:
            EndTurn: a guardrail has refused it.
        """
        agent = self.agent
        if self._facts.input and not agent.is_answering:
            for call in self._inputs():
                request = {**dict(call), "guard": GuardContext(metadata=agent.turn.input.metadata)}
                checked = await self._check(CHECK_INPUT, CheckInput(**request), Checked)
                if checked.refusal is not None:
                    raise EndTurn("refused", checked.refusal)
        await then()

    def _inputs(self) -> Iterator[ModelCall]:
        """What is to be checked, as model calls whose conversations end with it: up to an edited prompt; the next one."""
        agent, turn = self.agent, self.agent.turn
        conversation, forked = agent.conversation, turn.input.fork
        is_checked = turn.result.steps == 0
        if forked is not None and conversation.next_step == forked.step:
            is_checked = is_checked or forked.adds_message
            count = forked.edited_prompt + 1 if forked.edited_prompt is not None else 0
            if count and (conversation.summary or count >= conversation.ref().count):
                is_checked = True
            elif count:
                update = {"conversation": conversation.ref(count), "new": None, "uncached": count}
                yield agent.model_request().model_copy(update=update)
        if is_checked:
            yield agent.model_request()

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Have a final answer checked. One that a validator refuses is answered as an output that is not valid."""
        answer = await then(call)
        turn, facts = self.agent.turn, self._facts
        self._refusal = None
        if not facts.output or not self._is_final(answer):
            return answer
        output = answer.output
        request = CheckOutput(
            where=self.agent.context,
            step=turn.next_step,
            metadata=turn.input.metadata,
            type=output.type if output else None,
            value=output_value(answer, [each.arguments for each in answer.prepared]) if output else answer.message.text,
            refused=self._times_refused,
        )
        checked = await self._check(CHECK_OUTPUT, request, OutputChecked)
        self._refusal = checked.refusal
        if checked.rejected is not None:
            self._reject(answer, checked)
        elif checked.is_changed:
            call_index = output.call if output else None
            kind = output.type if output else TEXT
            answer.output = AcceptedOutput(type=kind, call=call_index, value=checked.value)
        return answer

    async def accept(self, answer: ModelAnswer) -> None:  # noqa: ARG002
        """End the turn if a guardrail has refused its answer: then it has no output.

        Raises:
            EndTurn: one has.
        """
        if self._refusal is not None:
            self.agent.turn.result.output = None
            raise EndTurn("refused", self._refusal)

    @property
    def _facts(self) -> GuardrailFacts:
        facts = self.agent.pinned(self, GuardrailFacts)
        assert facts is not None
        return facts

    @property
    def _times_refused(self) -> int:
        number, times = self._refused
        return times if number == self.agent.turn.number else 0

    def _is_final(self, answer: ModelAnswer) -> bool:
        """Whether the answer would complete the turn."""
        if answer.rejected is not None:
            return False
        is_text = not answer.message.tool_calls and not self.agent.facts.structured
        return answer.output is not None or (is_text and status_of(answer) == "completed")

    def _reject(self, answer: ModelAnswer, checked: OutputChecked) -> None:
        rejected, output = checked.rejected, answer.output
        assert rejected is not None
        self._refused = self.agent.turn.number, self._times_refused + 1
        answer.output = None
        if output is None or output.call is None:
            answer.rejected = rejected
            return
        # Each call has one result: here it is the feedback.
        answer.prepared[output.call] = PreparedCall(
            text=rejected.text,
            error=rejected.error,
            failure=rejected.failure,
            repairs=answer.prepared[output.call].repairs,
        )

    async def _check(self, name: str, request: Any, result: type[Any]) -> Any:
        # Beside the functions' own time, that of a worker that has to read the conversation.
        timeout = timedelta(seconds=self._facts.timeout) + limits.OPEN_RUN_TIMEOUT
        summary = "input" if name == CHECK_INPUT else "answer"
        row = replace(self.schedules[name], timeout=timeout)
        return await self.agent.activity(name, request, result, summary=summary, schedule=row)

    def dump(self) -> list[int] | None:
        """The number of the turn, and how many answers were refused, as JSON."""
        return list(self._refused) if self._refused[1] else None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        number, times = state
        self._refused = number, times
