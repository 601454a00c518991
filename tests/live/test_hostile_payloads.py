"""Payloads that no converter reads, wherever a client can put one: the run still answers queries, `stop` and cancel."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Header, Memo, Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    RecordActivityTaskHeartbeatByIdRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

from mulligan import InvalidRunInputError, connect, error_of
from mulligan.client.encryption import EncryptionCodec
from mulligan.client.follow_events import EventFollower, follow
from mulligan.client.heartbeat_details import heartbeat_details
from mulligan.client.wait_reader import WaitReader
from mulligan.wire.live_text_in import live_text_in
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.promise.test_people import REFUND, pending
from tests.support.lab import DONE, Lab, call
from tests.support.own_worker import serving
from tests.support.people_agents import wake

OLD_REFERENCE = b"json/external-storage-reference"
MARKED = {"__temporal_external_storage_reference": b"true"}
ENCODINGS = [
    *(b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf", b"binary/protobuf", OLD_REFERENCE),
    *(b"binary/encrypted", b"binary/mulligan-refused", b"other/codec", b"", b"\xff"),
]
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "encoding": st.sampled_from(ENCODINGS),
        "messageType": st.sampled_from([b"temporal.api.sdk.v1.ExternalStorageReference", b"x", b"\xff"]),
        "encryption-key-id": st.sampled_from([b"nobody's", b"\xff"]),
        "mulligan-retry": st.sampled_from([b"1", b"not here"]),
        "mulligan-arguments": st.sampled_from([b"2", b"\xff"]),
        "mulligan-chain": st.just(b"x"),
        **{name: st.just(value) for name, value in MARKED.items()},
    },
)
DATA = st.sampled_from(
    [
        *(b"", b"{}", b"null", b"[]", b"7", b'"x"', b"\xff", b"[" * 5_000, b'{"reason": 5}', b'{"reason": "\\ud800"}'),
        b'{"driver_name": "mulligan.folder", "driver_claim": {"claim_data": {"sha256": "' + b"0" * 64 + b'"}}}',
        b'{"driverName": "mulligan.folder", "claimData": {"sha256": "' + b"0" * 64 + b'"}}',
    ]
) | st.binary(max_size=50)
PAYLOAD = st.builds(lambda metadata, data: Payload(metadata=metadata, data=data), METADATA, DATA)
ARGUMENTS = st.lists(PAYLOAD, max_size=3)
PLACES = ["signal hello", "signal stop", "signal batch_answered", "update", "memo", "header"]


SOON = Duration(seconds=2)
"""The timeout of workflow tasks that fail again and again: the SDK reports the first failure of one, and lets the server wait for those after it."""
EXAMPLES = int(os.environ.get("PAYLOAD_EXAMPLES", "5"))
"""Random lists of payloads for each place; 100 for the longer form."""
NOBODY_HAS = Payload(metadata={"encoding": OLD_REFERENCE}, data=b"{}")


def examples(count: int) -> list[list[Payload]]:
    """Lists of payloads: what was reported, and random ones, each time others."""
    found = [[NOBODY_HAS]]

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(ARGUMENTS)
    def add(payloads: list[Payload]) -> None:
        note = [payload.SerializeToString() for payload in payloads]
        print(note)  # pytest shows it if the test fails
        found.append(payloads)

    add()
    return found


@pytest.fixture(scope="module")
async def plain(lab: Lab) -> AsyncIterator[Lab]:
    """A worker without keys and storage."""
    queue = f"payloads-{uuid.uuid4().hex[:6]}"
    modules = ["tests.support.people_agents", "tests.support.shop_agents"]
    async with running_worker(lab.client, load(modules), lab.telemetry, queue):
        yield replace(lab, task_queue=queue)


async def send(at: Lab, handle: Any, name: str, *payloads: Payload) -> None:
    """Send a signal with payloads as they are."""
    request = SignalWorkflowExecutionRequest(
        namespace=at.client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=handle.id),
        signal_name=name,
        input=Payloads(payloads=payloads),
    )
    await at.client.workflow_service.signal_workflow_execution(request)


async def waiting_run(
    at: Lab,
    memo: dict[str, Payload] | None = None,
    header: dict[str, Payload] | None = None,
    task_timeout: Duration | None = None,
) -> Any:
    """A run that waits for approval, started with that memo and header."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    at.model.script(run_id, [call("refund", REFUND), DONE])
    given = {"agent": "desk", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    await at.client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=at.client.namespace,
            workflow_id=run_id,
            request_id=run_id,
            workflow_type=WorkflowType(name="AgentWorkflow"),
            task_queue=TaskQueue(name=at.task_queue),
            input=Payloads(payloads=await at.client.data_converter.encode([given])),
            workflow_task_timeout=task_timeout,
            memo=Memo(fields=memo or {}),
            header=Header(fields=header or {}),
        )
    )
    handle = at.client.get_workflow_handle(run_id)
    await pending(handle)
    return handle


