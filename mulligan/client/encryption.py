"""Encryption of all that Temporal keeps: prompts, results and failures are unreadable to the server, and in its database.

AES-256-GCM by the `cryptography` package, as in Temporal's own samples; the key's id stands beside each payload, so that
keys can be changed while runs are open. `MULLIGAN_ENCRYPTION_KEYS` switches it on, for workers, commands and
`mulligan.connect()`.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from mulligan.errors import DeclarationError

__all__ = ["EncryptionCodec", "parse_keys", "with_encryption"]

ENCODING = b"binary/encrypted"
"""What Temporal's samples call it: other languages' codecs know it by that name."""
KEY_ID = "encryption-key-id"
KEY_BYTES, NONCE_BYTES = 32, 12
VARIABLE = "MULLIGAN_ENCRYPTION_KEYS"


class EncryptionCodec(PayloadCodec):
    """Encrypts with the first key, decrypts with whichever was used."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._newest = next(iter(keys))

    async def encode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Encrypt payloads, each as a whole: what it is (its metadata) is as secret as what it says."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Decrypt payloads. One that is not encrypted, as of a run that is older than the keys, is as it is.

        Raises:
            ValueError: there is no such key here, or the payload was tampered with.
        """
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce, key_id = os.urandom(NONCE_BYTES), self._newest.encode()
        secret = self._ciphers[self._newest].encrypt(nonce, payload.SerializeToString(), key_id)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: key_id}, data=nonce + secret)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        key_id = payload.metadata.get(KEY_ID, b"")
        named = key_id.decode(errors="replace")[:64]
        cipher = self._ciphers.get(named)
        if cipher is None:
            raise ValueError(f"A payload is encrypted with the key {named!r}; {VARIABLE} has no such key.")
        try:
            plain = cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], key_id)
        except (InvalidTag, ValueError):  # too short for a nonce is a ValueError
            raise ValueError(
                f"A payload cannot be decrypted with the key {named!r}: its key was another one of that name, "
                "or it was changed."
            ) from None
        return Payload.FromString(plain)


def parse_keys(text: str) -> dict[str, bytes]:
    """Read `id:key,id:key`: base64 of 32 bytes each, the first one encrypts.

    Raises:
        DeclarationError: there is no key in it, or one is none. It is not quoted.
    """
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        key_id, colon, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:  # binascii.Error is one
            key = b""
        if not colon or not re.fullmatch(r"[\w.-]{1,64}", key_id) or len(key) != KEY_BYTES or key_id in keys:
            raise DeclarationError(
                f"{VARIABLE}: entry {number} is no key; give `id:key` with an id of its own and base64 of {KEY_BYTES} "
                "random bytes, as of `openssl rand -base64 32`."
            )
        keys[key_id] = key
    if not keys:
        raise DeclarationError(f"{VARIABLE} holds no key.")
    return keys


def with_encryption(converter: DataConverter, keys: Mapping[str, bytes]) -> DataConverter:
    """The converter with encryption, of failures' messages and stack traces too."""
    return dataclasses.replace(
        converter,
        payload_codec=EncryptionCodec(keys),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
