"""Inspect a model's answer once: prepare each of its calls, and accept or reject its output.

A mistake of the model never raises here. It becomes feedback for the model, or the error that the run fails with.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from pydantic import JsonValue

from mulligan.activities.answers import feedback, size_limits
from mulligan.activities.answers.escalate_feedback import escalate_feedback, times_before
from mulligan.activities.answers.failure_policy import HandledFailure, apply_policy, policy_for
from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.kept_files import kept_files
from mulligan.activities.answers.parsed_arguments import LONG, ParsedArguments, parse_arguments
from mulligan.activities.answers.prepare_call import ValidArguments, duplicates, prepare
from mulligan.activities.answers.text_calls import text_calls_of
from mulligan.activities.answers.unique_ids import unique_ids
from mulligan.activities.answers.user_functions import UserFunctions
from mulligan.activities.answers.without_thoughts import without_thoughts
from mulligan.activities.models._hosted_work import MOST_CALLS, MOST_CITATIONS, fit_call, fit_citation
from mulligan.activities.models.fit_provider_data import fit_provider_data
from mulligan.activities.models.own_ids import kept_ids
from mulligan.activities.models.protocol import Mistake as EndpointsMistake
from mulligan.activities.models.protocol import Reply
from mulligan.activities.request_draft import draft_of
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.activities.services import Services
from mulligan.activities.tool_running.find_tool import RunTools
from mulligan.agent import Agent
from mulligan.content import media_of
from mulligan.errors import StructuredOutputError
from mulligan.observe.spans import ToolCallAttempt
from mulligan.output import TEXT, OutputType, unwrap
from mulligan.policy import MISTAKES, Mistake
from mulligan.schema.argument_digest import argument_digest
from mulligan.schema.arguments_model import JsonType
from mulligan.schema.cut_text import beginning
from mulligan.values import AssistantMessage, Message, Repair, ToolCall, Usage
from mulligan.wire.agent_facts import Definition
from mulligan.wire.model_call import (
    AcceptedOutput,
    ModelAnswer,
    ModelCall,
    PreparedCall,
    RejectedAnswer,
    spelling_of,
    write_arguments,
)
from mulligan.wire.recorded_outcome import LONG_ARGUMENTS
from mulligan.wire.shorten import json_size

_CUT_OFF = {"length": "the length limit", "content_filter": "a content filter"}
_OUTPUT_ACCEPTED = "The output is accepted."
_PREFIX = re.compile(r"\A(?:functions?|tools?|default_api)[.:/]")
"""Models write this before names, as their prompts show tools in a namespace of that name."""


@dataclass(frozen=True)
class CallFinding:
    """What history has of a call; the output, if the call is the accepted one; and the function that writes its span."""

    prepared: PreparedCall
    output: AcceptedOutput | None = None
    write_span: Callable[[], None] | None = None


@dataclass(frozen=True)
class TextFinding:
    """The output, if the text is the accepted one; or why the answer is rejected, and the function that writes its span."""

    output: AcceptedOutput | None = None
    rejected: HandledFailure | None = None
    write_span: Callable[[], None] | None = None


async def inspect_answer(
    services: Services,
    request: ModelCall,
    agent: Agent,
    definition: Definition,
    reply: Reply,
    conversation: CachedConversation,
) -> ModelAnswer:
    """Inspect a provider's reply to `conversation`, and return the answer that the workflow continues with."""
    tools = services.tools.of_run(agent, definition)
    text, calls = reply.text, list(reply.calls)
    if not calls and reply.mistake is None and (text_calls := text_calls_of(agent)) is not None:
        text, calls = await text_calls.read_calls(text, tools)
    raw_calls = calls[: size_limits.MOST_CALLS + 1]
    # After a compaction, ids of removed calls could be repeated.
    digest = request.conversation.digest if request.summarized_answers else ""
    with_ids, renamed = _renamed(unique_ids(raw_calls, conversation.call_ids, request.step, digest), tools.names)
    oversized = size_limits.oversized_calls(with_ids)
    kept, reply = _kept_text(agent, text, with_ids, reply)
    message = AssistantMessage(
        role="assistant",
        text=kept,
        tool_calls=[size_limits.fit_call(call) if n in oversized else call for n, call in enumerate(with_ids)],
        provider_data=_kept_data(reply, with_ids),
        files=await kept_files(reply.files, services.contents_of(request.where)) if reply.files else None,
    )
    inspection = _Inspection(
        services=services,
        request=request,
        agent=agent,
        tools=tools,
        functions=UserFunctions(request, agent, services),
        message=message,
        parsed=[await parse_arguments(call.arguments) for call in message.tool_calls],
        raw_calls=raw_calls,
        renamed=renamed,
        call_count=len(calls),
        are_in_text=bool(calls) and not reply.calls,
        oversized=oversized,
        finish_reason=reply.finish_reason,
        mistake=reply.mistake,
        earlier=conversation.messages,
        sent=lambda: draft_of(definition, conversation, request.features).definition,
    )
    findings = await inspection.inspect_calls()
    text_finding = await inspection.inspect_text(text)
    # Spans are written together: if the worker is lost while a second model answers, no span shows what no model read.
    for write_span in (*(finding.write_span for finding in findings), text_finding.write_span):
        if write_span is not None:
            write_span()
    return size_limits.fit_answer(_model_answer(inspection, reply, findings, text_finding))


