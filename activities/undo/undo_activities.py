"""`plan_undo` reads what a run has executed; `undo_call` calls the `undo` of one call's tool."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.heartbeat import Heartbeat, heartbeating
from mulligan.activities.services import Services
from mulligan.activities.tool_running.result_schema import result_schema
from mulligan.activities.tool_running.result_value import result_value
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.agent import Agent
from mulligan.client.origins.run_state import NoWorkerError, ResumeError
from mulligan.client.undo.undo import calls_to_undo, check_not_gone_on, read_executed
from mulligan.features.undo import UndoOption
from mulligan.schema.cut_text import cut_text
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.json_schema import schema_validator
from mulligan.tool import Tool, ToolError
from mulligan.values import ErrorInfo, ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.undo import (
    PLAN_UNDO,
    UNDO_CALL,
    CallToUndo,
    CallValues,
    ExecutedPage,
    ExecutedRequest,
    UndoCall,
    UndoList,
    UndoOutcome,
    UndoRun,
)

READ_SECONDS = 60.0
"""How long an undo waits for its call's arguments and result. The workflow adds this to the time of the undo."""
SECONDS_BETWEEN_READS = 1.0
REASON_CHARS = 400
"""Characters of the reason why a call is not undone: the list of an undo has one for each call."""
PAGES = 8
"""Pages of calls that a worker keeps, of half a megabyte each: the undos of a run come in the order of its calls."""


