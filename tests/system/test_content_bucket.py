"""Content in a bucket, over S3's API: what is stored, under which key, and what happens when the bucket fails."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from mulligan.client.content_store import (
    ChangedContentError,
    ContentStore,
    MissingContentError,
    configured_content_store,
)
from mulligan.client.stored_files import MOST_BYTES, StorageError
from mulligan.content import digest_of
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.content_agents import MEGABYTE
from tests.support.content_files import PDF, png
from tests.support.lab import DONE, Lab, call
from tests.support.s3_server import S3Server, s3_server

DATA = png(5_000)
DIGEST = digest_of(DATA).removeprefix("sha256:")
KEYS = f"a:{base64.b64encode(bytes(range(32))).decode()}"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as (server, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", f"s3://{server.bucket}/team/a")
        monkeypatch.delenv("MULLIGAN_ENCRYPTION_KEYS", raising=False)
        yield server


def configured() -> ContentStore:
    store = configured_content_store()
    assert store is not None
    return store


@pytest.mark.parametrize("keys", ["", KEYS], ids=["open", "encrypted"])
async def test_content_is_one_object_below_the_prefix_and_encrypted_with_the_runs_keys(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    store = configured()
    assert [await store.put(DATA) for _ in range(2)] == [f"sha256:{DIGEST}"] * 2
    [(key, body)] = s3.objects().items()
    assert key.startswith("team/a/content/")
    assert (key.endswith(DIGEST), DATA[100:200] in body) == ((True, True) if not keys else (False, False))
    assert await store.get(f"sha256:{DIGEST}") == DATA
    with pytest.raises(MissingContentError, match="is not in the content storage"):
        await store.of("ada").get(f"sha256:{DIGEST}")
    await store.of("ada").put(DATA)
    assert len(s3.objects()) == 2
    # Storing the same again writes it again: the age by which lifecycle rules go is that of the last use.
    assert [method for method, path in s3.requests if method == "PUT" and path.endswith(key)] == ["PUT"] * 2


async def test_missing_changed_and_exchanged_objects_are_errors_that_name_the_content(s3: S3Server) -> None:
    store = configured()
    ref, other = await store.put(DATA), await store.put(PDF)
    keys = {key.rpartition("/")[2]: key for key in s3.objects()}
    s3.put(keys[DIGEST], s3.objects()[keys[other.removeprefix("sha256:")]])
    with pytest.raises(ChangedContentError, match="has another digest"):
        await store.get(ref)
    s3.put(keys[DIGEST], b"\xff\xff nothing")
    with pytest.raises(ChangedContentError, match="cannot be read"):
        await store.get(ref)
    s3.put(keys[DIGEST], bytes(MOST_BYTES + 1))
    with pytest.raises(StorageError, match="has more than 52,428,800 bytes"):
        await store.get(ref)
    s3.client.delete_object(Bucket=s3.bucket, Key=keys[DIGEST])
    with pytest.raises(MissingContentError):
        await store.get(ref)


async def test_a_busy_bucket_is_asked_again_and_a_failing_one_is_one_sentence(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = configured()
    s3.answers = ["503", "503"]
    ref = await store.put(DATA)
    s3.answers = ["503"]
    assert await store.get(ref) == DATA
    assert [method for method, _ in s3.requests] == ["PUT"] * 3 + ["GET"] * 2
    for answer, says in (("503", "SlowDown"), ("403", "AccessDenied")):
        s3.always = answer
        for request in (store.put(PDF), store.get(ref)):
            with pytest.raises(StorageError, match=says) as raised:
                await request
            assert "\n" not in str(raised.value)
            assert not str(raised.value).endswith("..")
            assert "a-secret" not in str(raised.value)
    s3.always = ""
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", "s3://nobodys-bucket/x")
    with pytest.raises(StorageError, match="NoSuchBucket"):
        await configured().put(DATA)


@pytest.mark.timeout(100)
async def test_a_silent_bucket_is_given_up_in_time(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the client's own timeout of a minute, the four requests would take longer than this test may."""
    monkeypatch.setattr("mulligan.client.external_storage.READ_SECONDS", 0.5)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    store = configured()
    s3.always = "silence"
    for request in (store.put(DATA), store.get(digest_of(DATA))):
        with pytest.raises(StorageError, match="timeout"):
            await request
    assert len(s3.requests) == 4


@pytest.mark.parametrize("keys", ["", KEYS], ids=["open", "encrypted"])
async def test_runs_use_a_bucket_and_go_on_after_it_was_busy(
    lab: Lab, s3: S3Server, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """A prompt's image is stored by the client, a result's by the worker; the model gets both, history has references."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    monkeypatch.setenv("MULLIGAN_PREFIX_CACHE_BYTES", "0")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    queue = f"bucket-{uuid.uuid4().hex[:6]}"
    client = await lab.another_client()
    prompt = [{"type": "image", "data": base64.b64encode(DATA).decode()}]
    async with running_worker(client, load(["tests.support.content_agents"]), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        handle: Any = await at.start(
            [call("photo", '{"number": 1}'), DONE], agent="painter", api="openai", prompt=prompt
        )
        s3.answers = ["503"] * 2
        ran = await at.look(handle)
    assert ran.result["status"] == "completed"
    for image, requests in ((DATA, ran.requests), (png(MEGABYTE, 1), ran.requests[1:])):
        assert all(base64.b64encode(image).decode() in request.body.decode() for request in requests)
    assert s3.answers == []
    assert len(s3.objects()) == 2
    history = json.dumps([str(event) async for event in handle.fetch_history_events()])
    assert base64.b64encode(DATA).decode()[200:300] not in history
    assert (await asyncio.to_thread(lambda: any(DATA[100:200] in body for body in s3.objects().values()))) is not bool(
        keys
    )
