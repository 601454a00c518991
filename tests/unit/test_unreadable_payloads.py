"""Payloads of a workflow task that cannot be read: what is refused at once, and what waits for a worker that can read it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from json import JSONDecodeError
from pathlib import Path
from ssl import SSLCertVerificationError
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    ResolveActivity,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    PayloadCodec,
    StorageDriver,
    WorkflowSerializationContext,
)

from mulligan.client.converter import REFUSED, RETRY, data_converter, refused
from mulligan.client.encryption import EncryptionCodec
from mulligan.client.stored_files import LostError, StorageError, StoredFiles
from mulligan.worker.sdk_workarounds.unreadable_payloads import (
    NOT_HERE,
    NOT_NOW,
    WAIT,
    UnreadablePayloads,
    decode_without_errors,
)

PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
CODEC = EncryptionCodec({"a": b"\x01" * 32})
NOW, LONG_AGO = datetime(2026, 11, 22, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
DAY = WAIT.total_seconds()


def written_with(key_id: str, key: bytes, data: bytes | None = None) -> Payload:
    encoded = EncryptionCodec({key_id: key})._encrypted(PLAIN)
    return Payload(metadata=encoded.metadata, data=encoded.data if data is None else data)


async def refused_by(codec: EncryptionCodec, payload: Payload) -> Payload:
    [refused] = await codec.decode([payload])
    assert refused.metadata["encoding"] == REFUSED
    return refused


async def test_the_codec_of_workflow_tasks_refuses_what_is_no_encryption_without_an_error() -> None:
    codec = CODEC.for_workflow_tasks()
    for payload in (
        Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"a"}, data=b"short"),
        Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"\xff"}, data=b"x" * 60),
        Payload(metadata={"encoding": b"binary/encrypted"}, data=b"x" * 60),
    ):
        assert RETRY not in (await refused_by(codec, payload)).metadata
        with pytest.raises(ValueError, match="A payload"):
            await CODEC.decode([payload])  # as before: clients, and the codec server


async def test_a_payload_is_refused_for_ever_only_where_its_key_has_decrypted_another_one() -> None:
    """Until then the worker's own key may be the wrong one, and what it cannot decrypt may be good."""
    changed, good = written_with("a", b"\x02" * 32), written_with("a", b"\x01" * 32)
    codec = CODEC.for_workflow_tasks()
    assert RETRY in (await refused_by(codec, changed)).metadata
    assert await codec.decode([good]) == [PLAIN]
    assert RETRY not in (await refused_by(codec, changed)).metadata
    assert RETRY in (await refused_by(codec, written_with("b", b"\x02" * 32))).metadata
    assert RETRY in (await refused_by(CODEC.for_workflow_tasks(), changed)).metadata


