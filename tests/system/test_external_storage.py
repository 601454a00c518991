"""External storage in S3, served over HTTP by moto."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from temporalio.api.common.v1 import Payload
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.external_storage import external_storage
from mulligan.devserver import temporal_server
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab
from tests.support.large_payload_agent import MEGABYTE, noise
from tests.support.ports import free_ports
from tests.support.temporal import connect_to
from tests.system.features.test_long_conversations import KEYS, all_messages, given, is_whole, runs_of

BUCKET = "runs-of-ours"


@pytest.fixture
async def s3(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """An S3 client of a moto server with a bucket; AWS's environment variables point to it."""
    [port] = free_ports(1)
    settings = {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "a-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    program = Path(sys.executable).parent / "moto_server"
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(
        program, "-H", "127.0.0.1", "-p", str(port), stdout=quiet, stderr=quiet
    )
    try:
        client = boto3.client("s3")
        while True:
            try:
                await asyncio.to_thread(client.create_bucket, Bucket=BUCKET)
                break
            except BotoCoreError:
                assert server.returncode is None
                await asyncio.sleep(0.1)
        yield client
        client.close()
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


@pytest.mark.parametrize("keys", ["", KEYS], ids=["open", "encrypted"])
async def test_a_long_conversation_continues_as_new_through_an_s3_bucket(
    lab: Lab, s3: Any, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """Objects are below the prefix of the setting."""
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", f"s3://{BUCKET}/team/a")
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    texts = [noise(MEGABYTE, n) for n in range(4)]
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=20"]) as server:
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"s3-{uuid.uuid4().hex[:6]}")
        async with running_worker(client, load(["tests.support.large_payload_agent"]), lab.telemetry, at.task_queue):
            handle = await at.start([*given("noise", 4), DONE], agent="large")
            await is_whole(at, handle, texts)
            assert [m["text"] for m in await all_messages(handle) if m["role"] == "tool"] == texts
            assert await runs_of(at, handle.id) >= 2
            for stored in s3.list_objects_v2(Bucket=BUCKET)["Contents"]:
                assert stored["Key"].startswith("team/a/v0/ns/default/wt/AgentWorkflow/")
                body = s3.get_object(Bucket=BUCKET, Key=stored["Key"])["Body"].read()
                if keys:
                    assert not any(text[:100].encode() in body for text in texts)
                s3.delete_object(Bucket=BUCKET, Key=stored["Key"])
            with pytest.raises(Exception, match="S3StorageDriver retrieve failed") as raised:
                await _result_of_first_tool(client, handle)
            assert "NoSuchKey" in explain_unreadable_data(raised.value)


async def _result_of_first_tool(client: Any, handle: Any) -> None:
    async for event in client.get_workflow_handle(
        handle.id, run_id=handle.first_execution_run_id
    ).fetch_history_events():
        if event.HasField("activity_task_completed_event_attributes"):
            await client.data_converter.decode(event.activity_task_completed_event_attributes.result.payloads)


async def test_a_reference_to_another_bucket_is_not_read(s3: Any) -> None:
    """Only the bucket of the setting is read."""
    s3.create_bucket(Bucket="theirs")
    s3.put_object(Bucket="theirs", Key="secret", Body=Payload(data=b"x").SerializeToString())
    storage = external_storage(f"s3://{BUCKET}")
    claim = StorageDriverClaim({"bucket": "theirs", "key": "secret", "hash_algorithm": "sha256", "hash_value": "0"})
    with pytest.raises(RuntimeError) as raised:
        await storage.drivers[0].retrieve(StorageDriverRetrieveContext(), [claim])
    assert "names the bucket 'theirs'" in explain_unreadable_data(raised.value)


async def test_a_missing_bucket_is_named_in_the_error(s3: Any) -> None:
    """With the error of S3."""
    storage = external_storage("s3://nobodys/runs")
    with pytest.raises(RuntimeError, match="bucket=nobodys") as raised:
        await storage._store_payload(Payload(data=bytes(MEGABYTE)))
    assert isinstance(raised.value.__cause__, ClientError)
    assert "NoSuchBucket" in explain_unreadable_data(raised.value)
