"""What every protocol does with runs: start, read, watch, and reach them. It decides what a caller may do.

Each method takes the `Caller` of the request (`caller_of(request)`), and raises `Problem`, or an exception that
`problem_of` makes one of. Nothing here is kept between requests: Temporal has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from mulligan.client.callback_tokens import callback_tokens
from mulligan.client.event_feed import EventFeeds
from mulligan.client.event_position import EventTokenError, StreamPosition
from mulligan.client.find_runs import CursorError, RunPage, RunQuery, StatusError, describe_run, find_runs, memo_of
from mulligan.client.follow_events import read_event_page
from mulligan.client.origins.branch_run import branch_run
from mulligan.client.origins.fork_run import parse_fork, start_fork
from mulligan.client.origins.resume_run import AlreadyResumedError, continue_run
from mulligan.client.origins.run_state import ResumeError
from mulligan.client.read_agents import RECENT_SECONDS, AgentReader, unknown_agent
from mulligan.client.read_run import NO_WORKER_STATUSES, query_run, wait_for_end
from mulligan.client.send_update import RunEndedError, send_update
from mulligan.client.start_run import BegunRun, IdTakenError, read_input, start_run
from mulligan.client.sub_runs import read_pending
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.client.wait_reader import WaitReader
from mulligan.client.waiting_calls import AllPending, read_all_pending
from mulligan.client.watch_run import WatchedEvent, watch_run
from mulligan.context_view.model_context import ModelContext, NoSuchStepError, read_model_context
from mulligan.errors import UpdateRefusedError
from mulligan.run_input import RunInput, parse_run_input
from mulligan.serve.api_answers import ReadRun
from mulligan.serve.caller import Caller
from mulligan.serve.caller_rights import check_fields
from mulligan.serve.clean_text import without_folders
from mulligan.serve.client_account import as_account
from mulligan.serve.client_metadata import run_metadata
from mulligan.serve.idempotency import StartRequest, Starts, key_reused
from mulligan.serve.ignored_fields import IgnoredFields
from mulligan.serve.off_loop import off_loop
from mulligan.serve.problems import Problem, id_taken, no_such_run, problem_of_state
from mulligan.serve.run_ids import check_chosen_id, check_id, is_of_chat
from mulligan.serve.security import USER_HEADER
from mulligan.serve.served_request import ServedRequest, WatcherPlaces
from mulligan.wire.agent_facts import DEFINITION_QUERY, Definition, ToolDefinition
from mulligan.wire.compressed_input import decompress_input
from mulligan.wire.event_types import Event
from mulligan.wire.run_priority import TENANT_MEMO
from mulligan.wire.start_input import StartInput
from mulligan.wire.start_memo import USER_MEMO
from mulligan.wire.updates import (
    ANSWER,
    DECIDE,
    MOST_AGENTS,
    MOST_ROLES,
    SEND_MESSAGE,
    STOP,
    Answer,
    Decide,
    SendMessage,
    Stop,
)

MOST_WATCHERS = 5_000
"""Streams that this process serves at the same time."""
MOST_ITEMS = 1_000
"""Entries of a page."""
NOTHING_IGNORED = IgnoredFields()
NO_END = 10**15
"""An offset that no event has."""
MOST_ROOTS, PARALLEL_READS = 10_000, 20
"""Runs with sub-agents whose memo is remembered, and how many are read at the same time."""

FORKS_OF_OPERATORS = "Instructions, a model, results and live tools of a fork are for operators; leave them out."

Handle = WorkflowHandle[Any, Any]


@dataclass(frozen=True)
class Started:
    """A run that was started; `is_new` is False if an equal request has started it before."""

    id: str
    is_new: bool

    @classmethod
    def noted(cls, run_id: str, *, is_new: bool) -> Started:
        """The run that the current request has started: from now on nothing may make its client send it again."""
        ServedRequest.current().started = run_id
        return cls(run_id, is_new)


class RunInfo(ReadRun):
    """What `ReadRun` describes, with what the workers answer as it is."""

    forked_from: dict[str, Any] | None = None  # type: ignore[assignment]
    progress: dict[str, Any] | None = None  # type: ignore[assignment]
    waiting_for: dict[str, Any] | None = None  # type: ignore[assignment]
    error: dict[str, str] | None = None  # type: ignore[assignment]

    @classmethod
    async def of(cls, client: Client, described: WorkflowExecutionDescription) -> RunInfo:
        """What Temporal knows of a run."""
        summary = await describe_run(client, described)
        known = {name: value for name, value in summary.items() if name in cls.model_fields}
        return cls(**known, ended=described.close_time)

    @property
    def waits_for_person(self) -> bool:
        """Whether it waits for a person's decision or answer."""
        return self.waiting_for is not None and self.waiting_for["kind"] == "person"

    @property
    def is_price_unknown(self) -> bool:
        """Whether it has used tokens of a model whose price is not known, so that it has no cost."""
        usage = self.number("usage")
        tokens = isinstance(usage, dict) and (usage.get("input_tokens") or usage.get("output_tokens"))
        return self.number("cost") is None and bool(tokens)

    def number(self, name: str) -> Any:
        """A number of the result, or of the progress of an open run: `steps`, `cost` …; None: it is not known."""
        if isinstance(self.result, dict) and name in self.result:
            return self.result[name]
        return (self.progress or {}).get("step" if name == "steps" else name)


