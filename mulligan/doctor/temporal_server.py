"""Checks of the Temporal server: connection, namespace, search attributes, clock, and the workers that poll."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetSystemInfoRequest,
    PollWorkflowTaskQueueRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.pollers import RECENT_POLL, last_polls, recent_pollers
from mulligan.client.registered_attributes import read_registered_attributes
from mulligan.client.served_agents import ServedAgents, without_tag
from mulligan.doctor.finding import Finding
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES

REQUEST_TIMEOUT = timedelta(seconds=5)
CLOCK_TOLERANCE = 2.0
"""Seconds by which two clocks may differ: more, and the times of spans and of waits mislead."""
SHOWN_WORKERS = 3
_WORKFLOWS, _ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


async def check_server(client: Client) -> list[Finding]:
    """The server's version, and how long it takes to answer."""
    began = time.monotonic()
    try:
        info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=REQUEST_TIMEOUT)
    except RPCError as error:
        return [Finding("server", "problem", f"{_address(client)} does not answer: {error.message}")]
    took = (time.monotonic() - began) * 1000
    return [Finding("server", "ok", f"{_address(client)}, Temporal {info.server_version}, answers in {took:.0f} ms")]


async def check_namespace(client: Client) -> list[Finding]:
    """Whether the namespace exists, and for how long it keeps runs that have ended."""
    name = client.namespace
    try:
        request = DescribeNamespaceRequest(namespace=name)
        described = await client.workflow_service.describe_namespace(request, timeout=REQUEST_TIMEOUT)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            create = f"`temporal operator namespace create -n {name}`"
            return [
                Finding(
                    "namespace", "problem", f"{name!r} does not exist; set TEMPORAL_NAMESPACE, or create it: {create}"
                )
            ]
        return [Finding("namespace", "problem", f"{name!r} cannot be read: {error.message}; see TEMPORAL_API_KEY")]
    retention = described.config.workflow_execution_retention_ttl.ToTimedelta()
    return [Finding("namespace", "ok", f"{name!r} keeps ended runs for {_days(retention)}")]


async def check_search_attributes(client: Client) -> list[Finding]:
    """Whether the server has Mulligan's search attributes, so that its lists can be filtered by agent and status."""
    try:
        registered = await read_registered_attributes(client)
    except RPCError as error:
        text = f"the server does not say which search attributes it has: {error.message}; run this check again"
        return [Finding("search", "warning", text)]
    missing = [each.name for each in SEARCH_ATTRIBUTES if each.name not in registered]
    if not missing:
        return [Finding("search", "ok", f"the search attributes {' and '.join(sorted(registered))} are registered")]
    create = "temporal operator search-attribute create " + " ".join(
        f"--name {name} --type Keyword" for name in missing
    )
    text = f"Temporal's lists cannot be filtered by {' and '.join(missing)}; register them: `{create}`"
    return [Finding("search", "warning", text)]


async def check_clock(client: Client) -> list[Finding]:
    """Compare this machine's clock with the server's.

    The server does not tell its time, but it lists when a task queue was last polled: a queue for this purpose is polled.
    """
    queue = f"mulligan-doctor-{uuid.uuid4()}"
    poll = PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), identity="doctor")
    began = datetime.now(UTC)
    polling = asyncio.create_task(client.workflow_service.poll_workflow_task_queue(poll, timeout=REQUEST_TIMEOUT))
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT.total_seconds()):
            polled = await _first_poll(client, queue)
    except (RPCError, TimeoutError):
        return [Finding("clock", "warning", "it could not be compared with the server's")]
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    ended = datetime.now(UTC)
    off = max((began - polled).total_seconds(), (polled - ended).total_seconds(), 0.0)
    if off <= CLOCK_TOLERANCE:
        return [Finding("clock", "ok", f"it differs from the server's by less than {CLOCK_TOLERANCE:g} s")]
    direction = "ahead of" if polled < began else "behind"
    return [Finding("clock", "warning", f"it is {off:.0f} s {direction} the server's; synchronize both (NTP)")]


async def check_task_queue(client: Client, queue: str, agents: Sequence[str]) -> list[Finding]:
    """Which workers poll a task queue, and whether they serve these agents. `agents` is empty where none were loaded."""
    name = f"queue {queue}"
    try:
        polling = [await recent_pollers(client, queue, kind, REQUEST_TIMEOUT) for kind in (_WORKFLOWS, _ACTIVITIES)]
    except RPCError as error:
        return [Finding(name, "problem", f"its workers cannot be read: {error.message}")]
    identities = sorted({identity for identities in polling for identity in identities})
    if not identities:
        start = f"mulligan worker --load MODULE{'' if queue == 'agents' else f' --task-queue {queue}'}"
        return [Finding(name, "problem", f"no worker polls it, so its runs make no progress; start one: `{start}`")]
    names = ", ".join(without_tag(identity) for identity in identities[:SHOWN_WORKERS])
    more = f" and {len(identities) - SHOWN_WORKERS} more" if len(identities) > SHOWN_WORKERS else ""
    findings = [
        Finding(
            name,
            "ok",
            f"{len(identities)} {'worker has' if len(identities) == 1 else 'workers have'} polled it in the last "
            f"{RECENT_POLL.total_seconds():.0f} s: {names}{more}",
        )
    ]
    tag = ServedAgents(queue, frozenset(agents)).tag
    if agents and not any(identity.endswith(tag) for identity in identities):
        text = (
            f"none of its workers serves exactly {', '.join(agents)}; give this command the --load and --agents of the "
            "worker, or start a worker with those of this command"
        )
        findings.append(Finding(name, "warning", text))
    return findings


async def _first_poll(client: Client, queue: str) -> datetime:
    """When the queue was polled, as soon as it was."""
    while True:
        if polls := await last_polls(client, queue, _WORKFLOWS, REQUEST_TIMEOUT):
            return max(polls.values())
        await asyncio.sleep(0.05)


def _address(client: Client) -> str:
    return client.service_client.config.target_host


def _days(period: timedelta) -> str:
    hours = period.total_seconds() / 3600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"
