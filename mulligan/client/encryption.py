"""Encrypts all payloads: the Temporal server and its database cannot read prompts, results and failures.

AES-256-GCM with the `cryptography` package, as in Temporal's own samples. Each payload has the id of its key, so that keys
can be changed while runs are open, and a digest of the workflow id that it belongs to, which is authenticated with it: a
payload that somebody copies into another workflow is refused. `MULLIGAN_ENCRYPTION_KEYS` turns encryption on for workers,
commands and `mulligan.connect()`.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from mulligan.client.converter import EncodedFailureConverter, refused
from mulligan.errors import DeclarationError

ENCODING = b"binary/encrypted"
"""The name in Temporal's samples, which codecs in other languages know."""
KEY_ID = "encryption-key-id"
WORKFLOW = "encryption-workflow"
"""The key, in a payload's metadata, of a digest of its workflow id. Payloads that belong to no workflow have none."""
DIGEST_BYTES = 16
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
_KEY_ID = re.compile(r"[\w.-]{1,64}")
VARIABLE = "MULLIGAN_ENCRYPTION_KEYS"
_SCHEDULED_AT = re.compile(r"-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
"""What a schedule appends to the workflow id that its input was encrypted with."""


class EncryptionCodec(PayloadCodec, WithSerializationContext):
    """Encrypts with the first key, and decrypts with the key that a payload names.

    Args:
        keys: The keys by their ids.
        strict: Whether payloads that are not encrypted are refused.

    No converter accepts what replaces a refused payload, so that only the request that brought it fails: an error
    here would fail a workflow task again and again. Outside of those, one is raised where keys are missing or wrong.
    """

    def __init__(self, keys: Mapping[str, bytes], *, strict: bool = False) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._newest = next(iter(keys))
        self._strict = strict
        self._refuses = False
        self._proven: set[str] = set()
        """The ids of keys that have decrypted something: what they do not decrypt was changed, or is no data of ours."""
        self._workflow_id: str | None = None

    def with_context(self, context: SerializationContext) -> Self:
        """The codec of one workflow's payloads. Without it nothing is bound, and what is bound is not checked."""
        workflow_id = None
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
            workflow_id = context.workflow_id
        if workflow_id == self._workflow_id:
            return self
        bound = copy.copy(self)
        bound._workflow_id = workflow_id
        return bound

    def for_workflow_tasks(self) -> Self:
        """Return a copy of the codec that refuses what it cannot decrypt, and never raises an error.

        What another worker, which has the keys, could decrypt is marked (`mulligan.client.converter.RETRY`).
        """
        refusing = copy.copy(self)
        refusing._refuses, refusing._proven = True, set()
        return refusing

    async def encode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Encrypt payloads, each with its metadata."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        """Decrypt payloads. Unless the codec is strict, those that are not encrypted are returned unchanged.

        Raises:
            ValueError: the key is missing, or the payload was changed.
        """
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        metadata = {"encoding": ENCODING, KEY_ID: self._newest.encode()}
        if self._workflow_id is not None:
            metadata[WORKFLOW] = _digest(self._workflow_id)
        nonce, associated = os.urandom(NONCE_BYTES), _associated_data(metadata)
        secret = self._ciphers[self._newest].encrypt(nonce, payload.SerializeToString(), associated)
        return Payload(metadata=metadata, data=nonce + secret)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return (
                refused("A payload is not encrypted, but MULLIGAN_ENCRYPTION_STRICT is set.")
                if self._strict
                else payload
            )
        name = payload.metadata.get(KEY_ID, b"").decode(errors="replace")[:64]
        if self._refuses and (len(payload.data) < NONCE_BYTES + TAG_BYTES or not _KEY_ID.fullmatch(name)):
            return refused("A payload is called encrypted, but is not the result of an encryption.")
        cipher = self._ciphers.get(name)
        if cipher is None:
            return self._undecided(f"A payload is encrypted with the key {name!r}; {VARIABLE} has no such key.")
        try:
            associated = _associated_data(payload.metadata)
            plain = cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], associated)
        except (InvalidTag, ValueError):  # too short for a nonce is a ValueError
            reason = (
                f"A payload cannot be decrypted with the key {name!r}: another key had the same id, or the payload "
                "was changed."
            )
            return refused(reason) if name in self._proven else self._undecided(reason)
        if self._refuses:
            self._proven.add(name)
        digest = payload.metadata.get(WORKFLOW)
        if digest is not None and self._workflow_id is not None and digest not in _digests(self._workflow_id):
            return refused(f"A payload in {self._workflow_id[:100]!r} was encrypted for another workflow.")
        try:
            return Payload.FromString(plain)
        except DecodeError:
            if self._refuses:
                return refused("What was encrypted is not a payload.")
            raise

    def _undecided(self, reason: str) -> Payload:
        """The replacement of a payload that a worker with other keys may be able to decrypt.

        Raises:
            ValueError: outside of workflow tasks, with the reason.
        """
        if not self._refuses:
            raise ValueError(reason)
        return refused(reason, retry=b"1")


class FrameSeal:
    """Encrypts the frames of the live channel (`mulligan.wire.live_frames.Seal`), as payloads of their workflows."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._codec = EncryptionCodec(keys, strict=True)

    def seal(self, workflow: str, data: bytes) -> bytes:
        """Encrypt."""
        return self._of(workflow)._encrypted(Payload(data=data)).SerializeToString()

    def unseal(self, workflow: str, data: bytes) -> bytes:
        """Decrypt.

        Raises:
            ValueError: it was changed, is of another workflow, or its key is missing.
        """
        try:
            payload = self._of(workflow)._decrypted(Payload.FromString(data))
        except DecodeError as error:
            raise ValueError(str(error)) from None
        return payload.data

    def _of(self, workflow: str) -> EncryptionCodec:
        return self._codec.with_context(WorkflowSerializationContext(namespace="", workflow_id=workflow))


def _associated_data(metadata: Mapping[str, bytes]) -> bytes:
    """What is authenticated with a payload. Key ids have no byte 0, so no two payloads share it by accident."""
    key_id, digest = metadata.get(KEY_ID, b""), metadata.get(WORKFLOW)
    return key_id if digest is None else key_id + b"\0" + digest


def _digest(workflow_id: str) -> bytes:
    return hashlib.sha256(workflow_id.encode()).digest()[:DIGEST_BYTES]


def _digests(workflow_id: str) -> set[bytes]:
    return {_digest(workflow_id), _digest(_SCHEDULED_AT.sub("", workflow_id))}


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
        if not colon or not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES or key_id in keys:
            raise DeclarationError(
                f"{VARIABLE}: entry {number} is not a key; give `id:key` with a unique id and base64 of {KEY_BYTES} "
                "random bytes, for example from `openssl rand -base64 32`."
            )
        keys[key_id] = key
    if not keys:
        raise DeclarationError(f"{VARIABLE} contains no key; give `id:key`, with a key from `openssl rand -base64 32`.")
    return keys


def with_encryption(converter: DataConverter, keys: Mapping[str, bytes], *, strict: bool = False) -> DataConverter:
    """The converter with encryption, also of the messages and stack traces of failures."""
    return dataclasses.replace(
        converter,
        payload_codec=EncryptionCodec(keys, strict=strict),
        failure_converter_class=EncodedFailureConverter,
    )