def _kept_data(reply: Reply, calls: Sequence[ToolCall]) -> dict[str, JsonValue] | None:
    """What is kept of the provider's items, and of the ids that its endpoint has given to calls."""
    data = fit_provider_data(reply.provider_data, size_limits.PROVIDER_BYTES) or {}
    return {**data, **kept_ids(reply.ids_key, reply.calls, calls)} or None


def _kept_text(agent: Agent, text: str, calls: Sequence[ToolCall], reply: Reply) -> tuple[str, Reply]:
    """What is kept of the text; and the reply, which counts as cut off where an output is not kept as a whole."""
    if calls:
        return size_limits.fit_text(text), reply
    declared = agent.declared_output
    kept, is_cut = size_limits.fit_output(text, is_typed=declared is not None)
    if is_cut and (declared is None or declared.or_text):
        return kept, replace(reply, finish_reason="length")
    return kept, reply


async def inspect_calls_of_script(
    services: Services, request: ModelCall, agent: Agent, definition: Definition, calls: Sequence[ToolCall]
) -> tuple[list[tuple[ToolCall, PreparedCall]], Mapping[str, Usage]]:
    """Inspect calls that a script makes, as those of an answer: at most `size_limits.MOST_CALLS`, whose ids are set.

    Returns each call as it is executed, with what history has beside it; and the tokens of second models, by model.
    """
    functions, oversized = UserFunctions(request, agent, services), size_limits.oversized_calls(calls)
    fitting = [size_limits.fit_call(call) if n in oversized else call for n, call in enumerate(calls)]
    inspection = _Inspection(
        services=services,
        request=request,
        agent=agent,
        tools=services.tools.of_run(agent, definition, in_script=True),
        functions=functions,
        message=AssistantMessage(role="assistant", tool_calls=fitting),
        parsed=[await parse_arguments(call.arguments) for call in fitting],
        raw_calls=calls,
        renamed={},
        call_count=len(calls),
        are_in_text=False,
        oversized=oversized,
        finish_reason="tool_calls",
        mistake=None,
        earlier=(),
        sent=lambda: definition,
    )
    findings = await inspection.inspect_calls()
    for finding in findings:
        if finding.write_span is not None:
            finding.write_span()
    executed = [
        with_executed_arguments(call, finding.prepared, parsed)
        for call, finding, parsed in zip(fitting, findings, inspection.parsed, strict=True)
    ]
    prepared = size_limits.fit_prepared([each for _, each in executed])
    return list(zip((call for call, _ in executed), prepared, strict=True)), functions.usage_by_model


def _model_answer(
    inspection: _Inspection, reply: Reply, findings: Sequence[CallFinding], text_finding: TextFinding
) -> ModelAnswer:
    message, usage_by_model, rejected = inspection.message, inspection.functions.usage_by_model, text_finding.rejected
    outputs = [finding.output for finding in findings if finding.output is not None]
    calls, prepared = [], []
    for call, parsed, finding in zip(message.tool_calls, inspection.parsed, findings, strict=True):
        sent, settled = with_executed_arguments(call, finding.prepared, parsed)
        calls.append(sent)
        prepared.append(settled.model_copy(update={"repairs": [*inspection.renaming(call), *settled.repairs]}))
    return ModelAnswer(
        message=message.model_copy(update={"tool_calls": calls}),
        prepared=prepared,
        finish_reason=reply.finish_reason,
        usage=sum(usage_by_model.values(), reply.usage),
        output=outputs[0] if outputs else text_finding.output,
        rejected=RejectedAnswer(text=rejected.text, error=rejected.error, failure=rejected.failure)
        if rejected
        else None,
        usage_of_repairs=dict(usage_by_model),
        hosted_calls=[fit_call(call) for call in reply.hosted_calls[:MOST_CALLS]],
        citations=[fit_citation(cited, len(message.text)) for cited in reply.citations[:MOST_CITATIONS]],
        reason=beginning(reply.reason, size_limits.NAME_CHARS) or None,
        own_finish_reason=beginning(reply.own_finish_reason, size_limits.NAME_CHARS) or None,
        adapted=[beginning(word, size_limits.NAME_CHARS) for word in reply.adapted[: size_limits.MOST_WORDS]],
        context_tokens=_context_tokens(reply, usage_by_model),
    )


