"""Encryption keys and the codec: payloads become unreadable, and changed ones are refused."""

from __future__ import annotations

import base64

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext, WorkflowSerializationContext

from mulligan import DeclarationError
from mulligan.client.converter import data_converter
from mulligan.client.encryption import EncryptionCodec, parse_keys
from mulligan.client.settings import settings

ONE, TWO = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b"the secret")


def test_keys_are_parsed_by_their_ids() -> None:
    assert parse_keys(f"a:{ONE}, b:{TWO},") == {"a": b"\x01" * 32, "b": b"\x02" * 32}


@pytest.mark.parametrize(
    "text", [",", ONE, f":{ONE}", f"a b:{ONE}", "a:", "a:AAAA", f"a:{ONE}x", f"a:{ONE},a:{TWO}", f"a:{ONE},b", "a:é"]
)
def test_invalid_keys_are_refused_without_quoting_them(text: str) -> None:
    """The sentence says which entry is wrong."""
    with pytest.raises(DeclarationError, match="MULLIGAN_ENCRYPTION_KEYS") as raised:
        parse_keys(text)
    assert ONE[:8] not in str(raised.value)


async def test_any_key_of_the_list_decrypts_and_plain_payloads_are_left_alone() -> None:
    """Encrypting the same payload twice gives different bytes."""
    old = EncryptionCodec(parse_keys(f"a:{ONE}"))
    [secret], [again] = await old.encode([PLAIN]), await old.encode([PLAIN])
    assert b"secret" not in secret.SerializeToString()
    assert b"json/plain" not in secret.SerializeToString()
    assert secret.data != again.data
    rotated = EncryptionCodec(parse_keys(f"b:{TWO},a:{ONE}"))
    assert await rotated.decode([secret, PLAIN]) == [PLAIN, PLAIN]
    [newer] = await rotated.encode([PLAIN])
    assert newer.metadata["encryption-key-id"] == b"b"
    with pytest.raises(ValueError, match="the key 'b'; MULLIGAN_ENCRYPTION_KEYS has no such key"):
        await old.decode([newer])


async def test_a_changed_payload_is_refused() -> None:
    codec = EncryptionCodec(parse_keys(f"a:{ONE},b:{TWO}"))
    [secret] = await codec.encode([PLAIN])
    for changed in (
        Payload(metadata=secret.metadata, data=secret.data[:-1] + bytes([secret.data[-1] ^ 1])),
        Payload(metadata={**secret.metadata, "encryption-key-id": b"b"}, data=secret.data),
    ):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            await codec.decode([changed])


KEYS = {"a": b"\x01" * 32}


def codec_of(workflow_id: str, *, strict: bool = False) -> EncryptionCodec:
    context = WorkflowSerializationContext(namespace="default", workflow_id=workflow_id)
    return EncryptionCodec(KEYS, strict=strict).with_context(context)


def reason_of(payload: Payload) -> str:
    """The error that a converter raises for a payload that the codec has refused."""
    with pytest.raises(ValueError, match="payload") as raised:
        data_converter.payload_converter.from_payloads([payload])
    return str(raised.value)


async def test_a_payload_is_refused_in_another_workflow_only() -> None:
    """Its activities, a schedule's run, and readers that know no workflow, such as the codec server, can read it."""
    [secret] = await codec_of("pay-ada").encode([PLAIN])
    assert b"pay-ada" not in secret.SerializeToString()
    activity = ActivitySerializationContext(
        namespace="default",
        activity_id="1",
        activity_type="call_tool",
        activity_task_queue="q",
        workflow_id="pay-ada",
        workflow_type="AgentWorkflow",
        is_local=False,
    )
    readers = [EncryptionCodec(KEYS), EncryptionCodec(KEYS).with_context(activity)]
    for codec in [*readers, codec_of("pay-ada"), codec_of("pay-ada-2026-11-22T17:00:00Z")]:
        assert await codec.decode([secret]) == [PLAIN]
    for other in ("pay-bob", "pay-ada-2", "pay-ada/call_1"):
        [refused] = await codec_of(other).decode([secret])
        assert reason_of(refused) == f"A payload in {other!r} was encrypted for another workflow."


async def test_the_digest_of_the_workflow_can_be_neither_changed_nor_removed() -> None:
    [secret] = await codec_of("pay-ada").encode([PLAIN])
    [other] = await codec_of("pay-bob").encode([PLAIN])
    metadata = dict(secret.metadata)
    digest = metadata.pop("encryption-workflow")
    assert len(digest) == 16
    for changed in (metadata, {**metadata, "encryption-workflow": other.metadata["encryption-workflow"]}):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            await codec_of("pay-bob").decode([Payload(metadata=changed, data=secret.data)])


async def test_payloads_that_were_encrypted_before_workflows_were_bound_can_be_read() -> None:
    [old] = await EncryptionCodec(KEYS).encode([PLAIN])
    assert "encryption-workflow" not in old.metadata
    assert await codec_of("any", strict=True).decode([old]) == [PLAIN]


async def test_a_strict_codec_refuses_payloads_that_are_not_encrypted() -> None:
    [refused] = await codec_of("any", strict=True).decode([PLAIN])
    assert reason_of(refused) == "A payload is not encrypted, but MULLIGAN_ENCRYPTION_STRICT is set."
    assert await codec_of("any").decode([PLAIN]) == [PLAIN]


def test_the_strict_mode_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_STRICT", "true")
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", "")
    with pytest.raises(DeclarationError, match="STRICT is set, but MULLIGAN_ENCRYPTION_KEYS is not; set both"):
        settings()
