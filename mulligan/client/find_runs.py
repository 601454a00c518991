"""Runs in Temporal's visibility: a query for them, pages of them, and what a list shows of each."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

from temporalio.client import Client, WorkflowContinuedAsNewError, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.read_run import UNDECODABLE
from mulligan.client.registered_attributes import RegisteredAttributes
from mulligan.features import all_words
from mulligan.run_input import USER_CHARS
from mulligan.schema.cut_text import beginning
from mulligan.values import Status
from mulligan.wire.agent_list import AGENTS_WORKFLOW
from mulligan.wire.agent_version import VERSION_MEMO
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.run_priority import TENANT_MEMO
from mulligan.wire.run_status import PENDING_MEMO, STATUS_MEMO, STATUSES, OpenStatus, status_in_temporal
from mulligan.wire.search_attributes import AGENT_ATTRIBUTE, ORIGIN_ATTRIBUTE, STATUS_ATTRIBUTE, listed_origin
from mulligan.wire.start_input import FORKED_FROM_MEMO, ORIGIN_MEMO, RESUMED_FROM_MEMO, Kind
from mulligan.wire.start_memo import PROMPT_MEMO, USER_MEMO
from mulligan.wire.times import iso
from mulligan.wire.ui_summary import first_line

_IN_TEMPORAL = {
    **dict.fromkeys(get_args(OpenStatus), "Running"),
    **dict.fromkeys(get_args(Status), "Completed"),
    **{"failed": "Failed", "cancelled": "Canceled", "terminated": "Terminated", "timed_out": "TimedOut"},
}
"""Temporal's status of the runs with a status of ours."""
_LISTED_STATUSES = {*get_args(OpenStatus), *get_args(Status)}
"""The statuses that runs have as a search attribute, and not or not only as Temporal's status."""
_MEMO_TYPES: dict[str, type] = {
    **dict.fromkeys(("agent", TENANT_MEMO, STATUS_MEMO, PROMPT_MEMO, USER_MEMO), str),
    **{PENDING_MEMO: int, VERSION_MEMO: dict, RESUMED_FROM_MEMO: dict, FORKED_FROM_MEMO: dict},
}
SCHEDULED_BY = SearchAttributeKey.for_keyword("TemporalScheduledById")
"""The schedule that started a workflow: Temporal sets it."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Times of the server are nanoseconds in 64 bits."""
PARALLEL_READS = 20
"""Runs whose results are read at the same time."""
MOST_PAGES = 20
"""Pages of visibility that are read for one page of runs: a filter may leave out most of what is read."""


class StatusError(ValueError):
    """A text is not the status of a run. The message has no subject: "is 'x'; it must be one of …"."""


class CursorError(ValueError):
    """A text is not the cursor of a page. The message has no subject."""


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """Which runs: all but those of sub-agents; the open ones, then the others, the one that ended last first.

    `status`: a word of `wire/run_status.py`. `since` and `until`: when they started. `id_prefix`: how their ids begin.
    `forked_from`: the id of the run that they were forked from. `may_see` decides on each run that the other conditions
    select.
    """

    status: str | None = None
    agent: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    sub_agents: bool = False
    id_prefix: str | None = None
    forked_from: str | None = None
    may_see: Callable[[WorkflowExecution], Awaitable[bool]] | None = None

    def check(self) -> None:
        """Check it without a server.

        Raises:
            StatusError: `status` is not a status.
        """
        if self.status is not None:
            _temporal_status(self.status.lower())

    async def selects(self, execution: WorkflowExecution) -> bool:
        """Whether a run is wanted. Its memo decides on what Temporal cannot search."""
        memo = await memo_of(execution)
        if self.agent not in (None, memo.get("agent")):
            return False
        if self.tenant not in (None, memo.get(TENANT_MEMO)):
            return False
        if self.forked_from not in (None, origin_of(memo).get("forked_from", {}).get("id")):
            return False
        return self.may_see is None or await self.may_see(execution)


@dataclass(frozen=True)
class RunPage:
    """A page of runs. `next`: the cursor of the next page; None at the end."""

    runs: list[dict[str, Any]]
    next: str | None


