"""`run_script`: runs a script until it waits for calls or ends, and inspects the calls that it makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from pydantic import JsonValue
from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.escalate_feedback import escalate_feedback
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.answers.inspect_answer import inspect_calls_of_script
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.code_mode.open_scripts import OpenScripts
from mulligan.activities.code_mode.script_error import ScriptError, invalid_code
from mulligan.activities.code_mode.script_function import ScriptFunction
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.activities.heartbeat import count_ended_start, heartbeating, lost_starts
from mulligan.activities.run_data.query_workflow import query_this_workflow
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import cut
from mulligan.activities.tool_running.result_value import result_value
from mulligan.agent import Agent
from mulligan.errors import InvalidToolInputError, ToolCallError, ToolExecutionError, ToolTimeoutError
from mulligan.observe.tool_call_span import ToolCallSpan
from mulligan.schema.cut_text import cut_text
from mulligan.schema.python_stubs import FunctionSchema, identifier, parameters_of, stubs_of
from mulligan.tool import MAX_RESULT_CHARS
from mulligan.values import ErrorInfo, ToolCall
from mulligan.wire.agent_facts import Definition
from mulligan.wire.code_mode import (
    RUN_SCRIPT,
    SCRIPT_QUERY,
    AskedCall,
    CallResult,
    RecordedScriptCall,
    RunScript,
    ScriptFacts,
    ScriptPage,
    ScriptPageRequest,
    ScriptPart,
)
from mulligan.wire.tool_call import ToolOutcome

CODE_CHARS = 50_000
"""Characters of a script: checking the types of one takes up to half a second."""
ARGUMENTS_BYTES = 400_000
"""Characters of arguments of the calls of one part: less than those of a step (size_limits.py)."""
RESULT_SHOWN, CALLS_SHOWN = 200, 50
"""Characters of each result where a script could not go on, and how many of these."""
LOST_STARTS = 3
"""So often a part of a script may lose its worker. Then the script ends: it may be the reason."""

_ERRORS = {"invalid_code": InvalidToolInputError, "tool_timeout": ToolTimeoutError}
"""The classes of errors that policies see, by their kinds, where it is not ToolExecutionError."""


class _OtherScript(Exception):
    """Run again with the recorded results, the script has made other calls than before."""


@dataclass(frozen=True)
class RunScriptActivity:
    """The activity `run_script`."""

    services: Services
    scripts: OpenScripts = field(default_factory=OpenScripts)

    @activity.defn(name=RUN_SCRIPT)
    async def run_script(self, request: RunScript) -> ScriptPart:
        """Run a part of a script. A script that fails is a result, as the failure of a tool is.

        Raises:
            ApplicationError: this worker does not serve the agent, or shuts down.
        """
        async with heartbeating() as heartbeat:  # a query may take longer than the heartbeat timeout
            try:
                return await self._part(request, lost_starts(heartbeat))
            except BaseException:
                count_ended_start(heartbeat)
                raise

    async def _part(self, request: RunScript, lost: int) -> ScriptPart:
        """Run a part of a script. `lost`: how many workers were lost as they ran it."""
        page = None
        facts = request.facts or self.scripts.facts(_key(request))
        if facts is None:
            page = await _read_page(request)
            facts = page.facts
        agent = await served_agent(self.services, facts.where)
        if request.end is not None:
            return self._end(request, facts)
        if lost >= LOST_STARTS:
            self._forget(request)
            page = page or await _read_page(request)
            return await self._failed(request, facts, agent, _lost(page.calls))
        definition = await self.services.definitions.find(facts.definition, facts.where)
        recorded: list[RecordedScriptCall] = []
        try:
            async with self.scripts.place(_key(request)):
                session = await self._advanced(request, facts, definition, recorded, page)
        except ScriptError as error:
            return await self._failed(request, facts, agent, error)
        except _OtherScript:
            return await self._failed(request, facts, agent, _other_script(recorded))
        if session.is_over:
            session.close()
            return self._succeeded(request, facts, session)
        try:
            return await self._asked(request, facts, agent, definition, session)
        except BaseException:
            session.close()
            raise

    async def _advanced(
        self,
        request: RunScript,
        facts: ScriptFacts,
        definition: Definition,
        recorded: list[RecordedScriptCall],
        page: ScriptPage | None,
    ) -> ScriptSession:
        """The script, with all results that have come. `recorded`: filled with its calls, if it had to be run again.

        `page`: what it has done so far, if that was queried already.

        Raises:
            ScriptError, _OtherScript: it has no further part.
        """
        session = self.scripts.take(_key(request), request.delivered, request.asked)
        results = request.results
        if session is None or results is None:
            if page is None and request.code is None:
                page = await _read_page(request)
            if page is not None:
                recorded += page.calls
                every = [_result(number, page) for number in page.delivered]
                results = every[request.delivered :]
            if session is None:
                session = await self._begun(request, facts, definition, page)
        for each in results or ():
            await self._deliver(session, definition, each)
        return session

    async def _begun(
        self, request: RunScript, facts: ScriptFacts, definition: Definition, page: ScriptPage | None
    ) -> ScriptSession:
        """The script, begun here. `page`: what it has done elsewhere, which it does again with the recorded results.

        Raises:
            ScriptError, _OtherScript: it has no further part.
        """
        code = page.code if page is not None else request.code or ""
        session = await self._opened(facts, definition, code, check=page is None)
        try:
            await self.scripts.run(session, partial(session.start, _without_fence(code)))
            if page is not None:
                await self._repeat(session, request, definition, page)
        except BaseException as error:
            session.close()
            if page is not None and isinstance(error, ScriptError):
                raise _OtherScript from error
            raise
        return session

    async def _opened(self, facts: ScriptFacts, definition: Definition, code: str, *, check: bool) -> ScriptSession:
        """A session for the script. `check`: whether its code is checked, also against the functions' types."""
        if check and not code.strip():
            raise invalid_code("The script is empty.")
        if check and len(code) > CODE_CHARS:
            raise invalid_code(f"The script has {len(code):,} characters; the limit is {CODE_CHARS:,}.")
        functions = {
            identifier(each.name): ScriptFunction(
                each.name,
                names := parameters_of(each.parameters),
                takes_object=not names and bool(each.parameters.get("properties")),
            )
            for each in definition.hidden
        }
        schemas = [FunctionSchema(each.name, "", each.parameters, each.result) for each in definition.hidden]
        return await self.scripts.in_thread(
            partial(
                ScriptSession.open,
                None,
                functions=functions,
                max_calls=facts.max_calls,
                timeout=facts.timeout,
                seed=facts.digest,
                stubs=stubs_of(schemas) if check else None,
            )
        )

    async def _repeat(
        self, session: ScriptSession, request: RunScript, definition: Definition, page: ScriptPage
    ) -> None:
        """Give a script that is run again the results that it had, in the order in which it had them.

        Raises:
            _OtherScript: it has made other calls than those that are recorded.
        """
        self._compare(session, page)
        for number in page.delivered[: request.delivered]:
            try:
                await self._deliver(session, definition, _result(number, page))
            except ScriptError as error:
                raise _OtherScript from error
            self._compare(session, page)
        if len(session.calls) < request.asked:
            raise _OtherScript

    @staticmethod
    def _compare(session: ScriptSession, page: ScriptPage) -> None:
        for made, recorded in zip(session.calls, page.calls, strict=False):
            if (made.tool, made.arguments) != (recorded.name, recorded.arguments):
                raise _OtherScript

    async def _deliver(self, session: ScriptSession, definition: Definition, result: CallResult) -> None:
        try:
            tool = definition.tool(session.calls[result.n - 1].tool)
            schema = getattr(tool, "result", None)
            await self.scripts.run(session, partial(_deliver_value, session, result, schema))
        except (KeyError, IndexError) as error:
            raise _OtherScript from error

    async def _asked(
        self, request: RunScript, facts: ScriptFacts, agent: Agent, definition: Definition, session: ScriptSession
    ) -> ScriptPart:
        """The calls that the script has made since the part before, inspected; as many as fit into a result."""
        calls: list[ToolCall] = []
        size = 0
        for number, made in enumerate(session.calls[request.asked :], request.asked + 1):
            size += len(made.arguments)
            if len(calls) == facts.most or (calls and size > ARGUMENTS_BYTES):
                break
            calls.append(ToolCall(id=f"{request.call_id}.{number}", name=made.tool, arguments=made.arguments))
        inspected, usage = (
            await inspect_calls_of_script(self.services, facts.as_model_call, agent, definition, calls)
            if calls
            else ([], {})
        )
        self.scripts.keep(_key(request), session, facts)
        return ScriptPart(
            calls=[
                AskedCall(name=call.name, arguments=call.arguments, prepared=prepared) for call, prepared in inspected
            ],
            more=len(session.calls) > request.asked + len(calls),
            usage_of_repairs=dict(usage),
        )

    def _succeeded(self, request: RunScript, facts: ScriptFacts, session: ScriptSession) -> ScriptPart:
        text = "".join(session.printed)
        if session.value:
            text += ("\n" if text and not text.endswith("\n") else "") + session.value
        text = cut(text or "The script ended without printing anything.", MAX_RESULT_CHARS)
        self._span(request, facts, session.code).succeed(text)
        self.services.cache_result(facts.where, facts.call, text, None)
        return ScriptPart(outcome=ToolOutcome(text=text, untrusted=request.untrusted))

    async def _failed(self, request: RunScript, facts: ScriptFacts, agent: Agent, failed: ScriptError) -> ScriptPart:
        """Apply the policy to the script's failure, and write its span."""
        is_invalid = failed.kind == "invalid_code"
        error = _ERRORS.get(failed.kind, ToolExecutionError)(
            str(failed), detail=failed.detail, kind=failed.kind, tool_name=facts.call.name, call_id=facts.call.id
        )
        if is_invalid:
            error = cast(ToolCallError, escalate_feedback(error, facts.failures, ParsedArguments.of("{}"), None))
        span = self._span(request, facts, (request.code or "") if is_invalid else "")
        policy = policy_for(error, agent=agent, tool=None, on_invalid_tool_input=facts.on_invalid_tool_input)
        failure = await apply_policy(error, policy, self.services.runtime)
        failure.end_span(span)
        text = cut(failure.text, MAX_RESULT_CHARS)
        self.services.cache_result(facts.where, facts.call, text, failure.error)
        return ScriptPart(
            outcome=ToolOutcome(
                text=text,
                error=failure.error,
                failure=failure.failure,
                attempts=0 if is_invalid else 1,
                untrusted=request.untrusted,
            )
        )

    def _end(self, request: RunScript, facts: ScriptFacts) -> ScriptPart:
        """End a script whose run is stopped or cancelled: the model never reads its result."""
        self._forget(request)
        how = "the run was stopped" if request.end == "stopped" else "the run was cancelled"
        reason = f": {request.reason}" if request.reason else "."
        error = ToolExecutionError(
            f"The script was ended: {how}{reason}",
            kind="denied" if request.end == "stopped" else "cancelled",
            tool_name=facts.call.name,
            call_id=facts.call.id,
        )
        self._span(request, facts, "").fail_attempt(error.kind, error.message, type(error).__name__)
        return ScriptPart(
            outcome=ToolOutcome(
                text=error.message,
                error=ErrorInfo(kind=error.kind, message=error.message),
                untrusted=request.untrusted,
            )
        )

    def _forget(self, request: RunScript) -> None:
        """End the script, if it is in this worker's memory."""
        session = self.scripts.take(_key(request), request.delivered, request.asked)
        if session is not None:
            session.close()

    def _span(self, request: RunScript, facts: ScriptFacts, code: str) -> ToolCallSpan:
        arguments = {"code": code} if code else None
        return self.services.telemetry.call_span(
            facts, arguments=arguments, start=facts.started, untrusted=request.untrusted
        )