async def assert_no_task_failed(handle: Any) -> None:
    history = await handle.fetch_history()
    failed = [e for e in history.events if e.HasField("workflow_task_failed_event_attributes")]
    assert not failed, failed[0].workflow_task_failed_event_attributes.failure.message


async def put(at: Lab, place: str, payloads: list[Payload]) -> Any:
    """Put the payloads there; returns the run, which waits for approval."""
    fields = {str(number): payload for number, payload in enumerate(payloads)}
    memo, header = fields if place == "memo" else None, fields if place == "header" else None
    handle = await waiting_run(at, memo, header)
    kind, _, name = place.partition(" ")
    if kind == "signal":
        await send(at, handle, name, *payloads)
    elif kind == "update":
        with pytest.raises((WorkflowUpdateFailedError, RPCError)):
            await handle.execute_update("decide", args=[RawValue(each) for each in payloads])
    return handle


@pytest.mark.parametrize("place", PLACES)
async def test_a_run_answers_and_stops_whatever_payload_a_client_has_put_there(plain: Lab, place: str) -> None:
    async def check(payloads: list[Payload]) -> None:
        handle = await put(plain, place, payloads)
        if place == "signal stop":
            assert (await handle.result())["status"] == "stopped"
        else:
            assert (await handle.query("progress"))["status"] == "waiting"
            assert await handle.execute_update("stop", {"reason": "enough"}) == {"accepted": True}
            assert (await handle.result())["reason"] == "enough"
        await assert_no_task_failed(handle)

    await asyncio.gather(*map(check, examples(EXAMPLES)))


async def start(at: Lab, *payloads: Payload, run_id: str = "", task_timeout: Duration | None = None) -> Any:
    """Start a run with payloads as they are."""
    run_id = run_id or f"input-{uuid.uuid4().hex[:8]}"
    await at.client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=at.client.namespace,
            workflow_id=run_id,
            request_id=run_id,
            workflow_type=WorkflowType(name="AgentWorkflow"),
            task_queue=TaskQueue(name=at.task_queue),
            input=Payloads(payloads=payloads),
            workflow_task_timeout=task_timeout,
        )
    )
    return at.client.get_workflow_handle(run_id)


async def failure_of(handle: Any) -> str:
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, ApplicationError)
    assert raised.value.cause.type == "InvalidRunInputError", raised.value.cause
    return str(error_of(raised.value))


async def test_a_run_with_any_payload_as_its_input_fails_once(plain: Lab) -> None:
    async def check(payloads: list[Payload]) -> None:
        handle = await start(plain, *payloads)
        await failure_of(handle)
        await assert_no_task_failed(handle)

    await asyncio.gather(*map(check, examples(2 * EXAMPLES)))
    assert "MULLIGAN_EXTERNAL_STORAGE is not set" in await failure_of(await start(plain, NOBODY_HAS))


async def test_a_stop_signal_that_cannot_be_read_stops_the_run_and_the_run_says_so(plain: Lab) -> None:
    handle = await waiting_run(plain)
    await send(plain, handle, "stop", NOBODY_HAS)
    result = await handle.result()
    assert result["status"] == "stopped"
    assert "could not be read" in result["reason"]