async def _visibility_query(client: Client, query: RunQuery) -> str:
    """The query in Temporal's language."""
    # Workflows of a user's own are listed, too: nothing that can be searched says that they have agents.
    # A chain of workflow runs after continue-as-new is one run to its user: only the newest is listed.
    unlisted = (AGENTS_WORKFLOW, *all_words().unlisted)
    conditions = ['ExecutionStatus != "ContinuedAsNew"', *(f'WorkflowType != "{each}"' for each in unlisted)]
    if not query.sub_agents:
        conditions.append("ParentWorkflowId IS NULL")
    if query.status is not None:
        conditions.append(f'ExecutionStatus = "{_temporal_status(query.status.lower())}"')
    if query.since is not None:
        conditions.append(f'StartTime >= "{_utc(query.since)}"')
    if query.until is not None:
        conditions.append(f'StartTime < "{_utc(query.until)}"')
    if query.id_prefix:
        conditions.append(f"WorkflowId STARTS_WITH {_quoted(query.id_prefix)}")
    return " AND ".join([*conditions, *await _attribute_conditions(client, query)])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _utc(at: datetime) -> str:
    """A time in UTC, which it also is without an offset. No run started before the first one, or after the last one."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at.astimezone(UTC) if _FIRST < at < _LAST else _FIRST if at <= _FIRST else _LAST).isoformat()


async def _attribute_conditions(client: Client, query: RunQuery) -> list[str]:
    """What the server can select by search attributes, as far as it has them. Other runs may have none: all are checked."""
    status = query.status.lower() if query.status else None
    wanted = {AGENT_ATTRIBUTE.name: query.agent, STATUS_ATTRIBUTE.name: status if status in _LISTED_STATUSES else None}
    if not any(wanted.values()) and query.forked_from is None:
        return []
    names = await RegisteredAttributes().names(client)
    of_origin = []
    if query.forked_from is not None and ORIGIN_ATTRIBUTE.name in names:  # each fork is started with it
        of_origin = [f"{ORIGIN_ATTRIBUTE.name} = {_quoted(listed_origin(query.forked_from))}"]
    return of_origin + [
        f"({name} = {_quoted(value)} OR {name} IS NULL)"
        for name, value in wanted.items()
        if value is not None and name in names
    ]


async def find_runs(client: Client, query: RunQuery, *, limit: int, cursor: str | None = None) -> RunPage:
    """A page of at most `limit` runs. It may have fewer, or none, and still have a next page.

    Raises:
        StatusError: `status` is not a status.
        CursorError: `cursor` is not that of a page.
        RPCError: Temporal does not answer.
    """
    token, skip = _parse_cursor(cursor)
    runs: list[dict[str, Any]] = []
    pages = client.list_workflows(await _visibility_query(client, query), page_size=limit, next_page_token=token)
    for _ in range(MOST_PAGES):
        token = pages.next_page_token
        await pages.fetch_next_page()
        executions = list(pages.current_page or ())
        candidates = list(enumerate(executions))[skip:]
        selected = await asyncio.gather(*(query.selects(execution) for _, execution in candidates))
        wanted = [each for each, is_wanted in zip(candidates, selected, strict=True) if is_wanted]
        for start in range(0, len(wanted), PARALLEL_READS):
            batch = wanted[start : start + PARALLEL_READS]
            described = await asyncio.gather(*(describe_run(client, execution) for _, execution in batch))
            for (number, _), run in zip(batch, described, strict=True):
                if query.status is not None and run["status"] != query.status.lower():
                    continue
                runs.append(run)
                if len(runs) == limit:
                    is_last = number + 1 >= len(executions)
                    rest = (pages.next_page_token, 0) if is_last else (token, number + 1)
                    return RunPage(runs, _cursor(*rest))
        skip = max(0, skip - len(executions))
        if not pages.next_page_token:
            break
    return RunPage(runs, _cursor(pages.next_page_token, skip if pages.next_page_token else 0))


async def first_runs(client: Client, query: RunQuery, limit: int) -> list[dict[str, Any]]:
    """The first runs of a query, from as many pages as that takes.

    Raises:
        StatusError, RPCError: as for `find_runs`.
    """
    runs: list[dict[str, Any]] = []
    cursor = None
    while len(runs) < limit:
        page = await find_runs(client, query, limit=limit - len(runs), cursor=cursor)
        runs += page.runs
        if (cursor := page.next) is None:
            break
    return runs


async def describe_run(client: Client, execution: WorkflowExecution) -> dict[str, Any]:
    """A run as JSON: its id, agent, status, start and duration; the first line of its task; the run that it was forked from;
    and who started it, as far as that is known: its user, the run that called it, or a schedule.
    """
    memo = await memo_of(execution)
    return {
        "id": execution.id,
        "agent": memo.get("agent"),
        **_version(memo),
        **({"tenant": memo["tenant"]} if memo.get("tenant") else {}),
        **({"prompt": first_line(memo[PROMPT_MEMO])} if memo.get(PROMPT_MEMO) else {}),
        **({"user": beginning(memo[USER_MEMO], USER_CHARS)} if memo.get(USER_MEMO) else {}),
        **({"type": execution.workflow_type} if execution.workflow_type != AGENT_WORKFLOW else {}),
        **({"parent": execution.parent_id} if execution.parent_id else {}),
        **origin_of(memo),
        **({"schedule": schedule} if (schedule := execution.typed_search_attributes.get(SCHEDULED_BY)) else {}),
        "status": await _status(client, execution, memo),
        "started": iso(execution.start_time, "microseconds"),
        "seconds": ((execution.close_time or datetime.now(UTC)) - execution.start_time).total_seconds(),
    }


def _version(memo: dict[str, Any]) -> dict[str, str]:
    """The version of the run's agent, and its label and share, where the agent is a file."""
    listed = memo.get(VERSION_MEMO, {})
    names = {"digest": "version", "label": "label", "share": "share"}
    return {to: value for name, to in names.items() if isinstance(value := listed.get(name), str)}