def _key(request: RunScript) -> tuple[str, ...]:
    info = activity.info()
    return info.workflow_id or "", info.workflow_run_id or "", request.conversation, request.call_id


async def _read_page(request: RunScript) -> ScriptPage:
    """What the script has done so far: all pages of the query, as one."""
    conversation, call_id = request.conversation, request.call_id
    page = await query_this_workflow(
        SCRIPT_QUERY, ScriptPageRequest(conversation=conversation, call_id=call_id), ScriptPage
    )
    while len(page.calls) < page.total:
        following = ScriptPageRequest(conversation=conversation, call_id=call_id, since=len(page.calls))
        page.calls += (await query_this_workflow(SCRIPT_QUERY, following, ScriptPage)).calls
    return page


def _result(number: int, page: ScriptPage) -> CallResult:
    """The recorded result of a call.

    Raises:
        _OtherScript: there is none.
    """
    call = page.calls[number - 1] if 1 <= number <= len(page.calls) else None
    if call is None or call.text is None:
        raise _OtherScript
    return CallResult(n=number, text=call.text, failed=call.error is not None, has_parts=call.has_parts)


def _deliver_value(session: ScriptSession, result: CallResult, schema: Any) -> None:
    text, value, failed = _value(result, schema)
    session.deliver(result.n, text, value, failed=failed)