class Clock:
    """The clock of a process."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def activated(
    task: UnreadablePayloads, *, cancelled: bool = False, replay: bool = False, at: int = 3, **job: Any
) -> bool:
    """Whether the workflow was activated; if not, the task failed. `at`: the length of the history."""
    jobs = [WorkflowActivationJob(**job)]
    jobs += [WorkflowActivationJob(cancel_workflow=CancelWorkflow())] if cancelled else []
    act = WorkflowActivation(run_id="r", jobs=jobs, is_replaying=replay, history_length=at)
    act.timestamp.FromDatetime(LONG_AGO if replay else NOW)
    with suppress(ValueError):
        task.check(act, lambda name: (NOT_NOW, NOT_HERE) if name == "answered" else ())
        return True
    return False


def answered(payload: Payload) -> dict[str, Any]:
    return {"signal_workflow": SignalWorkflow(signal_name="answered", input=[payload])}


def started(payload: Payload, *, after: str = "") -> dict[str, Any]:
    return {"initialize_workflow": InitializeWorkflow(arguments=[payload], continued_from_execution_run_id=after)}


async def test_a_task_with_data_of_another_key_is_tried_again_for_a_day_and_an_update_is_refused_at_once() -> None:
    unknown = await refused_by(CODEC.for_workflow_tasks(), written_with("b", b"\x02" * 32))
    for job in (started(unknown), started(unknown, after="r0"), answered(unknown)):
        clock = Clock()
        task = UnreadablePayloads(clock)
        assert not activated(task, **job)
        clock.now += DAY - 1
        assert not activated(task, **job)
        assert not activated(task, replay=True, **job)
        clock.now += 1
        assert activated(task, **job)
        assert activated(task, replay=True, **job)  # the history says by now that it was not read
        assert not activated(UnreadablePayloads(clock), **job)
        assert activated(UnreadablePayloads(clock), cancelled=True, **job)
    stop = SignalWorkflow(signal_name="stop", input=[unknown])
    assert activated(UnreadablePayloads(), signal_workflow=stop)
    assert activated(UnreadablePayloads(), do_update=DoUpdate(name="decide", input=[unknown], run_validator=True))
    start = InitializeWorkflow(arguments=[PLAIN])
    start.memo.fields["of a client"].CopyFrom(unknown)
    assert activated(UnreadablePayloads(), initialize_workflow=start)


async def test_each_failure_gets_the_whole_time_however_many_there_were_before() -> None:
    """Queries and the replay of earlier tasks, between two attempts of a task, do not begin the time again."""
    unknown, good = refused("away", retry=NOT_NOW), answered(PLAIN)
    clock = Clock()
    task = UnreadablePayloads(clock)
    assert not activated(task, **answered(unknown))
    assert activated(task, at=6, **good)
    clock.now += 2 * DAY
    assert not activated(task, at=9, **answered(unknown))
    clock.now += DAY / 2
    for between in (good, {"query_workflow": QueryWorkflow()}, {"remove_from_cache": RemoveFromCache()}):
        assert activated(task, replay=between is good, **between)
    assert not activated(task, at=9, **answered(unknown))
    clock.now += DAY / 2
    assert activated(task, at=9, **answered(unknown))
    assert not activated(task, at=12, **answered(unknown))


async def test_a_process_remembers_a_bounded_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.worker.sdk_workarounds.unreadable_payloads.MOST_RUNS", 3)
    clock = Clock()
    task, unknown = UnreadablePayloads(clock), answered(refused("away", retry=NOT_NOW))
    for at in range(5):
        assert not activated(task, at=at, **unknown)
        clock.now += DAY
        assert activated(task, at=at, **unknown)
    assert [activated(task, at=at, replay=True, **unknown) for at in range(5)] == [False, False, True, True, True]


def test_an_accepted_update_waits_in_a_replay_as_its_acceptance_is_in_the_history() -> None:
    away = refused("away", retry=NOT_NOW)
    for is_new in (True, False):
        update = DoUpdate(name="decide", input=[away], run_validator=is_new)
        assert activated(UnreadablePayloads(), do_update=update, replay=not is_new) == is_new


class Driver(StorageDriver):
    """Storage that raises an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def name(self) -> str:
        return "a"

    async def store(self, context: Any, payloads: Any) -> Any:
        raise NotImplementedError

    async def retrieve(self, context: Any, claims: Any) -> list[Payload]:
        raise self._error


def reference(driver: str = "a", claim: dict[str, str] | None = None) -> Payload:
    """A payload in external storage, in the form that the SDK writes."""
    stored = ExternalStorageReference(driver_name=driver, claim_data=claim or {"sha256": "0" * 64})
    metadata = {"encoding": b"json/protobuf", "messageType": ExternalStorageReference.DESCRIPTOR.full_name.encode()}
    return Payload(metadata=metadata, data=MessageToJson(stored).encode())


def caused(cause: Exception, error: Exception | None = None) -> Exception:
    """An error as the SDK's drivers raise it for one of their client."""
    error = error or RuntimeError("retrieve failed")
    error.__cause__ = cause
    return error


