"""Executes the calls of the tools. A call starts a run, waits for it, and reports its events; the run goes on without it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from mulligan.run_view.run_view import RunView
from mulligan.schema.fault_text import required_form
from mulligan.serve.caller import Caller
from mulligan.serve.caller_rights import FIELDS, check_fields, unread
from mulligan.serve.mcp_api.agent_tools import (
    WAIT_SECONDS,
    AgentCall,
    AnswerQuestion,
    DecideCall,
    StartRun,
    WaitForRun,
    agent_of,
    output_schema,
    tools_of,
)
from mulligan.serve.mcp_api.person_forms import can_show_forms, forms_for, submit_forms, waiting_text
from mulligan.serve.mcp_api.progress_message import progress_message
from mulligan.serve.mcp_api.run_outcome import failure, is_ended, outcome_of, unfinished
from mulligan.serve.mcp_api.run_tasks import new_task, runs_and_caller, wants_tasks
from mulligan.serve.problems import Problem
from mulligan.serve.runs import RunInfo, Runs
from mulligan.serve.served_request import IGNORED, ServedRequest
from mulligan.serve.turn_stream import waits_for_person
from mulligan.wire.parse_update import parse_update
from mulligan.wire.run_status import is_open
from mulligan.wire.updates import Answer, Decide

QUICK_SECONDS = 2.0
"""A run that ends within this time is answered at once, also where it could be a task."""
SECONDS_TO_CLOSE = 5.0
"""How long Temporal may take to close a run after its last event."""

Result = types.CallToolResult | types.InputRequiredResult | dict[str, Any]
"""A `dict` is a task: the SDK has no class for the extension's."""
Context = ServerRequestContext[Any, Any]
Arguments = TypeVar("Arguments", bound=BaseModel)


async def call_tool(context: Context, params: types.CallToolRequestParams) -> Result:
    """Execute a call.

    Raises:
        MCPError: there is no such tool.
        Problem: the call cannot be served now.
    """
    call = _Call(*await runs_and_caller(context), context)
    try:
        match params.name:
            case "start_run":
                result = await call.start_run(call.parse(StartRun, params))
            case "wait_for_run":
                result = await call.wait_for_run(call.parse(WaitForRun, params), params)
            case "answer_question":
                result = await call.answer_question(call.parse(AnswerQuestion, params))
            case "decide_call":
                # to run a call as it is, with an edit left out, is not what was decided
                check_fields(call.caller, "Decide", {"arguments": (params.arguments or {}).get("arguments")})
                result = await call.decide_call(call.parse(DecideCall, params))
            case _:
                result = await call.run_agent(params)
    except _ArgumentsError as error:
        return failure(str(error))
    return _naming_ignored(result)


def _naming_ignored(result: Result) -> Result:
    """A result that says in its `_meta` what was ignored of the call."""
    ignored = ServedRequest.current().ignored
    if not ignored:
        return result
    if isinstance(result, dict):
        return {**result, "_meta": {**result.get("_meta", {}), IGNORED: ignored}}
    return result.model_copy(update={"meta": {**(result.meta or {}), IGNORED: ignored}})


class _ArgumentsError(Exception):
    """The arguments of a call are not what the tool takes."""


def _parse(model: type[Arguments], params: types.CallToolRequestParams, given: Mapping[str, Any]) -> Arguments:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in fault["loc"])
        known = ", ".join(model.model_fields)
        match fault["type"]:
            case "missing":
                says = "it is missing"
            case "extra_forbidden":
                says = "it is not a known argument"
            case _:
                says = required_form(fault)
        raise _ArgumentsError(f'"{name[:80]}": {says}. {params.name} takes: {known}.') from None