class Runs:
    """The runs on one Temporal server."""

    def __init__(
        self,
        client: Client,
        task_queue: str,
        *,
        most_watchers: int = MOST_WATCHERS,
        strict: bool = False,
        stops_on_disconnect: bool = False,
    ) -> None:
        """`strict`: whether a request is refused of which an agent would ignore something. `stops_on_disconnect`: whether a
        run stops when the client of `/v1` disconnects that waits for it.
        """
        self.client, self._task_queue, self._strict = client, task_queue, strict
        self._stops_on_disconnect = stops_on_disconnect
        self._stopping: set[asyncio.Task[None]] = set()
        self._feeds = EventFeeds(client)
        self.callback_tokens = callback_tokens(lambda: client)
        self._agents = AgentReader(client, task_queue)
        self._starts = Starts(client, task_queue)
        self._places = WatcherPlaces(most_watchers)
        self._roots: dict[tuple[str, str], dict[str, Any]] = {}
        self._reading_roots = asyncio.Semaphore(PARALLEL_READS)

    async def close(self) -> None:
        """Stop reading events of all runs."""
        await self._feeds.close()

    def ignore(self, names: Sequence[str]) -> None:
        """Note that fields of the request that is served are ignored.

        Raises:
            Problem: nothing may be ignored.
        """
        ServedRequest.current().ignore(names, strict=self._strict)

    # Starting

    async def start(
        self,
        caller: Caller,
        body: bytes | RunInput,
        run_id: str | None = None,
        *,
        server_id: str | None = None,
        request: StartRequest | None = None,
        ignored: IgnoredFields = NOTHING_IGNORED,
        model_only: bool = False,
    ) -> Started:
        """Start a run in the caller's tenant. The same id and input again is the same run.

        `body`: a RunInput that a door has made, with the metadata of the caller and the client; or its JSON as the client
        sends it. `run_id`: the id that the client has chosen. `server_id`: the id that this server has made, of a form
        that no client can choose. With neither, the id is made from `request`, and the same request again is the same run;
        without that, a request cannot be recognized. `ignored`: what the agent decides by itself. `model_only`: whether
        it has the model alone.
        """
        if isinstance(body, RunInput):
            given = body
        else:
            given = _as_sent_by(caller, await off_loop(len(body), partial(_parse_input, body)))
        run_input = _of_caller(caller, StartInput.of(given, model_only=model_only))
        if run_id is not None:
            check_chosen_id(run_id)
        run_id = run_id or server_id
        agent = await self.agent(caller, run_input.agent)
        if run_input.client_instructions or ignored.names:
            words = run_input.model_dump(include={"metadata", "client_metadata", "client_instructions"})
            # A model alone has no instructions but the client's, and no output type.
            decides = {"name": run_input.agent} if model_only else agent
            taken = ignored.accept(caller, decides, words, strict=self._strict)
            run_input = run_input.with_fields(**{"client_instructions": None, **taken})
        if run_id is None:
            request = request or StartRequest(f"{run_input.agent[:80]}-")
            run_id, is_new = await self._starts.start(run_input, request)
            return Started.noted(run_id, is_new=is_new)
        try:
            started = await start_run(self.client, run_input, run_id, self._task_queue)
        except IdTakenError as error:
            has_key = request is not None and request.keyed_id is not None
            raise Problem(422 if has_key else 409, "id_taken", str(error)) from None
        return Started.noted(run_id, is_new=started.is_new)

    async def resume(
        self,
        caller: Caller,
        run_id: str,
        options: Mapping[str, Any],
        *,
        server_id: str | None = None,
        key: str | None = None,
        ignored: IgnoredFields = NOTHING_IGNORED,
    ) -> Started:
        """Continue an ended run in a new one, which has the tenant of that run, whoever the caller is.

        `options`: those of `mulligan.resume_run` but the task queue, with what `run_metadata` returns, and
        `client_instructions`. `server_id`, `ignored`: as for `start`. `key`: a digest of the request's `Idempotency-Key`.
        The same request again is the same new run.
        """
        described = await self.describe(caller, run_id)
        if caller.agents is not None or options.get("client_instructions") or ignored.names:
            # A caller who sees a run sees its sub-agents' runs, but may not start such an agent itself.
            agent = await self._agent_of(caller, described)
            options = ignored.accept(caller, agent, options, strict=self._strict)
        if chosen := options.get("id"):
            check_chosen_id(chosen)
        given = {name: value for name, value in options.items() if name != "id"}
        # The continuation of an operator, or of a backend, works for whom the run did, as it keeps the run's tenant. A chat
        # is its user's, whoever says something in it: as another's, it would be closed to them.
        given["user"] = None if is_of_chat(run_id) and not caller.is_customer else caller.other_user
        try:
            started = await continue_run(self.client, run_id, given, new_id=chosen, server_id=server_id, key=key or "")
        except WorkflowAlreadyStartedError as error:
            raise (key_reused if server_id and server_id == key else id_taken)(error.workflow_id) from None
        except ResumeError as error:
            if isinstance(error, AlreadyResumedError) and key and error.key == key:
                raise key_reused(error.workflow_id) from None
            raise problem_of_state(error, 409, "not_resumable") from None
        return Started.noted(started.handle.id, is_new=started.is_new)

    async def fork(
        self, caller: Caller, run_id: str, options: Mapping[str, Any], *, key: str | None = None
    ) -> BegunRun:
        """Fork a run. The fork has the tenant of that run, whoever the caller is.

        `options`: those of `mulligan.client.origins.fork_run.Fork`, and `id`. `key`: as for `resume`.
        """
        described = await self.describe(caller, run_id)
        if caller.agents is not None:
            await self._agent_of(caller, described)
        given = dict(options)
        if chosen := given.pop("id", None):
            check_chosen_id(chosen)
        try:
            fork = parse_fork(given)
            if fork.is_for_operators and not caller.operator:
                raise Problem(403, "operators_only", FORKS_OF_OPERATORS)
            user = caller.other_user
            started = await start_fork(self.client, run_id, fork, new_id=chosen or key, user=user)
        except WorkflowAlreadyStartedError as error:
            raise (key_reused if key is not None and chosen is None else id_taken)(error.workflow_id) from None
        except ResumeError as error:
            raise problem_of_state(error, 422, "not_forkable") from None
        ServedRequest.current().started = started.handle.id
        return started

    async def branch(self, caller: Caller, run_id: str, options: Mapping[str, Any], server_id: str) -> Started:
        """Answer the message that a run has answered again, or another one in its place, in a run with the id `server_id`.

        The branch begins with the messages and the tenant of the run. `options`: as for `branch_run`, but the user.
        """
        run_input = await self.input(caller, run_id)
        if run_input is None:
            raise Problem(
                409,
                "not_an_agent",
                f"The workflow {run_id[:80]!r} is not a run of an agent; GET /api/runs lists the runs.",
            )
        agent = await self.agent(caller, run_input.agent)
        options = NOTHING_IGNORED.accept(caller, agent, options, strict=self._strict)
        given = {**options, "user": caller.other_user}
        try:
            await branch_run(self.client, run_id, run_input, given, server_id)
        except WorkflowAlreadyStartedError:
            raise id_taken(server_id) from None
        except ResumeError as error:
            raise problem_of_state(error, 409, "not_branchable") from None
        return Started.noted(server_id, is_new=True)

    # Reading

    async def describe(self, caller: Caller, run_id: str) -> WorkflowExecutionDescription:
        """Temporal's description of a run, if the caller may see it. Every other method checks with this one."""
        check_id(run_id, most=1_000)
        described = await unless_missing(self.client.get_workflow_handle(run_id).describe(), MISSING_OR_INVALID)
        if described is None or not await self._may_see(caller, described):
            raise no_such_run(run_id)
        return described

    async def find(self, caller: Caller, query: RunQuery, *, limit: int, cursor: str | None = None) -> RunPage:
        """A page of the runs that the caller may see: the open ones, then the others, the one that ended last first."""
        query = replace(query, may_see=partial(self._may_see, caller))
        if query.forked_from is not None:
            origin = await unless_missing(
                self.client.get_workflow_handle(query.forked_from).describe(), MISSING_OR_INVALID
            )
            if origin is not None and not await self._may_see(caller, origin):
                return RunPage([], None)  # the cursor of a page would tell how many forks it has
        try:
            return await find_runs(self.client, query, limit=min(max(1, limit), MOST_ITEMS), cursor=cursor)
        except StatusError as error:
            raise Problem(422, "invalid_input", f'"status" {error}') from None
        except CursorError as error:
            raise Problem(422, "invalid_input", f'"cursor" {error}') from None

    async def read(
        self, caller: Caller, run_id: str, *, wait: float = 0, progress_beside_result: bool = True
    ) -> RunInfo:
        """A run: its status, progress and result. `wait`: the seconds to wait, at most, for its end.

        Without `progress_beside_result`, a run with a result is not asked for its progress: a worker would replay it.
        """
        described = await self.describe(caller, run_id)
        handle = self.client.get_workflow_handle(run_id)
        if wait and described.status == WorkflowExecutionStatus.RUNNING:
            await _wait(handle, wait)
            described = await handle.describe()
        info = await RunInfo.of(self.client, described)
        if described.status == WorkflowExecutionStatus.RUNNING:
            reader = WaitReader(self.client)
            waiting = await reader.read(run_id)
            info.progress = reader.last_progress
            info.waiting_for = _cleaned(waiting.model_dump(mode="json")) if waiting else None
            return info
        end = await wait_for_end(handle)
        info.status, info.result = end.status, end.result
        if end.error is not None:
            info.error = _cleaned({"kind": str(end.error["kind"]), "message": str(end.error["message"])})
        if progress_beside_result or end.result is None:
            info.progress = await _progress_or_none(handle)
        return info

    async def steps(self, caller: Caller, run_id: str, since: int = 0, limit: int = 100) -> dict[str, Any]:
        """A page of the query `steps`: {`steps`, `next`, `total`}."""
        return await self._page(caller, run_id, "steps", since, limit)

    async def messages(
        self, caller: Caller, run_id: str, since: int = 0, limit: int = 100, conversation: str | None = None
    ) -> dict[str, Any]:
        """A page of the query `messages`: {`messages`, `next`, `total`}. `conversation`: an agent's; None: the first."""
        return await self._page(caller, run_id, "messages", since, limit, conversation)

    async def pending(self, caller: Caller, run_id: str) -> list[dict[str, Any]]:
        """The calls of a run, and of the runs below it, that wait for a person: each has the `id` of its run."""
        described = await self.describe(caller, run_id)
        if described.status != WorkflowExecutionStatus.RUNNING:
            return []
        return (await read_pending(self.client, run_id)).calls

    async def all_pending(self, caller: Caller) -> AllPending:
        """The calls that wait for a person, of all runs that the caller may see."""
        return await read_all_pending(self.client, partial(self._may_see, caller))

    async def input(self, caller: Caller, run_id: str) -> StartInput | None:
        """What a run was started with; None if its workflow is not an agent's, or its history is no longer there."""
        await self.describe(caller, run_id)
        return await unless_missing(read_input(self.client, run_id))

    async def tool(self, caller: Caller, run_id: str, name: str, conversation: str) -> ToolDefinition | None:
        """A tool as the run pinned it, with the JSON schema by which its arguments are checked; None: it has none such."""
        await self.describe(caller, run_id)
        pinned = await query_run(self.client.get_workflow_handle(run_id), DEFINITION_QUERY, conversation)
        definition = Definition.model_validate(pinned)
        tool = definition.tool(name)
        schema = definition.mcp_schemas.get(name)
        return tool.model_copy(update={"parameters": schema}) if tool and schema else tool

    async def context(self, caller: Caller, run_id: str, step: int, conversation: str | None = None) -> ModelContext:
        """What the model was sent in a step. `conversation`: an agent's; None: the first. For operators."""
        await self.describe(caller, run_id)
        if not caller.operator:
            raise Problem(
                403,
                "operators_only",
                f"What the model was sent is for operators, and {caller.name!r} is none: send a token with `*`.",
            )
        try:
            return await read_model_context(self.client, run_id, step, conversation)
        except NoSuchStepError as error:
            raise Problem(404, "step_not_found", str(error)) from None
        except ResumeError as error:
            raise problem_of_state(error, 409, "context_unreadable") from None

    async def agents(self, caller: Caller) -> list[dict[str, Any]]:
        """The agents that the workers serve, and the caller may use, each as `mulligan agents --json` prints it,
        without the path of its file.
        """
        agents = await self._agents.read()
        if agents is None:
            raise Problem(503, "no_worker", f"No worker of the task queue {self._task_queue!r} answers now. Start one.")
        return [agent for name, agent in agents.items() if caller.may_use(name)]

    async def agent(self, caller: Caller, name: str) -> dict[str, Any]:
        """Return an agent. While no worker answers, each agent that the caller may use is assumed to exist: {`name`}."""
        agents = await self._agents.read()
        if agents is not None and name not in agents:
            agents = await self._agents.read(valid_seconds=RECENT_SECONDS)
        if not caller.may_use(name) or (agents is not None and name not in agents):
            known = [each for each in agents or caller.agents or () if caller.may_use(each)]
            raise Problem(404, "agent_not_found", unknown_agent(name, known))
        return agents[name] if agents else {"name": name}

    async def check_agent(self, caller: Caller, run_id: str) -> None:
        """Check that a caller sees a run, and may start its agent."""
        described = await self.describe(caller, run_id)
        if caller.agents is not None:
            await self._agent_of(caller, described)

    async def _agent_of(self, caller: Caller, described: WorkflowExecution) -> dict[str, Any]:
        """Return the agent of a run, as `agent`; {} for a workflow without a single agent, if the caller may use all."""
        if (name := (await memo_of(described)).get("agent")) is not None:
            return await self.agent(caller, str(name))
        if caller.agents is None:
            return {}
        raise Problem(
            404, "agent_not_found",
            f"The workflow {described.id[:80]!r} has no single agent, and this token is for certain agents only; use one "
            "for all agents.",
        )  # fmt: skip

    # Watching

    async def watch(self, caller: Caller, run_id: str, since: str = "") -> AsyncIterator[WatchedEvent] | None:
        """The events of a run after the one with the token `since`, as they come, until the run has ended.

        Each has a `token` that no other event of the run has; on any replica it continues after this event. While Temporal
        or the workers do not answer, the events pause. None: the run has ended, and `since` is its last event.

        Close the iterator (`aclosing`) when the client has gone.
        """
        self.take_place(caller)
        described = await self.describe(caller, run_id)
        _check_token(since)
        if described.status != WorkflowExecutionStatus.RUNNING and since:
            page = await read_event_page(self.client, run_id, since, 1)
            if page.is_ended and not page.events:
                return None
        return watch_run(self._feeds, run_id, since)

    def take_place(self, caller: Caller) -> None:
        """Take the place that `watch` needs, for the whole request: before anything is started that it will watch.

        Raises:
            Problem: too many requests watch runs.
        """
        self._places.take(caller.tenant)

    async def events(self, caller: Caller, run_id: str, since: str = "", limit: int = 100) -> dict[str, Any]:
        """A page of the stored events after the one with the token `since`: {`events`, `next`, `complete`}.

        `next`: the `since` of the next page. `complete`: no more events will come.
        """
        await self.describe(caller, run_id)
        _check_token(since)
        page = await read_event_page(self.client, run_id, since, min(limit, MOST_ITEMS))
        return {
            "events": [event.model_dump(mode="json") for event in page.events],
            "next": page.next,
            "complete": page.is_ended,
        }

    async def stored_events(self, caller: Caller, run_id: str, end: int = NO_END) -> AsyncIterator[Event]:
        """The stored events of a run before the offset `end`, as far as there are any."""
        await self.describe(caller, run_id)
        since = ""
        while end > 0:
            page = await read_event_page(self.client, run_id, since, min(end, MOST_ITEMS))
            for event in page.events:
                if getattr(event, "offset", end) < end:
                    yield event
            if page.is_ended or page.next == since or StreamPosition.parse(page.next).base.next >= end:
                return
            since = page.next

    # Reaching

    async def send_message(
        self, caller: Caller, run_id: str, message: SendMessage, update_id: str | None = None
    ) -> dict[str, Any]:
        """Send a message to the agent.

        `update_id`: the id by which the run recognizes a repeated request; None: a new id. The other updates have it, too.
        """
        return await self._update(caller, run_id, SEND_MESSAGE, message, update_id)

    async def decide(
        self, caller: Caller, run_id: str, decision: Decide, update_id: str | None = None
    ) -> dict[str, Any]:
        """Decide on a waiting call. `by` is the caller's name. The run refuses a caller without the role that it needs, and
        a rule of the tenant for an agent that the caller may not use.
        """
        roles = None if caller.operator else sorted(caller.roles)[:MOST_ROLES]
        is_of_tenant = decision.remember == "tenant" and not caller.operator
        agents = sorted(caller.agents)[:MOST_AGENTS] if is_of_tenant and caller.agents is not None else None
        return await self._update(caller, run_id, DECIDE, decision, update_id, roles=roles, agents=agents)

    async def answer(self, caller: Caller, run_id: str, answer: Answer, update_id: str | None = None) -> dict[str, Any]:
        """Answer a question of the agent. `by` is the caller's name."""
        return await self._update(caller, run_id, ANSWER, answer, update_id)

    async def stop(self, caller: Caller, run_id: str, stopping: Stop, update_id: str | None = None) -> dict[str, Any]:
        """Let the running calls finish, then end the run. `by` is the caller's name."""
        return await self._update(caller, run_id, STOP, stopping, update_id)

    def stop_on_disconnect(self, caller: Caller, run_id: str) -> Callable[[], None] | None:
        """Returns what stops a run, whose client has disconnected, in the background; None: runs go on without clients."""
        if not self._stops_on_disconnect:
            return None

        async def stop() -> None:
            with suppress(RPCError, RunEndedError, UpdateRefusedError):
                await self.stop(caller, run_id, Stop(reason="Its client has disconnected."))

        def begin() -> None:
            task = asyncio.create_task(stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

        return begin

    async def cancel(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """Cancel a run: its calls are cancelled at once."""
        described = await self.describe(caller, run_id)
        if described.status != WorkflowExecutionStatus.RUNNING:
            raise RunEndedError
        await self.client.get_workflow_handle(run_id).cancel()
        return {"accepted": True}

    async def _update(
        self,
        caller: Caller,
        run_id: str,
        name: str,
        update: SendMessage | Decide | Answer | Stop,
        update_id: str | None,
        **set_here: Any,
    ) -> dict[str, Any]:
        """Send what a person wants. Fields that the caller may not send are refused, not left out: to run a call as it is,
        with an edit left out, is not what was decided. `set_here`: fields that this server alone sets.
        """
        fields = update.model_dump()
        check_fields(caller, type(update).__name__, fields)
        if "by" in fields:
            set_here["by"] = caller.name or fields["by"]
        described = await self.describe(caller, run_id)
        # A run that has ended since knows the answer to a repeated request.
        if described.status != WorkflowExecutionStatus.RUNNING and update_id is None:
            raise RunEndedError
        return await send_update(self.client, run_id, name, fields | set_here, update_id=update_id)

    async def _page(
        self, caller: Caller, run_id: str, query: str, since: int, limit: int, conversation: str | None = None
    ) -> dict[str, Any]:
        await self.describe(caller, run_id)
        handle, selected = self.client.get_workflow_handle(run_id), [] if conversation is None else [conversation]
        page: dict[str, Any] = await query_run(handle, query, since, min(limit, MOST_ITEMS), *selected)
        return page

    async def _may_see(self, caller: Caller, execution: WorkflowExecution) -> bool:
        """Whether a caller may see a run: nothing else decides that. The runs of sub-agents are seen by those who see the
        run at the top of them, whatever agents the runs between have.
        """
        if caller.operator:
            return True
        memo = await memo_of(execution)
        root = execution.root_id or execution.id, execution.root_run_id or ""
        if root[0] != execution.id and memo.get(TENANT_MEMO) == caller.tenant:
            of_root = await self._memo_of_root(*root)
            memo = of_root if TENANT_MEMO in of_root or caller.agents is not None else memo
        return caller.may_see(agent=memo.get("agent"), tenant=memo.get(TENANT_MEMO), user=memo.get(USER_MEMO))

    async def _memo_of_root(self, workflow_id: str, run_id: str) -> dict[str, Any]:
        """The memo of a run that has sub-agents; empty if its retention is over. What it says of the run never changes."""
        key = workflow_id, run_id
        if key not in self._roots:
            async with self._reading_roots:
                described = await unless_missing(self.client.get_workflow_handle(workflow_id, run_id=run_id).describe())
                if described is None:
                    return {}
                self._roots[key] = await memo_of(described)
            while len(self._roots) > MOST_ROOTS:
                del self._roots[next(iter(self._roots))]
        return self._roots[key]


def _parse_input(body: bytes) -> RunInput:
    return parse_run_input(decompress_input(body))


def _as_sent_by(caller: Caller, run_input: RunInput) -> RunInput:
    """The input that a client has sent, with the metadata of its caller; of a customer's, only words count."""
    update: dict[str, Any] = run_metadata(caller, run_input.metadata)
    if caller.is_customer:
        update["messages"] = as_account(run_input.messages)
    else:
        update["client_metadata"] = run_input.client_metadata
    return run_input.model_copy(update=update)


def _of_caller(caller: Caller, run_input: StartInput) -> StartInput:
    """The input with the caller's tenant and user. Only an operator may name others in it."""
    tenant, user = run_input.tenant or caller.tenant, caller.other_user or run_input.user or caller.user
    if not caller.operator:
        if tenant != caller.tenant:
            raise Problem(
                403, "foreign_tenant", f'"tenant" is another one than this caller\'s, which is {caller.tenant!r}.'
            )
        if run_input.user not in (None, caller.user):
            raise Problem(
                403, "foreign_user", f'"user" is set by this server; with a token, send the header {USER_HEADER}.'
            )
    return run_input.model_copy(update={"tenant": tenant, "user": user})


def _check_token(since: str) -> None:
    try:
        StreamPosition.parse(since)
    except EventTokenError as error:
        raise Problem(422, "invalid_input", str(error)) from None


def _cleaned(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of which some are texts of exceptions."""
    return {name: without_folders(value) if isinstance(value, str) else value for name, value in fields.items()}


async def _wait(handle: Handle, seconds: float) -> None:
    """Wait until a run has ended, or the time has passed."""
    try:
        async with asyncio.timeout(seconds):
            await wait_for_end(handle)
    except TimeoutError:
        return


async def _progress_or_none(handle: Handle) -> dict[str, Any] | None:
    """The answer of the query `progress`; None if no worker answers, or the workflow has no agent."""
    try:
        progress: dict[str, Any] = await query_run(handle, "progress")
    except WorkflowQueryFailedError:
        return None
    except RPCError as error:
        if error.status not in NO_WORKER_STATUSES:
            raise
        return None
    return progress
