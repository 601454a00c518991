"""Encryption keys and the codec: payloads become unreadable, and changed ones are refused."""

from __future__ import annotations

import base64

import pytest
from temporalio.api.common.v1 import Payload

from mulligan import DeclarationError
from mulligan.client.encryption import EncryptionCodec, parse_keys

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