def origin_of(memo: dict[str, Any], kind: Kind = "fork") -> dict[str, dict[str, Any]]:
    """{`forked_from`: {`id`, `run_id`, `step`}} of a fork, or {`resumed_from`: {`id`, `run_id`}}; {} of any other run."""
    listed, step = memo.get(ORIGIN_MEMO[kind], {}), ("step",) if kind == "fork" else ()
    if not isinstance(listed.get("id"), str) or not all(isinstance(listed.get(name), int) for name in step):
        return {}
    return {ORIGIN_MEMO[kind]: {name: listed.get(name) for name in ("id", "run_id", *step)}}


async def memo_of(execution: WorkflowExecution) -> dict[str, Any]:
    """The memo of a run; empty if it cannot be decoded here, so that the other runs are still listed."""
    return await readable_memo(execution) or {}


async def readable_memo(execution: WorkflowExecution) -> dict[str, Any] | None:
    """The memo of a run; None if it cannot be decrypted here.

    The memo of somebody else's workflow may have anything under any name: the entries that lists read are left out of it
    where they have another type, and all of them where they are not JSON.
    """
    try:
        memo = await execution.memo()
    except UNDECODABLE as error:
        return None if explain_unreadable_data(error) else {}
    return {name: value for name, value in memo.items() if isinstance(value, _MEMO_TYPES.get(name, object))}


async def _status(client: Client, execution: WorkflowExecution, memo: dict[str, Any]) -> str:
    """The status of a run: its own while it is open, its result's if that can be read, or else Temporal's."""
    if execution.status == WorkflowExecutionStatus.RUNNING:
        # The search attribute can be read where the memo is encrypted with another key.
        listed = {memo.get(STATUS_MEMO), execution.typed_search_attributes.get(STATUS_ATTRIBUTE)}
        return "waiting" if "waiting" in listed else "running"
    if execution.status == WorkflowExecutionStatus.COMPLETED and execution.workflow_type != AGENT_WORKFLOW:
        return "completed"  # its result is the user's, whatever its fields mean
    if execution.status != WorkflowExecutionStatus.COMPLETED:
        return status_in_temporal(execution.status.name) if execution.status else "unknown"
    read_result: Callable[..., Awaitable[Any]] = client.get_workflow_handle(
        execution.id, run_id=execution.run_id
    ).result
    try:
        result = await read_result(follow_runs=False)
    except (RPCError, WorkflowContinuedAsNewError):  # the latter: the next run of a cron schedule follows
        return "completed"
    except Exception as error:
        if not (isinstance(error, UNDECODABLE) or explain_unreadable_data(error)):
            raise
        return "completed"
    return str(result.get("status", "completed")) if isinstance(result, dict) else "completed"


def _temporal_status(wanted: str) -> str:
    """Temporal's status of the runs whose status may be the wanted one. A result's status is not known to Temporal."""
    if wanted not in _IN_TEMPORAL:
        raise StatusError(f"is {wanted[:80]!r}; it must be one of: {', '.join(STATUSES)}.")
    return _IN_TEMPORAL[wanted]


def _cursor(token: bytes | None, skip: int) -> str | None:
    if not token and not skip:
        return None
    text = base64.b64encode(token or b"").decode()
    return base64.urlsafe_b64encode(json.dumps([text, skip, _checksum(text, skip)]).encode()).decode()


def _checksum(token: str, skip: int) -> str:
    """Temporal's server answers a token that is not its own as if it had failed, and the SDK asks again for 10 s."""
    return hashlib.sha256(f"{token} {skip}".encode()).hexdigest()[:16]


def _parse_cursor(cursor: str | None) -> tuple[bytes | None, int]:
    if not cursor:
        return None, 0
    try:
        token, skip, checksum = json.loads(base64.urlsafe_b64decode(cursor))
        if checksum != _checksum(token, skip):
            raise _not_a_cursor(cursor)
        return base64.b64decode(token, validate=True) or None, max(0, int(skip))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise _not_a_cursor(cursor) from None


def _not_a_cursor(cursor: str) -> CursorError:
    return CursorError(f"is {cursor[:80]!r}; give the `next` of the page before.")
