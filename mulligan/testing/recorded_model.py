"""The model of a replay: it answers as the model of a case did, and compares what it is sent with what that was sent."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from temporalio import activity

from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.protocol import FinishReason, Reply, Request
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message, Step, StepCall, ToolCall, Usage
from mulligan.wire.case import Case
from mulligan.wire.model_call import CALL_MODEL

WITHOUT_RESULT = ("failed", "cancelled", "terminated", "timed_out", "stopped")
"""How runs end for a reason that is not in the case."""
_CONTEXT_LINES = 3
CUT = "more characters"
"""Is in the note at the end of a text that was cut (`cut_text`)."""
_FIXERS = ("fix", "repair")
"""By whom the arguments of a call were repaired where a second model may have done it."""


class RecordedModel:
    """Stands for every provider of a worker, with the answers of one case.

    Attributes:
        difference: A unified diff of the first difference; empty while there is none.
        answered: How many of the case's steps were answered.
    """

    name = "recorded"
    background = batch = None

    def __init__(self, case: Case) -> None:
        self.difference = ""
        self.answered = 0
        self._case, self._is_compacted = case, False
        self._instructions: str | None = None
        self._places = [*case.answers, len(case.messages)]

    @property
    def providers(self) -> AvailableProviders:
        """Providers of a worker that all are this one."""
        return _OneProvider(self)

    def encode(self, message: Message) -> list[Any]:  # noqa: ARG002 - the protocol's
        """Return nothing: the messages are compared as they are."""
        return []

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def complete(self, request: Request) -> Reply:
        """Return what the model answered then.

        Raises:
            ModelRequestError: it was sent something else, or was not called.
        """
        if activity.info().activity_type != CALL_MODEL:
            return self._summary()
        if self._instructions is not None and request.definition.instructions != self._instructions:
            return self._repair(request.definition.tools[0].name)
        self._instructions = request.definition.instructions
        return self._answer(request)

    def _answer(self, request: Request) -> Reply:
        case, index = self._case, self.answered
        if index == len(case.steps):
            if case.status not in WITHOUT_RESULT:
                self._differs(
                    f"The model would be called after step {case.steps[-1].step if case.steps else 0}, with which the case "
                    f"ends ({case.status}), with:\n" + "\n".join(_lines(_newest(request.messages)))
                )
            raise ModelRequestError("The case has no further answer.")
        step = case.steps[index]
        before, now = case.messages[: self._places[index]], request.messages
        if index or step.compaction is not None:  # what came earlier is compared, or is in a summary
            before, now = _newest(before), _newest(now)
        if (step.compaction is not None) != self._is_compacted:
            self._differs(
                f"The conversation is {'' if self._is_compacted else 'not '}compacted before step {step.step}."
            )
        self._differs(unified_diff(f"the messages before step {step.step}", [*_lines(before)], [*_lines(now)]))
        if self.difference:
            raise ModelRequestError("The model is sent something else than in the case.")
        self.answered, self._is_compacted = self.answered + 1, False
        reply = self._reply(step, case.messages[self._places[index]])
        return replace(reply, calls=_with_own_ids(reply.calls)) if request.summarized_answers else reply

    def _differs(self, difference: str) -> None:
        self.difference = self.difference or difference

    def _reply(self, step: Step, message: Message) -> Reply:
        assert isinstance(message, AssistantMessage)
        calls = [_as_written(*each) for each in zip(step.tool_calls, message.tool_calls, strict=True)]
        return Reply(
            text=message.text,
            calls=calls,
            finish_reason=self._finish_reason(step),
            usage=step.usage,
            model=step.model.partition(":")[2],
            provider_data=message.provider_data,
            files=message.files or (),
            hosted_calls=step.hosted_calls,
            citations=step.citations,
            own_finish_reason=step.finish_reason,
        )

    def _finish_reason(self, step: Step) -> FinishReason:
        if step is self._case.steps[-1] and self._case.status == "truncated":
            return "length"
        if step is self._case.steps[-1] and self._case.status == "refused":
            return "refusal"
        if any(
            call.result and call.result.error and call.result.error.kind == "truncated_call" for call in step.tool_calls
        ):
            return "length"
        return "tool_calls" if step.tool_calls else "stop"

    def _summary(self) -> Reply:
        """What a model wrote for the compaction before the next step."""
        self._is_compacted = True
        step = self._case.steps[self.answered] if self.answered < len(self._case.steps) else None
        compaction = step.compaction if step else None
        if compaction is None or compaction.error is not None:
            raise ModelRequestError(compaction.error.message if compaction and compaction.error else "No such summary.")
        return Reply(text=compaction.text, calls=(), finish_reason="stop", usage=compaction.usage)

    def _repair(self, name: str) -> Reply:
        """What a second model made of the arguments of a call of the newest step; `null` where it gave up."""
        calls = self._case.steps[self.answered - 1].tool_calls
        repaired = (
            repair.after for call in calls if call.name == name for repair in call.repairs if repair.by in _FIXERS
        )
        return Reply(text=json.dumps(next(repaired, None)), calls=(), finish_reason="stop", usage=Usage())


class _OneProvider(AvailableProviders):
    """The providers of a worker, of which each is the same."""

    def __init__(self, provider: RecordedModel) -> None:
        super().__init__({})
        self._provider = provider

    def of(self, model: str) -> Any:
        """The provider, whatever the model is."""
        del model
        return self._provider


def _newest(messages: Sequence[Message]) -> list[Message]:
    """The messages from the newest answer on."""
    answers = [number for number, each in enumerate(messages) if isinstance(each, AssistantMessage)]
    return list(messages[answers[-1] if answers else 0 :])


def _as_written(call: StepCall, executed: ToolCall) -> ToolCall:
    """The call as the model wrote it; with long arguments that were repaired, which steps have in part, as executed."""
    is_edited = call.decision is not None and call.decision.edited
    is_cut = CUT in call.raw_arguments and len(call.raw_arguments) < len(executed.arguments)
    is_written_otherwise = is_edited or (bool(call.repairs) and not is_cut)
    name = next((str(repair.before) for repair in call.repairs if repair.by == "name"), call.name)
    return ToolCall(id=call.id, name=name, arguments=call.raw_arguments if is_written_otherwise else executed.arguments)


def _with_own_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls after a compaction, with their ids as the model gave them: without the suffix that makes them unique."""
    return [
        call.model_copy(update={"id": re.sub(rf"_[0-9a-f]{{12}}_{index}\Z", "", call.id)})
        for index, call in enumerate(calls)
    ]


def _lines(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        heading = f"{message.role}:"
        if message.role == "tool":
            error = f" error {message.error.kind}" if message.error else ""
            heading = f"tool {message.name} ({message.call_id}){error}:"
        yield heading
        yield from (f"  {line}" for line in message.text.splitlines())
        if message.role == "assistant":
            for call in message.tool_calls:
                yield f"  calls {call.name} ({call.id}) with {call.arguments}"
        elif message.content:
            yield from (f"  {part.model_dump_json()}" for part in message.content if part.type != "text")


def unified_diff(what: str, before: Sequence[str], now: Sequence[str]) -> str:
    """A unified diff with a heading; empty where nothing differs."""
    lines = [*difflib.unified_diff(before, now, "in the case", "now", lineterm="", n=_CONTEXT_LINES)]
    return "\n".join([f"{what[0].upper()}{what[1:]} are not those of the case:", *lines]) if lines else ""