def _value(result: CallResult, schema: Any) -> tuple[str, JsonValue, bool]:
    """What the script gets of a call: the text of an error, or a value; and whether it is an error."""
    if result.failed:
        return result.text, None, True
    if result.has_parts:
        return "", result.text, False
    try:
        return "", result_value(result.text, schema), False
    except ValueError:
        return f"Its result is no JSON, or was too large for a script ({len(result.text):,} characters).", None, True


def _without_fence(code: str) -> str:
    """The code without the fence that models like to put around it."""
    lines = code.strip().splitlines()
    is_fenced = len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if is_fenced else code


def _other_script(recorded: list[RecordedScriptCall]) -> ScriptError:
    """The script could not be continued: what the model must know is what has been done."""
    return ScriptError(
        f"The script was interrupted, and could not be continued: run again, it made other calls. Of its calls, "
        f"{len(recorded)} were made before; none of them was made again.",
        _told(recorded),
    )


def _lost(recorded: list[RecordedScriptCall]) -> ScriptError:
    """The script is not run again, as it may be the reason why its workers were lost."""
    made = f" Of its calls, {len(recorded)} were made before; none of them was made again." if recorded else ""
    return ScriptError(
        f"The script was ended: {LOST_STARTS} times, the worker that ran it died or stopped answering.{made}",
        _told(recorded) if recorded else "",
    )


def _told(recorded: list[RecordedScriptCall]) -> str:
    done = []
    for number, call in enumerate(recorded[:CALLS_SHOWN], 1):
        result = "no result yet" if call.text is None else cut_text(call.text, RESULT_SHOWN)
        failed = " failed" if call.error is not None else ""
        done.append(f"{number}. {call.name}({cut_text(call.arguments, RESULT_SHOWN)}){failed}: {result}")
    more = [f"… and {len(recorded) - CALLS_SHOWN} more"] if len(recorded) > CALLS_SHOWN else []
    return "\n".join(["These calls were made:", *done, *more])
