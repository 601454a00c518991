"""Payloads of a workflow task that cannot be decrypted: what is refused at once, and what waits for a worker with the key."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import (
    DoUpdate,
    InitializeWorkflow,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from mulligan.client.converter import REFUSED, RETRY
from mulligan.client.encryption import EncryptionCodec
from mulligan.worker.unreadable_payloads import WAIT, UnreadablePayloads

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


def activated(task: UnreadablePayloads, at: datetime, **job: Any) -> bool:
    """Whether the workflow was activated; if not, the task failed."""
    done: list[WorkflowActivation] = []

    def activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
        done.append(act)
        return WorkflowActivationCompletion()

    act = WorkflowActivation(run_id="r", jobs=[WorkflowActivationJob(**job)])
    act.timestamp.FromDatetime(at)
    with suppress(ValueError):
        task.checked(activate)(act)
    return bool(done)


async def test_a_task_with_data_of_another_key_is_tried_again_for_a_day_and_an_update_is_refused_at_once() -> None:
    unknown = await refused_by(CODEC.for_workflow_tasks(), written_with("b", b"\x02" * 32))
    for job in (
        {"initialize_workflow": InitializeWorkflow(arguments=[unknown])},
        {"signal_workflow": SignalWorkflow(signal_name="stop", input=[unknown])},
    ):
        task = UnreadablePayloads()
        assert not activated(task, NOW, **job)
        assert not activated(task, NOW + WAIT - timedelta(seconds=1), **job)
        assert activated(task, NOW + WAIT, **job)
        assert not activated(UnreadablePayloads(), NOW + WAIT, **job)
    assert activated(UnreadablePayloads(), NOW, do_update=DoUpdate(name="decide", input=[unknown]))
    assert activated(UnreadablePayloads(), NOW, initialize_workflow=InitializeWorkflow(arguments=[PLAIN]))