class _NotUndone(Exception):
    """The call is not undone; the text says why. `is_final`: another attempt would say the same."""

    def __init__(self, kind: str, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.kind, self.is_final = kind, is_final


@dataclass(frozen=True)
class UndoActivities:
    """The activities `plan_undo` and `undo_call`."""

    services: Services
    _pages: OrderedDict[tuple[str, str], ExecutedPage] = field(default_factory=OrderedDict)
    """The page that was read last, by the run."""

    @activity.defn(name=PLAN_UNDO)
    async def plan_undo(self, request: UndoRun) -> UndoList:
        """The calls that the run and its sub-agents' runs have executed, with what earlier undos have made of them.

        Raises:
            ApplicationError: they cannot be read, or another run goes on from the run. It is tried again if no worker
                answered.
        """
        async with heartbeating():
            try:
                await check_not_gone_on(activity.client(), request)
                return UndoList(calls=await calls_to_undo(activity.client(), request))
            except ResumeError as error:
                is_final = not isinstance(error, NoWorkerError)
                raise ApplicationError(str(error), type=type(error).__name__, non_retryable=is_final) from None

    @activity.defn(name=UNDO_CALL)
    async def undo_call(self, request: UndoCall) -> UndoOutcome:
        """Call the tool's `undo`.

        Raises:
            ApplicationError: this attempt failed, and another one follows; or this worker does not serve the agent.
        """
        call, attempt = request.call, activity.info().attempt
        async with heartbeating() as heartbeat:
            try:
                page = await self._page_with(call)
                assert page.where is not None
                where = page.where.model_copy(update={"agent": call.agent})
                values = next(each for each in page.values if each.offset == call.offset)
                agent, tool = await self._find(where, call, has_own_queue=request.has_own_queue)
                await self._undo(call, agent, tool, where, page.metadata, values, heartbeat)
            except _NotUndone as error:
                message = cut_text(str(error), REASON_CHARS)
                if not error.is_final and call.schedule is not None and attempt < call.schedule.attempts:
                    raise ApplicationError(message, type=error.kind) from None
                return UndoOutcome(error=ErrorInfo(kind=error.kind, message=message))
        return UndoOutcome()

    async def _page_with(self, call: CallToUndo) -> ExecutedPage:
        """The page of executed calls that has a call, from this worker's memory if it is there."""
        key = call.run, call.run_id
        page = self._pages.get(key)
        if page is None or all(each.offset != call.offset for each in page.values):
            page = await self._read(call)
            self._pages[key] = page
        self._pages.move_to_end(key)
        while len(self._pages) > PAGES:
            self._pages.popitem(last=False)
        return page

    async def _read(self, call: CallToUndo) -> ExecutedPage:
        """Ask the run for the call and those before it, until a worker answers.

        Raises:
            _NotUndone: the run cannot be read.
        """
        request = ExecutedRequest(before=call.offset + 1, values=True)
        try:
            async with asyncio.timeout(READ_SECONDS):
                while True:
                    try:
                        page = await read_executed(activity.client(), call.run, call.run_id, request)
                        break
                    except NoWorkerError:
                        await asyncio.sleep(SECONDS_BETWEEN_READS)
        except TimeoutError:
            raise _NotUndone("no_worker", "No worker has said what the call was; it was not undone.") from None
        except ResumeError as error:
            raise _NotUndone("unreadable", f"It was not undone: {error}") from None
        if page.where is None or all(each.offset != call.offset for each in page.values):
            raise _NotUndone("unreadable", "Its run does not have the call any more; it was not undone.")
        return page

    async def _find(self, where: RunContext, call: CallToUndo, *, has_own_queue: bool) -> tuple[Agent | None, Tool]:
        """The agent, if this worker serves it, and the call's tool, which has an `undo`.

        Raises:
            _NotUndone: there is none.
            ApplicationError: this worker does not serve the agent.
        """
        services = self.services
        agent = await services.agents.find(where)
        tool = services.tools.find(agent, call.name)
        if agent is None and tool is None and not has_own_queue:
            await served_agent(services, where)
        if tool is None:
            raise _NotUndone(
                "tool_gone",
                f"There is no tool `{call.name}` any more; it was not undone. Serve it again, and undo again.",
            )
        if tool.option(UndoOption).undo is None:
            raise _NotUndone("tool_gone", f"The tool `{call.name}` has no undo any more; it was not undone.")
        return agent, tool

    async def _undo(
        self,
        call: CallToUndo,
        agent: Agent | None,
        tool: Tool,
        where: RunContext,
        metadata: dict[str, str],
        values: CallValues,
        heartbeat: Heartbeat,
    ) -> None:
        """Call the tool's `undo`.

        Raises:
            _NotUndone: it was not called, or failed.
        """
        services, info = self.services, activity.info()
        undo = tool.option(UndoOption).undo
        assert undo is not None
        result = await asyncio.to_thread(_checked_result, tool, values)
        made = ToolCall(id=call.call_id, name=call.name, arguments="")
        context = tool_context(
            where,
            made,
            step=call.step,
            digest=f"undo.{call.offset}.{values.digest}",  # its key is another one than the call's
            metadata=metadata,
            resources=services.resources.of_agent(agent.name, tool.name)
            if agent
            else services.resources.of_tool(tool.name),
            attempt=info.attempt,
            workflow_id=call.run,
            heartbeat=heartbeat.send_details,
        )
        number = int((info.workflow_id or "0").rpartition("-")[2])
        limit = tool.timeout.total_seconds()
        with services.telemetry.undo(where, made, step=call.step, attempt=info.attempt, number=number):
            try:
                await services.runtime.run(undo, (values.arguments, result, context), limit=limit, read=lambda _: None)
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                raise _failed(call, error) from error


def _failed(call: CallToUndo, error: BaseException) -> _NotUndone:
    """Why an `undo` that was called has failed."""
    match error:
        case TookTooLong():
            text = (
                f"The undo of `{call.name}` did not end within {error.limit:g} s. It may or may not have done its work."
            )
            return _NotUndone("tool_timeout", text, is_final=False)
        case ToolError():
            return _NotUndone("tool_error", error_text(error), is_final=False)
    reason = f": {text}" if (text := error_text(error)) else ""
    return _NotUndone("tool_exception", f"The undo of `{call.name}` raised {type_name(error)}{reason}", is_final=False)


def _checked_result(tool: Tool, values: CallValues) -> JsonValue:
    """The result of the call as its tool's `undo` is given it; None: it has none.

    Raises:
        _NotUndone: arguments or result are not what the tool, as it is now, takes and returns.
    """
    name = tool.name
    if values.too_large:
        raise _NotUndone("unreadable", f"The arguments and the result of `{name}` are too large; it was not undone.")
    try:
        tool.arguments.validate(values.arguments)
    except BaseException as error:  # noqa: BLE001 - validators are users' code
        raise _NotUndone(
            "invalid_arguments",
            f"The arguments are not those that `{name}` takes now ({type_name(error)}); it was not undone.",
        ) from None
    if values.is_cut:
        raise _NotUndone(
            "invalid_result",
            f"Only the beginning of the result of `{name}` was recorded (max_result_chars); it was not undone.",
        )
    if values.text is None or values.has_parts:
        return values.text
    schema = result_schema(tool)
    try:
        result = result_value(values.text, schema)
    except ValueError:
        raise _NotUndone(
            "invalid_result",
            f"The recorded result of `{name}` is no JSON; it was not undone.",
        ) from None
    if schema is not None and (fault := next(schema_validator(schema).iter_errors(result), None)) is not None:
        raise _NotUndone(
            "invalid_result",
            f"The recorded result is not what `{name}` returns now (at {fault.json_path}); it was not undone.",
        )
    return result
