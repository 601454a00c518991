"""Look at what a model said, once: at each of its calls, and at its output. Nothing that it says makes this raise."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import JsonValue

from mulligan.activities.answers import feedback
from mulligan.activities.answers import size_limits as fit
from mulligan.activities.answers.calls_in_text import find_calls
from mulligan.activities.answers.consult import Consultation
from mulligan.activities.answers.escalate_feedback import escalate_feedback, times_before
from mulligan.activities.answers.failure_policy import Told, nearest, settle
from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.prepare_call import Prepared, duplicates, prepare
from mulligan.activities.answers.unique_call_ids import with_unique_ids
from mulligan.activities.models.protocol import Reply
from mulligan.activities.services import Services
from mulligan.activities.tool_running.find_tool import RunTools
from mulligan.agent import Agent
from mulligan.errors import StructuredOutputError
from mulligan.observe.spans import ToolCallAttempt
from mulligan.output import OutputType, unwrapped
from mulligan.policy import MISTAKES, Mistake
from mulligan.values import AssistantMessage, Message, ToolCall
from mulligan.wire.agent_facts import Definition
from mulligan.wire.model_call import AcceptedOutput, ModelAnswer, ModelCall, PreparedCall, RejectedAnswer
from mulligan.wire.shorten import size

_CUT_OFF = {"length": "the length limit", "content_filter": "a content filter"}
_OUTPUT_TAKEN = "The output is taken."


@dataclass(frozen=True)
class AnswerInspector:
    """What it takes to look at answers: one for a worker."""

    services: Services

    async def take(
        self, order: ModelCall, agent: Agent, pinned: Definition, reply: Reply, before: Sequence[Message],
        used_ids: set[str],
    ) -> ModelAnswer:  # fmt: skip
        """The answer as the workflow goes on with it. `before` is the conversation that it answers."""
        text, calls, tools = reply.text, list(reply.calls), self.services.tools.of_run(agent, pinned)
        if agent.calls_in_text and not calls:
            # A text of a megabyte takes seconds to read: not on the worker's event loop.
            text, calls = await asyncio.to_thread(find_calls, text, tools.names)
        count = len(calls)
        calls = calls[: fit.MOST_CALLS + 1]
        own = with_unique_ids(calls, used_ids, order.step, order.whole.digest if order.summed_up else "")
        long = fit.too_long(own)
        message = AssistantMessage(
            role="assistant",
            text=fit.fit_text(text),
            tool_calls=[fit.fit_call(call) if n in long else call for n, call in enumerate(own)],
            provider_data=fit.fit_provider_data(reply),
        )
        consultation = Consultation(order, agent, self.services)
        taking = _Inspection(self, order, agent, tools, message, reply.finish_reason, before, consultation)
        prepared = await taking.look_at_calls(calls, long, count)
        rejected = await taking.look_at_text(text)
        # All of them now: an attempt that is lost while a second model thinks has told the model of nothing.
        for close in taking.closings:
            close()
        return fit.fit_answer(
            ModelAnswer(
                message=message,
                prepared=prepared,
                finish_reason=reply.finish_reason,
                usage=sum(consultation.spent.values(), reply.usage),
                output=taking.output,
                rejected=rejected,
                others=consultation.spent,
            )
        )


@dataclass
class _Inspection:
    """One answer being looked at."""

    by: AnswerInspector
    order: ModelCall
    agent: Agent
    tools: RunTools
    message: AssistantMessage
    finish_reason: str
    before: Sequence[Message]
    consultation: Consultation
    output: AcceptedOutput | None = None
    closings: list[Callable[[], None]] = field(default_factory=list)
    """Of the spans."""

    async def look_at_calls(self, written: Sequence[ToolCall], long: set[int], count: int) -> list[PreparedCall]:
        """Prepare each call, side by side; what is wrong with one is told to the model, or fails the run."""
        calls = self.message.tool_calls
        twice = duplicates(written)
        names = [call.name for index, call in enumerate(calls) if index not in twice]
        outputs = [name for name in names if self._output_tool(name) is not None]

        async def look(index: int, call: ToolCall) -> PreparedCall:
            started = time.time()
            try:
                if index in twice:
                    raise feedback.duplicate_call(call)
                if index == fit.MOST_CALLS:
                    raise feedback.too_many_calls(call, count, fit.MOST_CALLS)
                if index in long:
                    raise feedback.too_long(call, len(written[index].arguments), fit.ARGUMENTS_BYTES)
                is_last = index == len(calls) - 1
                if is_last and self.finish_reason in _CUT_OFF and not _is_whole(call.arguments):
                    raise feedback.truncated_call(call, _CUT_OFF[self.finish_reason])
                kind = self._output_tool(call.name)
                if kind is None:
                    return await self._tool_call(call)
                if len(outputs) > 1:
                    raise feedback.multiple_outputs(outputs)
                if len(names) > 1:
                    raise feedback.premature_output(call.name)
                return await self._output_call(index, call, kind, started)
            except MISTAKES as error:
                told = await self._tell(call, error, started)
                return PreparedCall(text=told.text, error=told.error, failure=told.failure)

        if len(calls) == 1:
            prepared = [await look(0, calls[0])]
        else:
            prepared = list(await asyncio.gather(*(look(index, call) for index, call in enumerate(calls))))
        for index in fit.repaired_too_long(prepared):
            error = feedback.too_long(calls[index], size(prepared[index].arguments), fit.ARGUMENTS_BYTES)
            told = await self._tell(calls[index], error, time.time())
            prepared[index] = PreparedCall(text=told.text, error=told.error, failure=told.failure)
        return prepared

    async def look_at_text(self, text: str) -> RejectedAnswer | None:
        """Take the text as the output, where that is asked for; or say why the answer is not taken."""
        started = time.time()
        try:
            await self._look_at_text(text)
        except MISTAKES as error:
            # No call is to blame: its span is named after the output, and the model is told by a user's message.
            name = self.agent.declared_output.whole.name if self.agent.declared_output else "answer"
            call = ToolCall(id=f"answer_{self.order.step}", name=name, arguments=self.message.text)
            told = await self._tell(call, error, started)
            return RejectedAnswer(text=told.text, error=told.error, failure=told.failure)
        return None

    async def _look_at_text(self, text: str) -> None:
        answers, calls = self.agent.declared_output, self.message.tool_calls
        is_final = not calls and self.finish_reason not in (*_CUT_OFF, "refusal")
        if answers is None:
            if is_final and not text.strip() and not _said_nothing(self.before):
                raise feedback.empty_answer()
        elif self.tools.output_by == "provider":
            await self._written_output(text, answers.whole, is_final=is_final)
        elif is_final:
            raise feedback.missing_output([Target(each.name, each, True) for each in answers.types], by_call=True)

    async def _tool_call(self, call: ToolCall) -> PreparedCall:
        tool = self.tools.find(call.name)
        if tool is None:
            raise feedback.unknown_tool(call, self.tools.names)
        fixers = [("fix", tool.fix), ("repair", self.agent.repair)]
        done = await prepare(call, Target(tool.name, tool.arguments), fixers, self.consultation.about(call))
        await self.consultation.guard(call, done.arguments)
        prepared = _prepared(call, done)
        prepared.waits = await self.consultation.person(tool, call, done.arguments)
        if prepared.waits is not None:
            asked = partial(
                self.by.services.telemetry.record_request,
                self.order.where,
                call,
                step=self.order.step,
                kind=prepared.waits,
            )
            self.closings.append(partial(asked, at=time.time()))
        return prepared

    async def _output_call(self, index: int, call: ToolCall, kind: OutputType, started: float) -> PreparedCall:
        """The output by a call: it is settled here, no activity runs for it."""
        done = await self._prepare_output(call, kind)
        prepared = _prepared(call, done)
        self._take(kind, done.arguments, as_said=prepared.arguments is None, call=index)
        content = self.agent.declared_output.tool_message_content if self.agent.declared_output else None
        prepared.text = _OUTPUT_TAKEN if content is None else content
        repaired_by = [repair.by for repair in done.repairs]
        attempt = ToolCallAttempt(call=call, step=self.order.step, attempt=1, repaired_by=repaired_by)
        telemetry = self.by.services.telemetry
        span = telemetry.tool_call(self.order.where, attempt, arguments=done.arguments, start=started)
        span.set_end_time()
        self.closings.append(partial(span.succeed, prepared.text))
        return prepared

    async def _written_output(self, text: str, kind: OutputType, *, is_final: bool) -> None:
        """The output by the provider's own means: the text. Beside calls it is talk, unless it is the output already."""
        call = ToolCall(id="", name=kind.name, arguments=text)
        if not is_final:
            if self.message.tool_calls and text.strip() and await self._would_be_taken(call, kind):
                raise feedback.premature_output(kind.name)
            return
        if not text.strip() or not _looks_like_json(text):
            raise feedback.missing_output([Target(kind.name, kind, True)], by_call=False)
        if size(text) > fit.ARGUMENTS_BYTES:
            raise feedback.too_long_output(kind.name, len(text), fit.ARGUMENTS_BYTES)
        done = await self._prepare_output(call, kind)
        self._take(kind, done.arguments, as_said=not done.repairs and _says_the_same(self.message.text, done.arguments))

    async def _prepare_output(self, call: ToolCall, kind: OutputType) -> Prepared:
        target = Target(kind.name, kind, True)
        done = await prepare(call, target, [("repair", self.agent.repair)], self.consultation.about(call))
        if done.repairs and (length := size(done.arguments)) > fit.ARGUMENTS_BYTES:
            raise feedback.too_long_output(kind.name, length, fit.ARGUMENTS_BYTES)
        return done

    async def _would_be_taken(self, call: ToolCall, kind: OutputType) -> bool:
        try:
            await prepare(call, Target(kind.name, kind, True), (), self.consultation.about(call))
        except MISTAKES:
            return False
        return True

    def _take(self, kind: OutputType, arguments: JsonValue, *, as_said: bool, call: int | None = None) -> None:
        as_said = as_said and not kind.is_wrapped
        value = None if as_said else unwrapped(kind, arguments)
        self.output = AcceptedOutput(type=kind.name, call=call, as_said=as_said, value=value)

    def _output_tool(self, name: str) -> OutputType | None:
        answers = self.agent.declared_output
        return answers.type_named(name) if answers and self.tools.output_by == "tool" else None

    async def _tell(self, call: ToolCall, error: Mistake, started: float) -> Told:
        """Put it on the trace, and find the text for it by the nearest policy."""
        tool, answers = self.tools.find(call.name), self.agent.declared_output
        kind = self._output_tool(call.name)
        accepts = kind if kind is not None else tool.arguments if tool is not None else None
        error = escalate_feedback(error, times_before(self.before, call, error.kind), call, accepts)
        own = tool.handle_errors if tool is not None else None
        if isinstance(error, StructuredOutputError):
            error.model_message = self.message.model_dump(mode="json")
            own = answers.handle_errors if answers is not None else None
        policy = nearest(error, own, self.agent.handle_errors, override=self.order.on_invalid_tool_input)
        is_known = accepts is not None or isinstance(error, StructuredOutputError)
        server = tool.mcp_server if tool else None
        attempt = ToolCallAttempt(call=call, step=self.order.step, attempt=1, mcp_server=server)
        span = self.by.services.telemetry.tool_call(self.order.where, attempt, start=started, is_known=is_known)
        told = await settle(error, policy, self.by.services.runtime)
        span.set_end_time()
        self.closings.append(partial(told.close, span))
        return told


def _prepared(call: ToolCall, done: Prepared) -> PreparedCall:
    as_written = not done.repairs and _says_the_same(call.arguments, done.arguments)
    return PreparedCall(arguments=None if as_written else done.arguments, repairs=fit.fit_repairs(done.repairs))


def _is_whole(arguments: str) -> bool:
    """Whether a JSON object has ended: then the cut came after it."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _says_the_same(raw: str, arguments: object) -> bool:
    try:
        return json.dumps(json.loads(raw), sort_keys=True) == json.dumps(arguments, sort_keys=True)
    except (ValueError, RecursionError):
        return False


def _looks_like_json(text: str) -> bool:
    """Whether it is an attempt at the output, and not prose."""
    begin = text.lstrip(" \t\r\n\ufeff`")
    return "{" in text and (begin.startswith(("{", "[", '"', "json")) or "```" in text)


def _said_nothing(messages: Sequence[Message]) -> bool:
    """Whether the model's newest message was empty too. It was told so, and says nothing again: that is its answer."""
    said = next((message for message in reversed(messages) if isinstance(message, AssistantMessage)), None)
    return said is not None and not said.text.strip() and not said.tool_calls