@dataclass
class _Call:
    """One call of a tool."""

    runs: Runs
    caller: Caller
    context: Context
    reported: int = 0
    """How many progress notifications were sent. Each has its number."""

    @property
    def can_ask(self) -> bool:
        """Whether the client shows forms. Before 2026-07-28 that needs a session, which this server does not have."""
        is_modern = self.context.protocol_version in MODERN_PROTOCOL_VERSIONS
        return is_modern and can_show_forms(self.context.session.client_capabilities)

    def parse(self, model: type[Arguments], params: types.CallToolRequestParams) -> Arguments:
        """The arguments of a call. What only others may send is left out of a customer's, and named in the result."""
        given = params.arguments or {}
        if self.caller.is_customer:
            self.runs.ignore(unread(self.caller, model.__name__, given.items()))
            given = {name: value for name, value in given.items() if name in FIELDS[model.__name__]}
        return _parse(model, params, given)

    async def run_agent(self, params: types.CallToolRequestParams) -> Result:
        """Run an agent; or continue with a run after its forms have come back."""
        agent = await self._agent(params.name)
        has_schema = output_schema(agent) is not None
        if params.request_state is not None:
            return await self._continue(params, WAIT_SECONDS, has_schema=has_schema)
        given = self.parse(AgentCall, params)
        self.runs.take_place(self.caller)
        run_id = await self._start(agent["name"], given, None)
        if wants_tasks(self.context):
            await self._follow(run_id, "", QUICK_SECONDS)
            info = await self._read(run_id)
            return outcome_of(info) if is_ended(info) else new_task(info)
        token = await self._follow(run_id, "", WAIT_SECONDS)
        return await self._answer(run_id, token, has_schema=has_schema)

    async def start_run(self, given: StartRun) -> Result:
        """Start a run, and return its id."""
        agent = await self.runs.agent(self.caller, given.agent)
        run_id = await self._start(agent["name"], given, given.run_id)
        info = await self.runs.read(self.caller, run_id)
        started = unfinished(info, f"The run has the id {run_id!r}. Call wait_for_run with it to get the answer.")
        started.structured_content = {"run_id": run_id}
        return started

    async def wait_for_run(self, given: WaitForRun, params: types.CallToolRequestParams) -> Result:
        """Wait for a run. What happened before the call is not reported again."""
        if params.request_state is not None:
            return await self._continue(params, given.seconds, has_schema=False)
        if self.can_ask and await self._waiting(await self.runs.read(self.caller, given.run_id)):
            return await self._answer(given.run_id, "", has_schema=False)
        token = await self._follow(given.run_id, "", given.seconds, only_after=datetime.now(UTC))
        return await self._answer(given.run_id, token, has_schema=False)

    async def answer_question(self, given: AnswerQuestion) -> Result:
        """Pass on a person's answer."""
        answer = parse_update(Answer, given.model_dump(exclude={"run_id"}))
        await self.runs.answer(self.caller, given.run_id, answer)
        return self._passed_on(given.run_id)

    async def decide_call(self, given: DecideCall) -> Result:
        """Pass on a person's decision."""
        decision = parse_update(Decide, given.model_dump(exclude={"run_id"}))
        await self.runs.decide(self.caller, given.run_id, decision)
        return self._passed_on(given.run_id)

    def _passed_on(self, run_id: str) -> types.CallToolResult:
        text = f"The run {run_id} has received it. Call wait_for_run to get its answer."
        return types.CallToolResult(content=[types.TextContent(text=text)])

    async def _agent(self, tool: str) -> dict[str, Any]:
        try:
            agents = await self.runs.agents(self.caller)
        except Problem as problem:
            if problem.code != "no_worker":
                raise
            agents = []  # the run begins as soon as there is a worker
        agent = agent_of(tool, agents)
        try:
            return agent or await self.runs.agent(self.caller, tool)
        except Problem as problem:
            if problem.code != "agent_not_found":
                raise
            known = ", ".join(each.name for each in tools_of(agents))
            text = f"There is no tool {tool[:80]!r}; there are: {known[:1_000]}."
            raise MCPError(types.INVALID_PARAMS, text) from None

    async def _start(self, agent: str, given: AgentCall, run_id: str | None) -> str:
        body = {"agent": agent, "prompt": given.prompt, "metadata": given.metadata}
        started = await self.runs.start(self.caller, json.dumps(body).encode(), run_id)
        return started.id

    async def _follow(self, run_id: str, since: str, seconds: float, *, only_after: datetime | None = None) -> str:
        """Report the events of a run until it ends, asks a person, or the time has passed; the newest token."""
        token, view = since, RunView(most_steps=1)
        watched = await self.runs.watch(self.caller, run_id, since)
        if watched is None:
            return token
        try:
            async with asyncio.timeout(seconds), aclosing(watched) as events:  # type: ignore[type-var]
                async for each in events:
                    token = each.token
                    changed = view.add(each.event)
                    if only_after is not None and each.event.at < only_after:
                        continue
                    for message in filter(None, (progress_message(run_id, change) for change in changed)):
                        self.reported += 1
                        await self.context.session.report_progress(self.reported, message=message)
                    if waits_for_person(each.event) and await self.runs.pending(self.caller, run_id):
                        break
        except TimeoutError:
            pass
        return token

    async def _continue(self, params: types.CallToolRequestParams, seconds: float, *, has_schema: bool) -> Result:
        """Pass the forms on to the run, and wait on."""
        run_id, since = _read_state(params.request_state or "")
        self.runs.take_place(self.caller)  # before the forms: a server without a place has not passed them on
        responses = params.input_responses or {}
        waiting = await self.runs.pending(self.caller, run_id)
        await submit_forms(self.runs, self.caller, waiting, responses)
        waiting = await self.runs.pending(self.caller, run_id)
        is_closed = bool(responses) and all(getattr(form, "action", "") == "cancel" for form in responses.values())
        if waiting:
            return await self._answer(run_id, since, has_schema=has_schema, ask=not is_closed)
        token = await self._follow(run_id, since, seconds)
        return await self._answer(run_id, token, has_schema=has_schema)

    async def _answer(self, run_id: str, token: str, *, has_schema: bool, ask: bool = True) -> Result:
        """The answer of a run that has ended; or what it waits for, or what it is doing."""
        info = await self._read(run_id)
        if is_ended(info):
            return outcome_of(info)
        waiting = await self._waiting(info)
        if waiting and ask and self.can_ask:
            forms = forms_for(waiting)
            return types.InputRequiredResult(input_requests=forms, request_state=_state(run_id, token, forms))
        if waiting:
            return unfinished(info, waiting_text(run_id, waiting), has_schema=has_schema)
        doing = (info.waiting_for or {}).get("detail") or info.status
        text = f"The run {run_id} is not finished ({doing}). Call wait_for_run with this run_id to get its answer."
        return unfinished(info, text, has_schema=has_schema)

    async def _read(self, run_id: str) -> RunInfo:
        """The run; if its last event was there already, after Temporal has closed it."""
        info = await self.runs.read(self.caller, run_id)
        if not is_ended(info) and info.progress and not is_open(info.progress["status"]):
            return await self.runs.read(self.caller, run_id, wait=SECONDS_TO_CLOSE)
        return info

    async def _waiting(self, info: RunInfo) -> list[dict[str, Any]]:
        if is_ended(info) or info.progress is None:
            return []
        return await self.runs.pending(self.caller, info.id)


def _state(run_id: str, since: str, forms: types.InputRequests) -> str:
    """A `requestState`. It differs from earlier ones, even if the run asked again before its events were read.

    Source: SEP-2322: each round of a call has a new one.
    """
    forms_digest = hashlib.sha256(json.dumps(sorted(forms)).encode()).hexdigest()[:16]
    return json.dumps({"run": run_id, "since": since, "asked": forms_digest})


def _read_state(state: str) -> tuple[str, str]:
    """The run of a `requestState`, and the position in its events. The client may have changed it: `Runs` checks both."""
    try:
        read = json.loads(state)
        run_id, since = read["run"], read["since"]
    except (ValueError, RecursionError, KeyError, TypeError):
        run_id = since = None
    if not isinstance(run_id, str) or not isinstance(since, str):
        raise MCPError(types.INVALID_PARAMS, '"requestState" is not one of this server; send it back unchanged.')
    return run_id, since