OLD_FORM = {"encoding": b"json/external-storage-reference"}
UNREADABLE: list[tuple[str, Payload, Exception | None, bytes]] = [
    ("which does not have it", Payload(metadata=OLD_FORM, data=b"{}"), LostError("x"), b""),
    ("which does not have it", Payload(metadata=OLD_FORM, data=b"\xff"), LostError("x"), b""),
    ("which does not have it. It was deleted", reference(), LostError("It was deleted."), b""),
    ("which does not have it", Payload(metadata=reference().metadata, data=b"{"), LostError("x"), b""),
    ("which does not have it. It was deleted", reference(), caused(LostError("It was deleted.")), b""),
    ("which does not have it. x", reference(), caused(OSError("x"), LostError("Deleted.")), b""),
    ("cannot be read now", reference(), caused(ValueError("no JSON")), b"1"),
    ("cannot be read now. 503 slow down", reference(), ValueError("503 slow down"), b"1"),
    ("cannot be read now", reference(), SSLCertVerificationError(1, "expired"), b"1"),
    ("cannot be read now", reference(), JSONDecodeError("x", "<html>", 0), b"1"),
    ("cannot be read now", reference(), KeyError("token"), b"1"),
    ("cannot be read now", reference(), TypeError("None"), b"1"),
    ("cannot be read now", reference(), DecodeError("half of an answer"), b"1"),
    ("cannot be read now", reference(), StorageError("is not mounted"), b"1"),
    ("cannot be read now", reference(), RuntimeError("no connection"), b"1"),
    ("another kind of external storage", reference("b"), LostError("x"), NOT_HERE),
    ("MULLIGAN_EXTERNAL_STORAGE is not set", reference(), None, NOT_HERE),
    ("MULLIGAN_EXTERNAL_STORAGE is not set", Payload(metadata=OLD_FORM, data=b"{}"), None, NOT_HERE),
    ("No codec has written it", Payload(metadata={"encoding": REFUSED, RETRY: b"1"}, data=b"wait"), None, b""),
]


def of_workflow_tasks(codec: PayloadCodec | None = None) -> DataConverter:
    """The data converter of a worker's workflow tasks."""
    worker: Any = SimpleNamespace(
        _workflow_worker=SimpleNamespace(_data_converter=replace(data_converter, payload_codec=codec))
    )
    decode_without_errors(worker)
    converter = worker._workflow_worker._data_converter
    assert isinstance(converter, DataConverter)
    return converter


def test_only_a_converter_with_a_part_that_depends_on_the_context_is_copied_for_it() -> None:
    context = WorkflowSerializationContext(namespace="n", workflow_id="w")
    plain, encrypting = of_workflow_tasks(), of_workflow_tasks(CODEC)
    assert plain.with_context(context) is plain
    assert encrypting.with_context(context) is not encrypting


async def read_for_workflow(
    payloads: list[Payload], storage: ExternalStorage | None, codec: PayloadCodec | None = None
) -> list[Payload]:
    """Read payloads as a worker does for a workflow task."""
    converter = replace(data_converter, external_storage=storage, payload_codec=codec)
    worker: Any = SimpleNamespace(_workflow_worker=SimpleNamespace(_data_converter=converter))
    decode_without_errors(worker)
    converter = worker._workflow_worker._data_converter
    assert isinstance(converter, DataConverter)
    read = await converter._decode_reference_payload_sequence(payloads)
    read = await converter._external_retrieve_payload_sequence(read)
    return await converter._decode_payload_sequence(read)


