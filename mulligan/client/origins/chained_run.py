"""A run that may go on from another one: how it begins, its ids, what it continues, and whether it ever called a model.

Whoever reaches Temporal can start a run under any id. So an id proves nothing: a run continues another one if it belongs to
the same tenant, and was started as the continuation of exactly that execution.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.origins.run_state import ResumeError, first_run_id
from mulligan.client.start_run import BegunRun, Handle, begin_run
from mulligan.client.unless_missing import unless_missing
from mulligan.run_input import parse_prompt
from mulligan.values import UserMessage
from mulligan.wire.agent_facts import OPEN_RUN
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.run_priority import TENANT_MEMO
from mulligan.wire.start_input import ORIGIN_MEMO, Origin, StartInput

MOST_TAKEN_IDS = 100
"""Ids that are tried, one after another, where other runs have them."""
_RESUMED_ID = re.compile(r"(.+)-resumed(?:-(\d+))?")
_NO_WORK = {OPEN_RUN, FINISH_RUN}
"""The activities of a run that ended before its first model call."""

Source = tuple[str, str]
"""An execution: its workflow id, and Temporal's run id."""


def continuation_ids(workflow_id: str) -> Iterator[str]:
    """Yield the ids, without end, under which a run may be continued: `my-run-resumed`, `my-run-resumed-2`, …

    Those of `my-run-resumed` begin with `my-run-resumed-2`.
    """
    match = _RESUMED_ID.fullmatch(workflow_id)
    base, number = (match[1], int(match[2] or 1)) if match else (workflow_id, 0)
    for following in itertools.count(number + 1):
        yield f"{base}-resumed" if following == 1 else f"{base}-resumed-{following}"


def request_digest(options: Mapping[str, Any]) -> str:
    """A digest of what a run is continued with: equal for equal requests. An option that is None counts as not given.

    The `user` does not count: whoever sends a message again in its tenant means the same continuation.

    Raises:
        InvalidRunInputError: the prompt is invalid.
    """
    given = {name: value for name, value in options.items() if value is not None and name != "user"}
    if isinstance(prompt := given.get("prompt"), list | tuple):
        given["prompt"] = UserMessage.of(parse_prompt(list(prompt))).model_dump(mode="json")
    text = json.dumps(given, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class ChainedRun:
    """A run by its memo. `origin`: the run that it says it goes on from; None: from none, or it has no such memo."""

    description: WorkflowExecutionDescription
    tenant: str | None
    origin: Origin | None

    @classmethod
    async def of(cls, description: WorkflowExecutionDescription) -> ChainedRun:
        """Read the memo of a described run. A memo of another form counts as none.

        Raises:
            Exception: the memo cannot be decrypted. Whether the run continues another one is not known then.
        """
        origin = tenant = None
        try:
            memo = await description.memo() if description.workflow_type == AGENT_WORKFLOW else {}
            tenant = memo.get(TENANT_MEMO)
            for kind, name in ORIGIN_MEMO.items():
                if isinstance(listed := memo.get(name), dict):
                    given = {**listed, "kind": kind, "workflow_id": listed.get("id")}
                    origin = Origin.model_validate(given, extra="ignore")  # a later version may say more
        except ValidationError:
            pass
        except Exception as error:
            if explain_unreadable_data(error):
                raise
        return cls(description, tenant if isinstance(tenant, str) else None, origin)

    @classmethod
    async def read(cls, client: Client, workflow_id: str, run_id: str | None = None) -> ChainedRun | None:
        """Read a run; None if there is none.

        Raises:
            RPCError: Temporal does not answer.
        """
        description = await unless_missing(client.get_workflow_handle(workflow_id, run_id=run_id).describe())
        return None if description is None else await cls.of(description)

    @property
    def source(self) -> Source:
        """The execution that is continued: workflow id and run id."""
        return self.description.id, self.description.run_id or ""

    @property
    def continued(self) -> Origin | None:
        """The run that it says it continues; None: it continues none."""
        return self.origin if self.origin is not None and self.origin.kind == "resume" else None

    @property
    def key(self) -> str:
        """A digest of the `Idempotency-Key` with which another run was continued in this one; "": there was none."""
        return self.continued.key if self.continued else ""

    def continues(self, tenant: str | None, sources: Collection[Source]) -> bool:
        """Whether this run continues one of these executions of a tenant."""
        before = self.continued
        return before is not None and self.tenant == tenant and (before.workflow_id, before.run_id) in sources

    def begun(self, client: Client) -> BegunRun:
        """The run, as a request gets it that would have started an equal one."""
        first = first_run_id(self.description)
        handle: Handle = client.get_workflow_handle(self.description.id, first_execution_run_id=first)
        return BegunRun(handle, is_new=False)

    async def has_begun(self, client: Client) -> bool:
        """Whether the run is open, or has scheduled any work. If not, it has changed nothing, and may be made again."""
        described = self.description
        # With another first run, it has continued as new, or was reset.
        if described.status == WorkflowExecutionStatus.RUNNING or first_run_id(described) != described.run_id:
            return True
        handle = client.get_workflow_handle(described.id, run_id=described.run_id)
        async for event in handle.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_id and scheduled.activity_type.name not in _NO_WORK:
                return True
        return False


async def begin_from(
    client: Client,
    new_id: str,
    prepare: Callable[[], Awaitable[StartInput]],
    task_queue: str | None,
    *,
    memo: Mapping[str, Any] | None = None,
) -> BegunRun | ChainedRun:
    """Begin a run that goes on from another one; or return the run that has the id already. Then no worker is needed.

    `prepare`: returns its input, whose content is stored. `memo`: more entries of its memo.

    Raises:
        InvalidRunInputError: the input is too large for Temporal.
        Exception: of `prepare`.
    """
    existing = await ChainedRun.read(client, new_id)
    if existing is not None:
        return existing
    try:
        return BegunRun(await begin_run(client, await prepare(), new_id, task_queue or "", memo=memo), is_new=True)
    except WorkflowAlreadyStartedError:
        existing = await ChainedRun.read(client, new_id)
    if existing is None:
        raise ResumeError(f"The run {new_id!r} was deleted while another one was begun under its id.")
    return existing


async def newest_continuation(client: Client, run: ChainedRun) -> ChainedRun:
    """The last of the runs that continue a run, one after another; the run itself if nobody has continued it.

    Runs of others that have such ids are passed over.
    """
    newest, sources, taken = run, {run.source}, 0
    for workflow_id in continuation_ids(run.description.id):
        following = await ChainedRun.read(client, workflow_id)
        if following is None or taken == MOST_TAKEN_IDS:
            break
        if following.continues(run.tenant, sources):
            newest, taken = following, 0
            sources.add(following.source)
        else:
            taken += 1
    return newest
