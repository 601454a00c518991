"""The conversation of a run: append, digest, page, carry over. Pure: no Temporal, no clock, no I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from mulligan.handoff import Held, PreparedCall, Ref, chain
from mulligan.shorten import shortened
from mulligan.values import (
    AssistantMessage,
    ErrorInfo,
    Message,
    Repair,
    Step,
    StepCall,
    StepResult,
    ToolMessage,
    Usage,
    UserMessage,
)

_IN_MESSAGES = ": query `messages`"
HELD_FROM = 100
"""Characters of a result from which on a reference to it is the shorter one."""

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


class CallRecord(BaseModel):
    """What a step says of a call beside the messages themselves."""

    arguments: Any = None
    repairs: list[Repair] = []
    attempts: int = 0


class StepRecord(BaseModel):
    """A step, by the place of its assistant message, with what is not in the messages."""

    at: int
    usage: Usage
    calls: list[CallRecord] = []
    error: ErrorInfo | None = None


class Conversation:
    """The messages of a run with the chained digest of each, and the steps that they were made in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.steps: list[StepRecord] = []
        self._digests = [""]
        self._sizes: list[int] = []
        self._settled: dict[str, ToolMessage] = {}

    def append(self, message: Message) -> None:
        """Add a message."""
        digest, size = chain(self._digests[-1], message)
        self.messages.append(message)
        self._digests.append(digest)
        self._sizes.append(size)

    def ref(self, count: int | None = None) -> Ref:
        """The conversation up to `count` messages: all of it where None."""
        count = len(self.messages) if count is None else count
        return Ref(count=count, digest=self._digests[count])

    @property
    def said(self) -> int:
        """How many messages there are up to the newest that the model said: what its worker has seen."""
        return self.steps[-1].at + 1 if self.steps else 0

    def new_since(self, count: int, max_bytes: int) -> list[UserMessage | AssistantMessage | ToolMessage | Held] | None:
        """What comes after the first `count` messages, for a worker; None where it is larger than `max_bytes`.

        A result that is longer than its reference goes by reference: the worker that ran the tool holds it.
        """
        new: list[UserMessage | AssistantMessage | ToolMessage | Held] = []
        for message in self.messages[count:]:
            if isinstance(message, ToolMessage) and len(message.text) > HELD_FROM:
                new.append(Held(role="held", call_id=message.call_id))
            else:
                new.append(message)
        inline = sum(size for size, sent in zip(self._sizes[count:], new, strict=True) if sent.role != "held")
        return new if inline <= max_bytes else None

    def size_since(self, count: int) -> int:
        """Bytes of JSON of the messages after the first `count`."""
        return sum(self._sizes[count:])

    def page(self, since: int, count: int, max_bytes: int) -> list[Message]:
        """As many of the `count` messages from `since` on as fit into `max_bytes`: at least one, if there is one."""
        end, size = since, 0
        while end < min(since + count, len(self.messages)):
            size += self._sizes[end]
            if size > max_bytes and end > since:
                break
            end += 1
        return self.messages[since:end]

    def begin_step(self, message: AssistantMessage, prepared: Sequence[PreparedCall], usage: Usage) -> StepRecord:
        """Add what the model said, and the step that begins with it."""
        record = StepRecord(at=len(self.messages), usage=usage)
        for call, found in zip(message.tool_calls, prepared, strict=True):
            arguments = found.arguments
            if arguments is None and found.error is None:
                # The handoff leaves out arguments that are just what the raw text says.
                arguments = json.loads(call.arguments)
            record.calls.append(CallRecord(arguments=arguments, repairs=found.repairs))
        self.append(message)
        self.steps.append(record)
        return record

    def settle(self, result: ToolMessage) -> None:
        """Show a call's result in its step at once; `end_step` adds it to the messages, in the order of the calls."""
        self._settled[result.call_id] = result

    def end_step(self, results: Sequence[ToolMessage]) -> None:
        """Add the results of a step's calls."""
        for result in results:
            self.append(result)
        self._settled.clear()

    def step_page(self, since: int, limit: int, max_bytes: int) -> list[Step]:
        """As many of the `limit` steps from `since` on as fit into `max_bytes`: at least one, if there is one."""
        page: list[Step] = []
        size = 0
        for index in range(since, min(since + limit, len(self.steps))):
            step = self._step(index)
            size += len(step.model_dump_json().encode())
            if size > max_bytes and page:
                break
            # One step alone may be larger than an answer: its texts are shortened here, and whole in the messages.
            page.append(step if size <= max_bytes else _shortened(step, max_bytes))
        return page

    def _step(self, index: int) -> Step:
        record = self.steps[index]
        said = self.messages[record.at]
        assert isinstance(said, AssistantMessage)
        answers = [m for m in self.messages[record.at + 1 : record.at + 1 + len(record.calls)] if m.role == "tool"]
        results = {**self._settled, **{answer.call_id: answer for answer in answers}}
        calls = []
        for call, kept in zip(said.tool_calls, record.calls, strict=True):
            result = results.get(call.id)
            calls.append(
                StepCall(
                    id=call.id,
                    name=call.name,
                    raw_arguments=call.arguments,
                    arguments=kept.arguments,
                    repairs=kept.repairs,
                    attempts=kept.attempts,
                    result=StepResult(text=result.text, error=result.error) if result else None,
                )
            )
        return Step(step=index + 1, text=said.text, usage=record.usage, tool_calls=calls, error=record.error)

    def dump(self) -> dict[str, Any]:
        """Everything, as JSON: what continue-as-new carries."""
        return {
            "messages": _MESSAGES.dump_python(self.messages, mode="json"),
            "steps": [record.model_dump(mode="json", exclude_defaults=True) for record in self.steps],
        }

    @classmethod
    def load(cls, state: dict[str, Any]) -> Conversation:
        """The conversation that `dump` gave."""
        conversation = cls()
        for message in _MESSAGES.validate_python(state["messages"]):
            conversation.append(message)
        conversation.steps = [StepRecord.model_validate(record) for record in state["steps"]]
        return conversation


def _shortened(step: Step, max_bytes: int) -> Step:
    """The step with each long text cut, so that all of it fits; whole it stands in the messages."""
    share = max_bytes // (7 * (len(step.tool_calls) + 1))  # seven texts a call
    short = step.model_dump(mode="json")
    short["text"] = shortened(step.text, share, _IN_MESSAGES)
    for call in short["tool_calls"]:
        for name in ("name", "raw_arguments", "arguments"):
            call[name] = shortened(call[name], share, _IN_MESSAGES)
        for repair in call["repairs"]:
            repair |= {name: shortened(repair[name], share // len(call["repairs"])) for name in ("before", "after")}
        for told in filter(None, (call["result"], (call["result"] or {}).get("error"))):
            told |= {name: shortened(told[name], share, _IN_MESSAGES) for name in ("text", "message") if name in told}
    return Step.model_validate(short)