class Raising(PayloadCodec):
    """A codec that raises an error for what it decodes."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise NotImplementedError

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise self._error


@pytest.mark.parametrize(("error", "retry"), [(DecodeError("x"), b""), (ValueError("no key"), NOT_NOW)], ids=range(2))
async def test_an_encoded_reference_that_is_none_is_lost(error: Exception, retry: bytes) -> None:
    marked = Payload(metadata={"encoding": b"x", "__temporal_external_storage_reference": b"true"})
    [read] = await read_for_workflow([marked], ExternalStorage(drivers=[Driver(error)]), Raising(error))
    assert read.metadata.get(RETRY, b"") == retry
    assert b"It is in external storage" in read.data


class Objects(S3StorageDriverClient):
    """A bucket in which each object has the same content, or which raises an error."""

    def __init__(self, content: bytes | Exception) -> None:
        self._content = content

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        raise NotImplementedError

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        raise NotImplementedError

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        if isinstance(self._content, Exception):
            raise self._content
        return self._content


CLAIM = {"bucket": "b", "key": "k", "hash_algorithm": "sha256", "hash_value": sha256(b"\xff").hexdigest()}


@pytest.mark.parametrize(
    ("content", "claim", "retry"),
    [
        (b"changed", CLAIM, b""),
        (b"\xff", CLAIM, b""),  # no payload
        (b"\xff", {**CLAIM, "hash_algorithm": "md5"}, b""),
        (b"\xff", {"key": "k"}, b""),
        (LostError("deleted"), CLAIM, b""),
        (ValueError("503 slow down"), CLAIM, NOT_NOW),
        (KeyError("token"), CLAIM, NOT_NOW),
    ],
    ids=range(7),
)
async def test_a_wrong_claim_of_the_sdks_driver_is_lost_and_an_error_of_its_client_is_not(
    content: bytes | Exception, claim: dict[str, str], retry: bytes
) -> None:
    storage = ExternalStorage(drivers=[S3StorageDriver(Objects(content), "b", driver_name="a")])
    [read] = await read_for_workflow([reference(claim=claim)], storage)
    assert read.metadata["encoding"] == REFUSED
    assert read.metadata.get(RETRY, b"") == retry


@pytest.mark.parametrize(("text", "payload", "error", "retry"), UNREADABLE, ids=range(len(UNREADABLE)))
async def test_it_is_known_whether_a_stored_payload_may_be_read_later(
    text: str, payload: Payload, error: Exception | None, retry: bytes
) -> None:
    """Also for one of several arguments, whose others stay as they are, and where only encrypted payloads are accepted."""
    storage = ExternalStorage(drivers=[Driver(error)]) if error else None
    for codec in (None, EncryptionCodec({"a": b"\x01" * 32}, strict=True)):
        good = PLAIN if codec is None else codec._encrypted(PLAIN)
        for payloads in ([payload], [good, payload, good]):
            read = await read_for_workflow(payloads, storage, codec)
            refused = read.pop(len(read) // 2)
            assert refused.metadata["encoding"] == REFUSED
            assert refused.metadata.get(RETRY, b"") == retry
            assert text in refused.data.decode()
            assert read in ([], [PLAIN, PLAIN])


async def test_a_run_that_has_not_begun_does_not_wait_for_a_storage_that_its_worker_does_not_have() -> None:
    absent = refused("absent", retry=NOT_HERE)
    assert activated(UnreadablePayloads(), **started(absent))
    assert not activated(UnreadablePayloads(), **started(absent, after="r0"))
    assert not activated(UnreadablePayloads(), **answered(absent))
    failed = ResolveActivity(seq=1)
    failed.result.completed.result.CopyFrom(absent)
    assert not activated(UnreadablePayloads(), resolve_activity=failed)


def test_a_folder_that_is_not_mounted_does_not_count_as_one_without_the_payload(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    with pytest.raises(StorageError, match="mounted") as raised:
        StoredFiles(folder, "payload", is_never_empty=True).read("0" * 64)
    assert not isinstance(raised.value, LostError)
    folder.mkdir()
    (folder / "tenants").mkdir()
    with pytest.raises(StorageError, match="mounted") as raised:
        StoredFiles(folder, "payload", is_never_empty=True).read("0" * 64)
    assert not isinstance(raised.value, LostError)
    StoredFiles(folder, "payload", is_never_empty=True).write("1" * 64, b"")
    assert StoredFiles(folder, "payload", is_never_empty=True).read("0" * 64) is None
    assert StoredFiles(tmp_path, "content").read("0" * 64) is None
    assert StoredFiles(tmp_path / "content", "content", creates_folder=True).read("0" * 64) is None
