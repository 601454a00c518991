"""Encrypts all payloads: the Temporal server and its database cannot read prompts, results and failures.

AES-256-GCM with the `cryptography` package, as in Temporal's own samples. Each payload has the id of its key, so that keys
can be changed while runs are open. `MULLIGAN_ENCRYPTION_KEYS` turns it on for workers, commands and `mulligan.connect()`.
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
"""The name in Temporal's samples, which codecs in other languages know."""
KEY_ID = "encryption-key-id"
KEY_BYTES, NONCE_BYTES = 32, 12
VARIABLE = "MULLIGAN_ENCRYPTION_KEYS"


class EncryptionCodec(PayloadCodec):
    """Encrypts with the first key, and decrypts with the key that a payload names."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._newest = next(iter(keys))

    async def encode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Encrypt payloads, each with its metadata."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Decrypt payloads. A payload that is not encrypted, for example of an older run, is returned unchanged.

        Raises:
            ValueError: the key is missing, or the payload was changed.
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
        name = key_id.decode(errors="replace")[:64]
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise ValueError(f"A payload is encrypted with the key {name!r}; {VARIABLE} has no such key.")
        try:
            plain = cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], key_id)
        except (InvalidTag, ValueError):  # too short for a nonce is a ValueError
            raise ValueError(
                f"A payload cannot be decrypted with the key {name!r}: another key had the same id, or the payload "
                "was changed."
            ) from None
        return Payload.FromString(plain)


def parse_keys(text: str) -> dict[str, bytes]:
    """Parse `id:key,id:key`; each key is base64 of 32 bytes. The first key encrypts.

    Raises:
        DeclarationError: there is no key, or one is invalid. The message does not quote it.
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
                f"{VARIABLE}: entry {number} is not a key; give `id:key` with a unique id and base64 of {KEY_BYTES} "
                "random bytes, for example from `openssl rand -base64 32`."
            )
        keys[key_id] = key
    if not keys:
        raise DeclarationError(f"{VARIABLE} contains no key.")
    return keys


def with_encryption(converter: DataConverter, keys: Mapping[str, bytes]) -> DataConverter:
    """The converter with encryption, also of the messages and stack traces of failures."""
    return dataclasses.replace(
        converter,
        payload_codec=EncryptionCodec(keys),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