def _context_tokens(reply: Reply, usage_by_model: Mapping[str, Usage]) -> int | None:
    """The tokens of the newest request and its answer, where the answer's usage has others too."""
    counted = reply.last_usage or reply.usage
    return counted.total_tokens if counted.total_tokens and (reply.last_usage or usage_by_model) else None


@dataclass(frozen=True, kw_only=True)
class _Inspection:
    """One answer, and what is known of it.

    `raw_calls` are the calls as the model wrote them: those of `message` have unique ids, the tools' names, and shortened
    arguments where the arguments are oversized; `parsed` are its calls' arguments. `renamed`: the repairs of names, by the
    calls' ids. `call_count` also counts the calls beyond the limit. `are_in_text`: they were read in the text. `earlier` is
    the conversation before it. `sent` returns the definition as the request had it.
    """

    services: Services
    request: ModelCall
    agent: Agent
    tools: RunTools
    functions: UserFunctions
    message: AssistantMessage
    parsed: Sequence[ParsedArguments]
    raw_calls: Sequence[ToolCall]
    renamed: Mapping[str, Repair]
    call_count: int
    are_in_text: bool
    oversized: set[int]
    finish_reason: str
    mistake: EndpointsMistake | None
    earlier: Sequence[Message]
    sent: Callable[[], Definition]

    @cached_property
    def _hidden(self) -> set[str]:
        """The tools that were not in the request."""
        if not self.tools.definition.unseen:
            return set()
        return {*self.tools.definition.unseen} - {tool.name for tool in self.sent().tools}

    @cached_property
    def _duplicates(self) -> set[int]:
        if len({call.id for call in self.raw_calls}) == len(self.raw_calls):
            return set()
        texts = [
            call.arguments if index in self.oversized else parsed.key
            for index, (call, parsed) in enumerate(zip(self.raw_calls, self.parsed, strict=True))
        ]
        return duplicates(self.raw_calls, texts)

    @cached_property
    def _names(self) -> list[str]:
        """The names of the calls, without duplicates of a call."""
        return [call.name for index, call in enumerate(self.message.tool_calls) if index not in self._duplicates]

    def renaming(self, call: ToolCall) -> list[Repair]:
        """The repair of a call's name, if there was one."""
        return [self.renamed[call.id]] if call.id in self.renamed else []

    async def inspect_calls(self) -> list[CallFinding]:
        """Prepare each call, all of them concurrently."""
        calls = self.message.tool_calls
        if len(calls) == 1:
            findings = [await self._inspect_call(0)]
        else:
            findings = list(await asyncio.gather(*map(self._inspect_call, range(len(calls)))))
        # Unchanged arguments (None) have only the limit of the text.
        recorded = [
            None if spelling_of(call.arguments, finding.prepared.arguments) else finding.prepared.arguments
            for call, finding in zip(calls, findings, strict=True)
        ]
        for index in size_limits.oversized_arguments(recorded):
            error = feedback.too_long(calls[index], json_size(recorded[index]), size_limits.ARGUMENTS_BYTES)
            findings[index] = await self._failed_call(index, error, time.time())
        return findings

    async def _inspect_call(self, index: int) -> CallFinding:
        call, started = self.message.tool_calls[index], time.time()
        try:
            self._check_call(index, call)
            output_type = self._output_type(call.name)
            if output_type is None:
                return await self._inspect_tool_call(index, call)
            self._check_only_output(call)
            return await self._inspect_output_call(index, call, output_type, started)
        except MISTAKES as error:
            return await self._failed_call(index, error, started)

    def _check_call(self, index: int, call: ToolCall) -> None:
        """Check that the call is not a duplicate, is within the limits, is of a tool or an output, and is not cut off.

        Raises:
            InvalidToolInputError, UnknownToolError: it is not.
        """
        if index in self._duplicates:
            raise feedback.duplicate_call(call)
        # The first call beyond the limit; the others are cut off already.
        if index == size_limits.MOST_CALLS:
            raise feedback.too_many_calls(call, self.call_count, size_limits.MOST_CALLS)
        if index in self.oversized:
            raise feedback.too_long(call, len(self.raw_calls[index].arguments), size_limits.ARGUMENTS_BYTES)
        if self.mistake is not None:
            raise feedback.refused_by_endpoint(call, self.mistake)
        if self._output_type(call.name) is None and self.tools.find(call.name) is None:
            if self.tools.is_gone(call.name):
                raise feedback.tool_gone(call)
            names, hidden = self.tools.names, self._hidden
            available = [name for name in names if name not in hidden]
            raise feedback.unknown_tool(call, available, [name for name in names if name in hidden])
        if self.finish_reason in _CUT_OFF and self._may_be_unfinished(index):
            raise feedback.truncated_call(call, _CUT_OFF[self.finish_reason])

    def _may_be_unfinished(self, index: int) -> bool:
        """Whether a call of an answer that was cut off may not be all that the model meant to write of it.

        In a text it may be an example, or only thought of: what would have followed it is unknown. Any other call is whole
        if its object is.
        """
        is_last = index == len(self.message.tool_calls) - 1
        return self.are_in_text or (is_last and not self.parsed[index].is_whole_object)

    def _check_only_output(self, call: ToolCall) -> None:
        """Check that an output is the only call of the answer.

        Raises:
            StructuredOutputError: there is another output, or another call.
        """
        outputs = [name for name in self._names if self._output_type(name) is not None]
        if len(outputs) > 1:
            raise feedback.multiple_outputs(outputs)
        if len(self._names) > 1:
            raise feedback.premature_output(call.name)

    async def _inspect_tool_call(self, index: int, call: ToolCall) -> CallFinding:
        tool = self.tools.find(call.name)
        assert tool is not None
        fixers = [("fix", tool.fix), ("repair", self.agent.repair)]
        target = Target(tool.name, tool.arguments, is_hidden=tool.traits.is_unseen and tool.name in self._hidden)
        run_fixer = self.functions.fixer_of(call)
        valid = await prepare(call, self.parsed[index], target, fixers, run_fixer)
        await self.functions.check_guard(call, valid.arguments)
        prepared = _valid_call(valid, **await self.functions.check_approval(tool, call, valid.arguments))
        # Where perhaps nobody is asked, `record_decision` writes the request's span.
        if prepared.waits_for is None or tool.traits.may_be_settled:
            return CallFinding(prepared)
        kind, request, telemetry = prepared.waits_for, self.request, self.services.telemetry
        record = partial(telemetry.record_request, request.where, call, step=request.step, kind=kind, at=time.time())
        return CallFinding(prepared, write_span=record)

    async def _inspect_output_call(
        self, index: int, call: ToolCall, output_type: OutputType, started: float
    ) -> CallFinding:
        """Accept the output that a call contains. No activity runs for such a call, so its span is made here."""
        valid = await self._prepare_output(call, self.parsed[index], output_type)
        content = self.agent.declared_output.tool_message_content if self.agent.declared_output else None
        text = _OUTPUT_ACCEPTED if content is None else content
        repaired_by = [repair.by for repair in (*self.renaming(call), *valid.repairs)]
        attempt = ToolCallAttempt(call=call, step=self.request.step, attempt=1, repaired_by=repaired_by)
        telemetry = self.services.telemetry
        span = telemetry.tool_call(self.request.where, attempt, arguments=valid.arguments, start=started)
        span.set_end_time()
        output = _accepted(output_type, valid.arguments, is_verbatim=True, call=index)
        return CallFinding(_valid_call(valid, text=text), output, partial(span.succeed, text))

    async def inspect_text(self, text: str) -> TextFinding:
        """Accept the text as the output, if the output is expected in the text; or reject the answer."""
        started = time.time()
        try:
            return TextFinding(output=await self._output_in_text(text))
        except MISTAKES as error:
            # The mistake is in no call: the span has the name of the output, and the model gets a user message.
            name = self.agent.declared_output.whole.name if self.agent.declared_output else "answer"
            call = ToolCall(id=f"answer_{self.request.step}", name=name, arguments=self.message.text)
            failure, write_span = await self._handle_failure(call, error, started)
            return TextFinding(rejected=failure, write_span=write_span)

    async def _output_in_text(self, text: str) -> AcceptedOutput | None:
        declared, calls = self.agent.declared_output, self.message.tool_calls
        if self.mistake is not None and not calls:
            raise feedback.refused_by_endpoint(ToolCall(id="", name="", arguments=""), self.mistake)
        is_final = not calls and self.finish_reason not in (*_CUT_OFF, "refusal")
        if declared is None:
            is_empty = not (text.strip() or media_of(self.message.files))
            if is_final and is_empty and not _last_answer_was_empty(self.earlier):
                raise feedback.empty_answer()
            return None
        if self.tools.output_by == "provider":
            said = await _without_thoughts(text)
            if is_final:
                return await self._written_output(said, declared.whole)
            await self._check_no_output_beside_calls(said, declared.whole)
        elif is_final and declared.or_text and text.strip():
            return AcceptedOutput(type=TEXT, value=self.message.text)
        elif is_final:
            raise feedback.missing_output(
                [Target(each.name, each, is_output=True) for each in declared.types], text, by_call=True
            )
        return None

    async def _written_output(self, text: str, output_type: OutputType) -> AcceptedOutput:
        if not text.strip() or not _looks_like_json(text):
            raise feedback.missing_output([Target(output_type.name, output_type, is_output=True)], text, by_call=False)
        if json_size(text) > size_limits.ARGUMENTS_BYTES:
            raise feedback.too_long_output(output_type.name, len(text), size_limits.ARGUMENTS_BYTES)
        call = ToolCall(id="", name=output_type.name, arguments=text)
        parsed = await parse_arguments(text)
        valid = await self._prepare_output(call, parsed, output_type)
        is_verbatim = parsed.is_legal and valid.arguments is parsed.value and self.message.text == text
        return _accepted(output_type, valid.arguments, is_verbatim=is_verbatim)

    async def _check_no_output_beside_calls(self, text: str, output_type: OutputType) -> None:
        """Check that a text beside calls is not the output already: any other text there is allowed.

        Raises:
            StructuredOutputValidationError: it is.
        """
        if not self.message.tool_calls or not text.strip():
            return
        call = ToolCall(id="", name=output_type.name, arguments=text)
        try:
            await prepare(call, await parse_arguments(text), Target(output_type.name, output_type, is_output=True))
        except MISTAKES:
            return
        raise feedback.premature_output(output_type.name)

    async def _prepare_output(self, call: ToolCall, parsed: ParsedArguments, output_type: OutputType) -> ValidArguments:
        target = Target(output_type.name, output_type, is_output=True)
        valid = await prepare(call, parsed, target, [("repair", self.agent.repair)], self.functions.fixer_of(call))
        if valid.repairs and (length := json_size(valid.arguments)) > size_limits.ARGUMENTS_BYTES:
            raise feedback.too_long_output(output_type.name, length, size_limits.ARGUMENTS_BYTES)
        return valid

    def _output_type(self, name: str) -> OutputType | None:
        """The type of output that a call of this name contains; None for the call of a tool."""
        declared = self.agent.declared_output
        return declared.type_named(name) if declared and self.tools.output_by == "tool" else None

    def _accepts(self, call: ToolCall) -> JsonType | None:
        """The type of a call's arguments; None if there is neither a tool nor an output of its name."""
        tool, output_type = self.tools.find(call.name), self._output_type(call.name)
        return output_type if output_type is not None else tool.arguments if tool is not None else None

    async def _failed_call(self, index: int, error: Mistake, started: float) -> CallFinding:
        call, parsed = self.message.tool_calls[index], self.parsed[index]
        feedback.quote_unreadable(error, parsed)
        error = escalate_feedback(
            error, times_before(self.earlier, call, parsed, error.kind), parsed, self._accepts(call)
        )
        handled, write_span = await self._handle_failure(call, error, started)
        prepared = PreparedCall(text=handled.text, error=handled.error, failure=handled.failure, key=parsed.key)
        return CallFinding(prepared, write_span=write_span)

    async def _handle_failure(
        self, call: ToolCall, error: Mistake, started: float
    ) -> tuple[HandledFailure, Callable[[], None]]:
        """Apply the policy to a mistake, and start its span; returns the function that writes the span."""
        tool = self.tools.find(call.name)
        is_output_error = isinstance(error, StructuredOutputError)
        if isinstance(error, StructuredOutputError):
            error.model_message = self.message.model_dump(mode="json")
        server = tool.mcp_server if tool else None
        repaired_by = [repair.by for repair in self.renaming(call)]
        attempt = ToolCallAttempt(
            call=call, step=self.request.step, attempt=1, mcp_server=server, repaired_by=repaired_by
        )
        is_known = self._accepts(call) is not None or is_output_error
        span = self.services.telemetry.tool_call(self.request.where, attempt, start=started, is_known=is_known)
        policy = policy_for(
            error, agent=self.agent, tool=tool, on_invalid_tool_input=self.request.on_invalid_tool_input
        )
        failure = await apply_policy(error, policy, self.services.runtime)
        span.set_end_time()
        return failure, partial(failure.end_span, span)


