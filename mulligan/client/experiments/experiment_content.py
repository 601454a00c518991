"""The content of an experiment in its first event: compressed JSON, which clients write and activities read."""

from __future__ import annotations

import asyncio

import zstandard
from pydantic import ValidationError
from temporalio.client import Client

from mulligan.client.external_storage import CARRY_BYTES
from mulligan.client.start_run import read_start
from mulligan.client.unless_missing import unless_missing
from mulligan.wire.experiments import ExperimentContent

PACKED_BYTES = 1_800_000
"""Bytes of compressed JSON at most. The server refuses 2 MB."""
MOST_BYTES = 256_000_000
"""Bytes of JSON at most: a few compressed bytes can contain gigabytes."""


class ExperimentError(Exception):
    """An experiment cannot be started or read. The message says why, and what to do."""


def pack_content(content: ExperimentContent, *, is_stored: bool) -> bytes:
    """Compress the content. `is_stored`: whether large payloads go to external storage.

    Raises:
        ExperimentError: it is too large.
    """
    data = content.model_dump_json().encode()
    packed = zstandard.compress(data)
    most = CARRY_BYTES if is_stored else PACKED_BYTES
    if len(packed) > most or len(data) > MOST_BYTES:
        raise ExperimentError(
            f"The cases have {len(data):,} bytes, compressed {len(packed):,}; the limits are {MOST_BYTES:,} and {most:,}. "
            "Give fewer of them, or set MULLIGAN_EXTERNAL_STORAGE."
        )
    return packed


async def read_content(client: Client, workflow_id: str, first_run_id: str) -> ExperimentContent:
    """The content of an experiment.

    Raises:
        ExperimentError: its first event is no longer there, or has no such content.
        RPCError: Temporal does not answer.
    """
    first = client.get_workflow_handle(workflow_id, run_id=first_run_id)
    start = await unless_missing(read_start(first))
    if start is None:
        raise ExperimentError("The beginning of the experiment is no longer on this server: its retention is over.")
    arguments = await client.data_converter.decode(start.input.payloads)
    return await asyncio.to_thread(_unpack, arguments[-1] if arguments else None)


def _unpack(packed: object) -> ExperimentContent:
    try:
        if not isinstance(packed, bytes):
            raise ValueError("it is not compressed")
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError("it is too large")
        return ExperimentContent.model_validate_json(data)
    except (ValueError, zstandard.ZstdError, MemoryError) as error:
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        raise ExperimentError(f"The content of the experiment cannot be read: {why}.") from None
