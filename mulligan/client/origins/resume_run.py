"""Continue an ended run: start a new one with its conversation, without repeating calls that have a result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan.client.origins.carry_over import carry_over
from mulligan.client.origins.chained_run import (
    MOST_TAKEN_IDS,
    ChainedRun,
    Source,
    begin_from,
    continuation_ids,
    request_digest,
)
from mulligan.client.origins.run_state import ResumeError, describe_ended, read_run_state
from mulligan.client.read_run import wait_for_end
from mulligan.client.start_run import BegunRun, Handle, read_input
from mulligan.client.store_content import store_content
from mulligan.content import Part
from mulligan.run_input import parse_prompt
from mulligan.values import AssistantMessage, Message, UserMessage
from mulligan.wire.request_labels import MAIN_CONVERSATION, labels_for, prompt_cache_key
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.start_input import Origin, StartInput


class PromptNeededError(ResumeError):
    """The agent has nothing to do without a prompt."""


class AlreadyResumedError(ResumeError):
    """The run was continued before, with another prompt or other options. `workflow_id`: of its continuation.

    `key`: of the request that started the continuation, as `Origin.key`.
    """

    def __init__(self, earlier: str, workflow_id: str, key: str = "") -> None:
        super().__init__(
            f"The run {earlier!r} was continued before, with another prompt or other options: as {workflow_id!r}. "
            "Continue that run, or choose another id for a second continuation."
        )
        self.workflow_id, self.key = workflow_id, key


async def resume_run(  # noqa: PLR0913 - all but the first two are options
    client: Client,
    workflow_id: str,
    prompt: str | Sequence[Part] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - Temporal's name
    run_id: str | None = None,
    max_steps: int | None = None,
    model: str | None = None,
    metadata: Mapping[str, str] | None = None,
    task_queue: str | None = None,
) -> Handle:
    """Start a run that continues the conversation of a run that failed, was cancelled or stopped, or reached a limit.

    Calls with a result are not repeated. A call that was interrupted is not repeated either: the model gets the error
    `tool_lost`, which says that the call may or may not have done its work. Agent, model, metadata, limits and task queue
    are those of the earlier run, unless given.

    A run is continued once, however often and from wherever this is called: the same call again returns that continuation,
    also when it has ended. A continuation that ended before its first model call is made again, under the next id.

    Args:
        client: A client of the server that has the earlier run; `mulligan.connect()` returns one.
        workflow_id: The earlier run.
        prompt: The user's next message. A run that completed needs one.
        id: The new run's id. The default is made from the earlier run's id: `my-run-resumed`, then `my-run-resumed-2`. With
            an id of your own it is a branch: another continuation beside that one, which is started once as well.
        run_id: Temporal's run id, if the earlier run is not the newest one of its workflow id.
        max_steps: The maximum number of model calls of the new run.
        model: Another model.
        metadata: Another metadata than the earlier run's.
        task_queue: The task queue of the workers.

    Returns:
        The handle of the continuation.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), it is open (RunOpenError), it is being undone
            (UndoOpenError), it needs a prompt (PromptNeededError), no worker answers (NoWorkerError), it was continued with
            another prompt or other options (AlreadyResumedError), or it never started.
        InvalidRunInputError: the new run's input is invalid: the conversation is too long, or a limit is not a number.
        WorkflowAlreadyStartedError: the given `id` is that of a run that does not continue this one.
    """
    options = {
        "prompt": prompt,
        "max_steps": max_steps,
        "model": model,
        "metadata": metadata and dict(metadata),
        "task_queue": task_queue,
    }
    return (await continue_run(client, workflow_id, options, new_id=id, run_id=run_id)).handle


async def continue_run(
    client: Client,
    workflow_id: str,
    options: Mapping[str, Any],
    *,
    new_id: str | None = None,
    server_id: str | None = None,
    key: str = "",
    run_id: str | None = None,
) -> BegunRun:
    """Continue a run as `resume_run` does. The result says whether this request started the continuation.

    Args:
        client: A client of the server.
        workflow_id: The earlier run.
        options: Those of `resume_run`, and other fields of the new run's input in place of the earlier run's.
        new_id: The continuation's id, chosen by the caller; None: an id made from the earlier run's.
        server_id: An id that the HTTP server has made from the request. A continuation with this id that ended before its
            first model call is made again under `server_id-2`, and so on.
        key: A digest of the request's `Idempotency-Key`; "": it has none.
        run_id: As for `resume_run`.

    Raises:
        Exception: as `resume_run`.
    """
    described = await describe_ended(client, workflow_id, run_id)
    if described.status == WorkflowExecutionStatus.CONTINUED_AS_NEW:
        raise ResumeError(f"The run {workflow_id!r} continued in a newer run with this id; resume that one.")
    earlier = await ChainedRun.of(described)
    if earlier.tenant is None:
        # A client of its own may have started it, which writes no memo; a worker does, if one has begun the run.
        given = await read_input(client, workflow_id, run_id=earlier.description.run_id)
        earlier = replace(earlier, tenant=given.tenant if given else None)
    continuing = _Continuing(client, earlier, options, key)
    if server_id:
        following = (f"{server_id}-{number}" for number in itertools.count(2))
        return await continuing.under_ids(itertools.chain([server_id], following))
    return await (continuing.under_ids([new_id]) if new_id else continuing.under_next_id())


class _Continuing:
    """A request to continue a run. Temporal starts one run under an id; who comes second looks at what is there."""

    def __init__(self, client: Client, earlier: ChainedRun, options: Mapping[str, Any], key: str) -> None:
        self._client, self._earlier, self._key = client, earlier, key
        self._options = {name: value for name, value in options.items() if value is not None}
        self._request = request_digest(options)
        self._input: StartInput | None = None

    async def under_ids(self, ids: Iterable[str]) -> BegunRun:
        """The continuation with the first of these ids whose run began, or that is free; with the last one in any case.

        Raises:
            WorkflowAlreadyStartedError: the run with an id does not continue this one.
            AlreadyResumedError: another request has started it.
        """
        for new_id in ids:
            existing = await self._begin(new_id)
            if isinstance(existing, BegunRun):
                return existing
            if not existing.continues(self._earlier.tenant, {self._earlier.source}):
                raise WorkflowAlreadyStartedError(existing.description.id, AGENT_WORKFLOW)
            continuation = self._checked(existing)
            if await existing.has_begun(self._client):
                break
        return continuation

    async def under_next_id(self) -> BegunRun:
        """The continuation with the first id of the run's own that is free, or has it already.

        Ids that runs of others have are passed over: otherwise they would stop this run. So are continuations that ended
        before their first model call; whoever continues one of those instead continues this run all the same.
        """
        sources, taken = await self._sources(), 0
        ids = continuation_ids(self._earlier.description.id)
        while taken < MOST_TAKEN_IDS:
            existing = await self._begin(next(ids))
            if isinstance(existing, BegunRun):
                return existing
            if not existing.continues(self._earlier.tenant, sources):
                taken += 1
                continue
            has_begun = await existing.has_begun(self._client)
            if has_begun or (self._key and existing.key == self._key):
                continuation = self._checked(existing)
                if has_begun:
                    return continuation
            taken = 0
            sources.add(existing.source)
        raise ResumeError(
            f"The run {self._earlier.description.id!r} cannot be continued: {MOST_TAKEN_IDS} runs that are not its "
            "continuations have the next ids. Choose an id for the new run."
        )

    async def _sources(self) -> set[Source]:
        """The run, and the runs that it was to continue when it ended before its first model call."""
        run: ChainedRun | None = self._earlier
        sources: set[Source] = set()
        while run is not None and run.source not in sources:
            sources.add(run.source)
            before = run.continued
            if before is None or await run.has_begun(self._client):
                break
            run = await ChainedRun.read(self._client, before.workflow_id, before.run_id)
        return sources

    async def _begin(self, new_id: str) -> BegunRun | ChainedRun:
        queue = self._options.get("task_queue") or self._earlier.description.task_queue
        return await begin_from(self._client, new_id, self._prepared, queue)

    def _checked(self, existing: ChainedRun) -> BegunRun:
        """The existing continuation, if this request would have started an equal run.

        Raises:
            AlreadyResumedError: another request has started it.
        """
        before = existing.continued
        source = (before.workflow_id, before.run_id) if before else None
        if before is None or source != self._earlier.source or before.request != self._request:
            raise AlreadyResumedError(self._earlier.description.id, existing.description.id, existing.key)
        return existing.begun(self._client)

    async def _prepared(self) -> StartInput:
        """The input of the new run: the earlier run's conversation, with the options of this request."""
        if self._input is not None:
            return self._input
        workflow_id, run_id = self._earlier.source
        status = (await wait_for_end(self._client.get_workflow_handle(workflow_id, run_id=run_id))).status
        state, messages = await read_run_state(self._client, self._earlier.description)
        options = {name: value for name, value in self._options.items() if name != "task_queue"}
        if "prompt" not in options:
            _check_last_message(workflow_id, status, messages)
        elif not isinstance(options["prompt"], str):
            options["prompt"] = parse_prompt(list(options["prompt"]))
        cache_key = prompt_cache_key(workflow_id, MAIN_CONVERSATION, state.input)
        run_input = state.input.with_fields(
            traceparent=None,
            origin=Origin(
                kind="resume",
                workflow_id=workflow_id,
                run_id=run_id,
                traceparent=state.trace or None,
                request=self._request,
                key=self._key,
            ),
            labels=labels_for(cache_key, state.input, options.get("user", state.input.user)),
            **options,
        )
        run_input = await carry_over(self._client, self._earlier.description, run_input, messages)
        self._input = await store_content(run_input)
        return self._input


def _check_last_message(workflow_id: str, status: str, messages: Sequence[Message]) -> None:
    """Raise PromptNeededError if the model would have nothing to reply to."""
    last = messages[-1] if messages else None
    if isinstance(last, UserMessage):
        return
    if status == "completed":
        raise PromptNeededError(f"The run {workflow_id!r} has completed; give the agent's next task as a prompt.")
    if isinstance(last, AssistantMessage):
        raise PromptNeededError(f"The run {workflow_id!r} ended with a message of the model; give the next prompt.")
