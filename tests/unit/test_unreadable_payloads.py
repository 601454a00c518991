"""Payloads of a workflow task that cannot be read: what is refused at once, and what waits for a worker that can read it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    InitializeWorkflow,
    ResolveActivity,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import ExternalStorage, StorageDriver

from mulligan.client.converter import REFUSED, RETRY, data_converter, refused
from mulligan.client.encryption import EncryptionCodec
from mulligan.client.stored_files import LostError, StorageError, StoredFiles
from mulligan.worker.unreadable_payloads import NOT_HERE, NOT_NOW, WAIT, UnreadablePayloads, decode_without_errors

PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
CODEC = EncryptionCodec({"a": b"\x01" * 32})
NOW = datetime(2026, 11, 22, tzinfo=UTC)


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


def activated(task: UnreadablePayloads, at: datetime, *, cancelled: bool = False, **job: Any) -> bool:
    """Whether the workflow was activated; if not, the task failed."""
    done: list[WorkflowActivation] = []

    def activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
        done.append(act)
        return WorkflowActivationCompletion()

    jobs = [WorkflowActivationJob(**job)]
    jobs += [WorkflowActivationJob(cancel_workflow=CancelWorkflow())] if cancelled else []
    act = WorkflowActivation(run_id="r", jobs=jobs)
    act.timestamp.FromDatetime(at)
    with suppress(ValueError):
        task.checked(activate, lambda name: (NOT_NOW, NOT_HERE) if name == "answered" else ())(act)
    return bool(done)


def answered(payload: Payload) -> dict[str, Any]:
    return {"signal_workflow": SignalWorkflow(signal_name="answered", input=[payload])}


def started(payload: Payload, *, after: str = "") -> dict[str, Any]:
    return {"initialize_workflow": InitializeWorkflow(arguments=[payload], continued_from_execution_run_id=after)}


async def test_a_task_with_data_of_another_key_is_tried_again_for_a_day_and_an_update_is_refused_at_once() -> None:
    unknown = await refused_by(CODEC.for_workflow_tasks(), written_with("b", b"\x02" * 32))
    for job in (started(unknown), started(unknown, after="r0"), answered(unknown)):
        task = UnreadablePayloads()
        assert not activated(task, NOW, **job)
        assert not activated(task, NOW + WAIT - timedelta(seconds=1), **job)
        assert activated(task, NOW + WAIT, **job)
        assert not activated(UnreadablePayloads(), NOW + WAIT, **job)
        assert activated(UnreadablePayloads(), NOW, cancelled=True, **job)
    stop = SignalWorkflow(signal_name="stop", input=[unknown])
    assert activated(UnreadablePayloads(), NOW, signal_workflow=stop)
    assert activated(UnreadablePayloads(), NOW, do_update=DoUpdate(name="decide", input=[unknown]))
    start = InitializeWorkflow(arguments=[PLAIN])
    start.memo.fields["of a client"].CopyFrom(unknown)
    assert activated(UnreadablePayloads(), NOW, initialize_workflow=start)


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


def reference(driver: str = "a") -> Payload:
    """A payload in external storage, in the form that the SDK writes."""
    stored = ExternalStorageReference(driver_name=driver, claim_data={"sha256": "0" * 64})
    metadata = {"encoding": b"json/protobuf", "messageType": ExternalStorageReference.DESCRIPTOR.full_name.encode()}
    return Payload(metadata=metadata, data=MessageToJson(stored).encode())


OLD_FORM = {"encoding": b"json/external-storage-reference"}
UNREADABLE: list[tuple[str, Payload, Exception | None, bytes]] = [
    ("which does not have it", Payload(metadata=OLD_FORM, data=b"{}"), LostError("x"), b""),
    ("which does not have it", Payload(metadata=OLD_FORM, data=b"\xff"), LostError("x"), b""),
    ("which does not have it. It was deleted", reference(), LostError("It was deleted."), b""),
    ("which does not have it", reference(), ValueError("integrity check failed"), b""),
    ("which does not have it", reference(), KeyError("bucket"), b""),
    ("cannot be read now", reference(), StorageError("is not mounted"), b"1"),
    ("cannot be read now", reference(), RuntimeError("no connection"), b"1"),
    ("another kind of external storage", reference("b"), LostError("x"), NOT_HERE),
    ("MULLIGAN_EXTERNAL_STORAGE is not set", reference(), None, NOT_HERE),
    ("MULLIGAN_EXTERNAL_STORAGE is not set", Payload(metadata=OLD_FORM, data=b"{}"), None, NOT_HERE),
    ("No codec has written it", Payload(metadata={"encoding": REFUSED, RETRY: b"1"}, data=b"wait"), None, b""),
]


@pytest.mark.parametrize(("text", "payload", "error", "retry"), UNREADABLE, ids=range(len(UNREADABLE)))
async def test_it_is_known_whether_a_stored_payload_may_be_read_later(
    text: str, payload: Payload, error: Exception | None, retry: bytes
) -> None:
    """Also for one of several arguments, whose others stay as they are, and where only encrypted payloads are accepted."""
    storage = ExternalStorage(drivers=[Driver(error)]) if error else None
    for codec in (None, EncryptionCodec({"a": b"\x01" * 32}, strict=True)):
        good = PLAIN if codec is None else codec._encrypted(PLAIN)
        worker: Any = SimpleNamespace(
            _workflow_worker=SimpleNamespace(
                _data_converter=replace(data_converter, external_storage=storage, payload_codec=codec)
            )
        )
        decode_without_errors(worker)
        converter = worker._workflow_worker._data_converter
        for payloads in ([payload], [good, payload, good]):
            read = await converter._decode_reference_payload_sequence(payloads)
            read = await converter._external_retrieve_payload_sequence(read)
            read = await converter._decode_payload_sequence(read)
            refused = read.pop(len(read) // 2)
            assert refused.metadata["encoding"] == REFUSED
            assert refused.metadata.get(RETRY, b"") == retry
            assert text in refused.data.decode()
            assert read in ([], [PLAIN, PLAIN])


async def test_a_run_that_has_not_begun_does_not_wait_for_a_storage_that_its_worker_does_not_have() -> None:
    absent = refused("absent", retry=NOT_HERE)
    assert activated(UnreadablePayloads(), NOW, **started(absent))
    assert not activated(UnreadablePayloads(), NOW, **started(absent, after="r0"))
    assert not activated(UnreadablePayloads(), NOW, **answered(absent))
    failed = ResolveActivity(seq=1)
    failed.result.completed.result.CopyFrom(absent)
    assert not activated(UnreadablePayloads(), NOW, resolve_activity=failed)


def test_a_folder_that_is_not_mounted_does_not_count_as_one_without_the_payload(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    with pytest.raises(StorageError, match="mounted") as raised:
        StoredFiles(folder, "payload").read("0" * 64)
    assert not isinstance(raised.value, LostError)
    folder.mkdir()
    assert StoredFiles(folder, "payload").read("0" * 64) is None
    assert StoredFiles(tmp_path / "content", "content", creates_folder=True).read("0" * 64) is None
