"""External storage: payloads that are too large for Temporal are in a folder or a bucket, and history refers to them.

It is the SDK's own feature (`temporalio.converter.ExternalStorage`), with the driver that `MULLIGAN_EXTERNAL_STORAGE`
names. With encryption keys, a payload is encrypted before it is stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import ExternalStorage, StorageDriver

from mulligan.client.folder_driver import FolderDriver
from mulligan.client.stored_files import MOST_BYTES, LostError, StorageError
from mulligan.errors import DeclarationError
from mulligan.extras import require_extra

VARIABLE = "MULLIGAN_EXTERNAL_STORAGE"
STORED_FROM = 512 * 1024
"""The size, in bytes, from which a payload is stored. The SDK's default is half of this, but the result of a query is a
payload too: each query for a page of up to 500 KB would leave a file behind."""
CARRY_BYTES = 32_000_000
"""The maximum size in bytes of the state that continue-as-new carries with external storage (see docs/long-runs.md)."""


def external_storage(url: str) -> ExternalStorage:
    """The storage for a URL: `file:///folder` (local, or shared by all machines) or `s3://bucket/prefix`.

    Raises:
        DeclarationError: the URL is invalid, or the folder, boto3 or AWS's settings are missing.
    """
    return ExternalStorage(drivers=[_driver(url)], payload_size_threshold=STORED_FROM)


def _driver(url: str) -> StorageDriver:
    if (bucket := _bucket(url)) is not None:
        client = _BucketClient(*bucket)
        return S3StorageDriver(client, bucket[0], driver_name="mulligan.s3")
    return FolderDriver(storage_folder(url))


def _bucket(url: str) -> tuple[str, str] | None:
    """The bucket and the prefix that a URL names; None if it is no URL of a bucket."""
    parts = urlsplit(url)
    # Only a valid bucket name, and no query: a mistyped option must not become a part of the prefix.
    is_bucket = parts.scheme == "s3" and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc)
    return (parts.netloc, parts.path.strip("/")) if is_bucket and not parts.query else None


def storage_folder(url: str) -> Path:
    """The folder that a URL names.

    Raises:
        DeclarationError: there is none, or it is no URL of a folder.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and len(parts.path) > 1:
        folder = Path(unquote(parts.path))
        if not folder.is_dir():
            raise DeclarationError(f"{VARIABLE} is {url!r}, but there is no folder {folder}.")
        return folder
    # The URL is not quoted if it may contain a password.
    problem = f"is {url!r}" if "@" not in url else "names a user"
    raise DeclarationError(f"{VARIABLE} {problem}, but it must be file:///folder or s3://bucket/prefix.")


CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
"""How long a bucket may take for a connection and for the next bytes, in each of boto3's attempts (AWS_MAX_ATTEMPTS)."""


class ContentBucket:
    """The files of the content storage, in a bucket below the prefix."""

    def __init__(self, client: _BucketClient) -> None:
        self._client = client

    def write(self, name: str, data: bytes) -> None:
        """Write a file.

        Raises:
            StorageError: the bucket refuses it, or does not answer.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.write(f"content/{name}", data)
        except (BotoCoreError, ClientError) as error:
            raise StorageError(f"The content {name} cannot be written to the bucket: {_text(error)}.") from None

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none.

        Raises:
            StorageError: the bucket refuses it, or does not answer.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._client.read(f"content/{name}")
        except ClientError as error:
            if _is_missing(error):
                return None
            raise StorageError(f"The content {name} cannot be read from the bucket: {_text(error)}.") from None
        except BotoCoreError as error:
            raise StorageError(f"The content {name} cannot be read from the bucket: {_text(error)}.") from None


def _is_missing(error: Any) -> bool:
    """Whether a `ClientError` of botocore says that there is no such object."""
    return error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404", "NotFound")


def _text(error: Exception) -> str:
    return str(error).rstrip(".")


def content_bucket(url: str) -> ContentBucket | None:
    """The content storage in the bucket that a URL names; None if it is no URL of a bucket.

    Raises:
        DeclarationError: boto3 or AWS's settings are missing.
    """
    bucket = _bucket(url)
    return None if bucket is None else ContentBucket(_BucketClient(*bucket))


class _BucketClient(S3StorageDriverClient):
    """S3 with boto3, which reads region, endpoint and credentials from AWS's settings.

    A reference in history has a bucket and a key. Only keys below this prefix in this bucket are read.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        require_extra("s3", f"{VARIABLE}=s3://…")
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        try:
            self._s3: Any = boto3.client(
                "s3", config=Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS)
            )
        except (BotoCoreError, ValueError) as error:
            raise DeclarationError(
                f"{VARIABLE} names an S3 bucket, but AWS's settings cannot be used: {error}."
            ) from None
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def describe(self) -> Mapping[str, str]:
        """Details that the SDK adds to its errors."""
        return {"prefix": self._prefix, "endpoint": str(self._s3.meta.endpoint_url)}

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        """Return False, so that each use writes the object again: rules that delete old objects then
        count from its last use.
        """
        del bucket, key
        return False

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._s3.put_object, Bucket=self._own(bucket), Key=self._prefix + key, Body=data)

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        """Read an object.

        Raises:
            LostError: there is none, or the bucket is another one.
        """
        from botocore.exceptions import ClientError

        try:
            return await asyncio.to_thread(self._read, self._own(bucket), self._prefix + key)
        except ClientError as error:
            if _is_missing(error):
                raise LostError(_text(error)) from error
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write an object below the prefix."""
        self._s3.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def read(self, name: str) -> bytes:
        """Read an object below the prefix."""
        return self._read(self._bucket, self._prefix + name)

    def _read(self, bucket: str, key: str) -> bytes:
        # In this thread, because boto3 downloads the body during read().
        data: bytes = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise LostError(f"The object {key} in the bucket {bucket} has more than {MOST_BYTES:,} bytes.")
        return data

    def _own(self, bucket: str) -> str:
        if bucket != self._bucket:
            raise LostError(f"a reference names the bucket {bucket[:63]!r}, but {VARIABLE} names {self._bucket!r}")
        return bucket