@pytest.fixture(params=["ours", "own"])
async def stored(
    plain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Lab, Path]]:
    """A worker with a storage in a folder, and with a key: of each kind."""
    folder = tmp_path / "storage"
    folder.mkdir()
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", folder.as_uri())
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"ours:{'A' * 43}=")
    client = await connect(plain.client.service_client.config.target_host, namespace=plain.client.namespace)
    at = replace(plain, client=client, task_queue=f"stored-{uuid.uuid4().hex[:6]}")
    async with serving(request.param, client, ["tests.support.people_agents"], plain.telemetry, at.task_queue):
        yield at, folder


async def tried_again(handle: Any, attempts: int = 2) -> None:
    """Wait until the workflow task has failed that often."""
    while True:
        described = (await handle.describe()).raw_description
        if described.pending_workflow_task.attempt > attempts:
            return
        await asyncio.sleep(0.05)


async def test_a_file_that_is_not_in_the_storage_fails_the_start_and_a_storage_that_is_away_does_not(
    stored: tuple[Lab, Path],
) -> None:
    at, folder = stored
    run_id = f"input-{uuid.uuid4().hex[:8]}"
    at.model.script(run_id, [DONE])
    given = {"agent": "desk", "prompt": "x" * 700_000, "model": f"openai-chat:{run_id}"}
    [reference] = await at.client.data_converter.encode([given])
    assert len(reference.data) < 1_000
    away = folder.rename(folder.with_name("away"))
    handle = await start(at, reference, run_id=run_id, task_timeout=SOON)
    await tried_again(handle)
    away.rename(folder)
    assert (await handle.result())["status"] == "completed"
    for file in folder.glob("*/*"):
        file.unlink()
    assert "is not there" in await failure_of(await start(at, reference))


async def test_a_run_that_waits_for_a_key_can_be_cancelled_and_signals_do_not_wait(stored: tuple[Lab, Path]) -> None:
    at, _ = stored
    [unknown] = await EncryptionCodec({"theirs": b"x" * 32}).encode([Payload(metadata={"encoding": b"json/plain"}, data=b"1")])  # fmt: skip
    handle = await start(at, unknown, task_timeout=SOON)
    await tried_again(handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, CancelledError) or isinstance(error_of(raised.value), InvalidRunInputError)
    handle = await waiting_run(at, task_timeout=SOON)
    await send(at, handle, "hello", unknown)
    assert (await handle.query("progress"))["status"] == "waiting"
    await send(at, handle, "batch_answered", unknown)
    await tried_again(handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, CancelledError)
    handle = await waiting_run(at, task_timeout=SOON)
    await send(at, handle, "stop", unknown)
    assert (await handle.result())["status"] == "stopped"


async def test_a_heartbeat_that_cannot_be_decoded_is_passed_over(plain: Lab) -> None:
    """Of a tool, and of a model that is writing: followers go on, and those who ask what the run waits for get an answer."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    plain.model.script(run_id, [call("nap", '{"seconds": 600}'), DONE])
    given = {"agent": "desk", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    handle = await plain.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=plain.task_queue)
    while not (await handle.query("progress"))["running"]:
        await asyncio.sleep(0.02)
    follower = EventFollower(plain.client, run_id, "", 0.05)
    assert [event.type async for event in follower.stored_events()][-1] == "tool_call_started"
    for payloads in examples(2 * EXAMPLES):
        described = await handle.describe()
        [activity] = described.raw_description.pending_activities
        request = RecordActivityTaskHeartbeatByIdRequest(
            namespace=plain.client.namespace,
            workflow_id=run_id,
            activity_id=activity.activity_id,
            details=Payloads(payloads=payloads),
        )
        await plain.client.workflow_service.record_activity_task_heartbeat_by_id(request)
        activity.heartbeat_details.CopyFrom(request.details)  # the server may show it later
        assert [event async for event in follower._progress(described)] == []
        assert live_text_in(await heartbeat_details(plain.client, activity)) is None
        assert await WaitReader(plain.client)._pending_call(activity)
    await wake()
    types = [event.type async for event in follow(plain.client, run_id, every=0.05)]
    assert types[-1] == "run_ended"
    assert (await handle.result())["status"] == "completed"