def _valid_call(valid: ValidArguments, **state: Any) -> PreparedCall:
    repairs = size_limits.fit_repairs(valid.repairs)
    return PreparedCall(arguments=valid.arguments, digest=valid.digest, repairs=repairs, **state)


def with_executed_arguments(
    call: ToolCall, prepared: PreparedCall, parsed: ParsedArguments
) -> tuple[ToolCall, PreparedCall]:
    """The call as the model reads it from now on, with the arguments after repairs; and what history has beside it.

    A call that needed no repair stays as the model wrote it: that is also what its provider has in its cache.
    """
    if prepared.arguments is None:
        return call, prepared
    is_unchanged = parsed.is_legal and not prepared.repairs
    text = call.arguments if is_unchanged else write_arguments(prepared.arguments)
    if prepared.digest is None and len(text) > LONG_ARGUMENTS:
        prepared = prepared.model_copy(update={"digest": argument_digest(prepared.arguments)})
    if is_unchanged:
        return call, prepared
    executed = ToolCall(id=call.id, name=call.name, arguments=text)
    return executed, prepared.model_copy(update={"raw": call.arguments})


def _renamed(calls: Sequence[ToolCall], names: Sequence[str]) -> tuple[list[ToolCall], dict[str, Repair]]:
    """The calls with the names of the tools that they mean, and the repairs of these names, by the calls' ids."""
    meant = meant_names((call.name for call in calls), names)
    repairs = {
        call.id: Repair(by="name", before=call.name, after=meant[call.name]) for call in calls if call.name in meant
    }
    return [call.model_copy(update={"name": meant.get(call.name, call.name)}) for call in calls], repairs


