"""The content storage: images and other files of runs, each once, by the digest of its bytes. History refers to them.

It is in the external storage (`MULLIGAN_EXTERNAL_STORAGE`), below `content/`; without that, in the folder that
`MULLIGAN_CONTENT_DIR` names. With encryption keys, the bytes are encrypted, and a file's name is a keyed digest: who can
read the storage cannot tell whether it has a certain file.

Each tenant has its own content: the name of a file is made from the tenant and the digest, so that a digest of another
tenant's content is that of nothing.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import hmac
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload

from mulligan.client.external_storage import content_bucket, storage_folder
from mulligan.client.settings import Settings, settings
from mulligan.client.stored_files import StorageError, StoredFiles
from mulligan.content import digest_of
from mulligan.errors import DeclarationError

SUBFOLDER = "content"
_PLAIN = b"binary/plain"


class MissingContentError(StorageError):
    """The storage does not have the content."""


class ChangedContentError(Exception):
    """What is stored is not the content that its digest names."""


class Files(Protocol):
    """The place where content is stored: a folder or a bucket."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole.

        Raises:
            StorageError: it cannot be written.
        """

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none.

        Raises:
            StorageError: it cannot be read.
        """


class ContentStore:
    """Stores content by its digest, for runs without a tenant, or (with `of`) for a tenant's runs.

    Args:
        files: Where it is.
        keys: The encryption keys by their ids; the first one encrypts.
        strict: Whether content that is not encrypted is refused.
    """

    def __init__(self, files: Files, keys: Mapping[str, bytes] | None = None, *, strict: bool = False) -> None:
        self._files, self._keys, self._strict = files, list((keys or {}).values()), strict
        self._tenant: str | None = None
        self._codec = None
        if keys:
            from mulligan.client.encryption import EncryptionCodec

            self._codec = EncryptionCodec(keys, strict=strict)

    def of(self, tenant: str | None) -> ContentStore:
        """The store of a tenant's content, in the same storage; None: of the runs without a tenant."""
        store = copy.copy(self)
        store._tenant = tenant
        return store

    async def put(self, data: bytes) -> str:
        """Store content; returns its `ref`. The same content is stored once.

        Raises:
            StorageError: it cannot be written.
        """
        ref = await asyncio.to_thread(digest_of, data)
        await self._write(ref, data)
        return ref

    async def get(self, ref: str) -> bytes:
        """Read the content with a reference.

        Raises:
            MissingContentError: it is not there, or is another tenant's.
            ChangedContentError: it is other content, or cannot be decrypted.
            StorageError: the storage cannot be read.
        """
        for name in self._names(ref, self._tenant):
            stored = await asyncio.to_thread(self._files.read, name)
            if stored is not None:
                return await self._decoded(ref, stored)
        raise MissingContentError(
            f"The content {ref} is not in the content storage: it was deleted, or MULLIGAN_EXTERNAL_STORAGE, "
            "MULLIGAN_CONTENT_DIR or MULLIGAN_ENCRYPTION_KEYS differ from those it was stored with."
        )

    async def put_named(self, name: str, data: bytes) -> None:
        """Store content that may change, by a name in place of its digest.

        Raises:
            StorageError: it cannot be written.
        """
        await self._write(digest_of(name.encode()), data)

    async def get_named(self, name: str) -> bytes | None:
        """Read the content with a name; None if there is none.

        Raises:
            ChangedContentError: it cannot be decrypted.
            StorageError: the storage cannot be read.
        """
        ref = digest_of(name.encode())
        for each in self._names(ref, self._tenant):
            if (stored := await asyncio.to_thread(self._files.read, each)) is not None:
                return await self._decrypted(ref, stored)
        return None

    async def _write(self, ref: str, data: bytes) -> None:
        payload = Payload(metadata={"encoding": _PLAIN}, data=data)
        if self._codec is not None:
            [payload] = await self._codec.encode([payload])
        await asyncio.to_thread(self._files.write, self._names(ref, self._tenant)[0], payload.SerializeToString())

    async def _decrypted(self, ref: str, stored: bytes) -> bytes:
        try:
            payload = Payload.FromString(stored)
            if self._codec is not None:
                [payload] = await self._codec.decode([payload])
        except (DecodeError, ValueError) as error:
            raise ChangedContentError(f"The stored content {ref} cannot be read: {error}.") from None
        data: bytes = payload.data
        return data

    async def _decoded(self, ref: str, stored: bytes) -> bytes:
        data = await self._decrypted(ref, stored)
        if await asyncio.to_thread(digest_of, data) != ref:
            raise ChangedContentError(
                f"The stored content {ref} has another digest: it was changed after it was stored."
            )
        return data

    def _names(self, ref: str, tenant: str | None) -> list[str]:
        """The names that a file may have: by each key, and without one."""
        name = ref.removeprefix("sha256:")
        if tenant is not None:
            name = hmac.new(tenant.encode(), name.encode(), hashlib.sha256).hexdigest()
        keyed = [hmac.new(key, name.encode(), hashlib.sha256).hexdigest() for key in self._keys]
        return keyed if self._strict else [*keyed, name]


def configured_content_store(chosen: Settings | None = None) -> ContentStore | None:
    """The content storage of the settings; None if there is none. `chosen`: they, where they have been read already.

    Raises:
        DeclarationError: a setting is invalid.
    """
    chosen = chosen or settings()
    if not chosen.external_storage and not chosen.content_dir:
        return None
    keys = chosen.encryption_keys.get_secret_value()
    return _store(chosen.external_storage, chosen.content_dir, keys, chosen.encryption_strict)


def configured_content_files() -> Files | None:
    """Where the content of the settings is; None if there is no content storage.

    Raises:
        DeclarationError: a setting is invalid.
    """
    chosen = settings()
    if not chosen.external_storage and not chosen.content_dir:
        return None
    return _files(chosen.external_storage, chosen.content_dir)


@cache
def _store(external: str, content_dir: str, keys: str, strict: bool) -> ContentStore:
    from mulligan.client.encryption import parse_keys

    return ContentStore(_files(external, content_dir), parse_keys(keys) if keys else None, strict=strict)


def _files(external: str, content_dir: str) -> Files:
    if external and (bucket := content_bucket(external)) is not None:
        return bucket
    return StoredFiles(_content_folder(external, content_dir), "content", creates_folder=True)


def _content_folder(external: str, content_dir: str) -> Path:
    """The folder, which the first content that is stored creates.

    Raises:
        DeclarationError: it is not there, and cannot be created.
    """
    folder = storage_folder(external) / SUBFOLDER if external else Path(content_dir).absolute()
    if not folder.is_dir():
        why = (
            "it is a file"
            if folder.exists()
            else ""
            if folder.parent.is_dir()
            else "there is no folder to create it in"
        )
        if why or not os.access(folder.parent, os.W_OK):
            raise DeclarationError(
                f"The folder for content {folder} cannot be created: {why or 'this user may not write there'}."
            )
    return folder
