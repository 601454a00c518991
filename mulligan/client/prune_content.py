"""Deletes content that has not been used for a long time, unless a run that may still refer to it is open."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution

from mulligan.client.content_store import configured_content_files
from mulligan.client.find_runs import origin_of, readable_memo
from mulligan.client.stored_files import StoredFiles
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.errors import DeclarationError
from mulligan.wire.agent_list import AGENTS_WORKFLOW

SHORTEST = timedelta(hours=1)
"""The shortest time: content is stored before its run is started, and a read within an hour does not make it new."""
PARALLEL_READS = 20


class OpenRunsError(Exception):
    """A run that may refer to the content is open."""


@dataclass(frozen=True)
class Pruned:
    """What was deleted: the number of files and their bytes."""

    files: int
    bytes: int


async def prune_content(client: Client, older_than: timedelta, *, dry_run: bool = False, force: bool = False) -> Pruned:
    """Delete the content that was neither stored nor read for longer than a time.

    A run stores or reads its content when it starts. So a run that began less than `older_than` ago refers to nothing older.

    Args:
        client: A client of the server whose runs use the storage.
        older_than: The time, an hour or more.
        dry_run: Whether the content is only counted.
        force: Whether it is deleted even if older runs are open.

    Raises:
        OpenRunsError: a run that began earlier is open.
        DeclarationError: there is no folder of content, or `older_than` is too short.
        StorageError: a file cannot be deleted.
        RPCError: Temporal does not answer.
    """
    if older_than < SHORTEST:
        raise DeclarationError(f"--older-than is {older_than}; it must be an hour or more.")
    files = configured_content_files()
    if files is None:
        raise DeclarationError(
            "There is no content storage: set MULLIGAN_CONTENT_DIR or MULLIGAN_EXTERNAL_STORAGE to that of the workers."
        )
    if not isinstance(files, StoredFiles):
        raise DeclarationError(
            "A bucket does not record when content was last used; add a lifecycle rule to the bucket for the "
            "prefix content/ (docs/content.md)."
        )
    before = datetime.now(UTC) - older_than
    if not force and (workflow_id := await _find_open_since(client, before)) is not None:
        raise OpenRunsError(
            f"The run {workflow_id!r} is open, and may refer to content that old: it began before that time, or was forked "
            "from a run that did, or its memo cannot be decrypted here. Choose a longer time, or end the run; --force "
            "deletes nevertheless."
        )
    return Pruned(*await asyncio.to_thread(files.prune, before.timestamp(), dry_run=dry_run))


async def _find_open_since(client: Client, before: datetime) -> str | None:
    """The id of an open workflow that began before a time; None if there is none. Any workflow may have agents."""
    query = f'ExecutionStatus = "Running" AND WorkflowType != "{AGENTS_WORKFLOW}"'
    batch: list[WorkflowExecution] = []
    async for execution in client.list_workflows(query):
        batch.append(execution)
        if len(batch) == PARALLEL_READS:
            if (begun_id := await _find_begun(client, batch, before)) is not None:
                return begun_id
            batch = []
    return await _find_begun(client, batch, before)


async def _find_begun(client: Client, executions: list[WorkflowExecution], before: datetime) -> str | None:
    begun = await asyncio.gather(*(_has_begun(client, execution, before) for execution in executions))
    return next((execution.id for execution, is_old in zip(executions, begun, strict=True) if is_old), None)


async def _has_begun(client: Client, execution: WorkflowExecution, before: datetime) -> bool:
    """Whether a workflow began before a time, even if it was reset or has continued as new since; or the run did that it was
    forked from, whose recorded results it may get. A run whose memo cannot be decrypted here may be such a fork.
    """
    if execution.start_time < before:
        return True
    described = await unless_missing(client.get_workflow_handle(execution.id, run_id=execution.run_id).describe())
    if described is None:
        return False  # it has ended meanwhile
    original = described.raw_description.workflow_extended_info.original_start_time
    first_run_id = described.raw_description.workflow_execution_info.first_run_id
    if original.seconds and original.ToDatetime(UTC) < before:
        return True
    if first_run_id and first_run_id != execution.run_id:
        first = await unless_missing(client.get_workflow_handle(execution.id, run_id=first_run_id).describe())
        if first is None or first.start_time < before:  # None: the retention of the first run of the chain is over
            return True
    if (memo := await readable_memo(execution)) is None:
        return True  # it may be a fork
    if not (origin := origin_of(memo).get("forked_from")):
        return False
    forked = client.get_workflow_handle(origin["id"], run_id=origin["run_id"])
    described = await unless_missing(forked.describe(), MISSING_OR_INVALID)
    return described is None or await _has_begun(client, described, before)