def meant_names(written: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """Return the tools that a model means, by the names that it spells differently.

    A name means the only tool from which it differs in upper and lower case, in underscores and hyphens, or in a prefix such
    as `functions.`, and in nothing else. Not in spaces: titles and menus are written so.
    """
    near: dict[str, list[str]] = {}
    for name in names:
        near.setdefault(_letters(name), []).append(name)
    return {name: tools[0] for name in written if name not in names and len(tools := near.get(_letters(name), [])) == 1}


def _letters(name: str) -> str:
    return re.sub(r"[_-]", "", _PREFIX.sub("", name)).lower() or name


def _accepted(
    output_type: OutputType, arguments: JsonValue, *, is_verbatim: bool, call: int | None = None
) -> AcceptedOutput:
    is_verbatim = is_verbatim and not output_type.is_wrapped
    value = None if is_verbatim else unwrap(output_type, arguments)
    return AcceptedOutput(type=output_type.name, call=call, is_verbatim=is_verbatim, value=value)


async def _without_thoughts(text: str) -> str:
    """What an answer says. A text without thoughts stays as it is."""
    said = await asyncio.to_thread(without_thoughts, text) if len(text) > LONG else without_thoughts(text)
    return text if said is text else said.strip()


def _looks_like_json(text: str) -> bool:
    """Whether the text is an attempt at the output, and not prose."""
    begin = text.lstrip(" \t\r\n\ufeff`")
    return "{" in text and (begin.startswith(("{", "[", '"', "json")) or "```" in text)


def _last_answer_was_empty(messages: Sequence[Message]) -> bool:
    """Whether the model's last answer was empty too. It got feedback on that, so a second empty answer is accepted."""
    last = next((message for message in reversed(messages) if isinstance(message, AssistantMessage)), None)
    return last is not None and not (last.text.strip() or last.tool_calls or last.files)
