"""External storage in a folder: its files, and the references to them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext, StorageDriverStoreContext

from mulligan.client.external_storage import external_storage
from mulligan.client.folder_driver import FolderDriver
from mulligan.client.stored_files import MOST_BYTES, StorageError, StoredFiles
from mulligan.errors import DeclarationError

PAYLOAD = Payload(metadata={"encoding": b"binary/plain"}, data=b"sesame")


async def store(folder: Path, payload: Payload = PAYLOAD) -> StorageDriverClaim:
    [claim] = await FolderDriver(folder).store(StorageDriverStoreContext(), [payload])
    return claim


async def read(folder: Path, claim: StorageDriverClaim) -> Payload:
    [payload] = await FolderDriver(folder).retrieve(StorageDriverRetrieveContext(), [claim])
    return payload


def file_of(folder: Path, claim: StorageDriverClaim) -> Path:
    digest = claim.claim_data["sha256"]
    return folder / digest[:2] / digest


async def test_a_stored_payload_is_read_back_from_one_private_file(tmp_path: Path) -> None:
    """The same payload has one file, and no temporary files are left."""
    claim = await store(tmp_path)
    file = file_of(tmp_path, claim)
    os.utime(file, (1, 1))
    assert await store(tmp_path) == claim
    assert await read(tmp_path, claim) == PAYLOAD
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.stat().st_mtime > 1  # so that a cleanup of old files keeps those in use


@pytest.mark.parametrize(
    "named", ["", "../../etc/passwd", "/etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "é" * 64]
)
async def test_a_reference_to_another_file_is_refused(tmp_path: Path, named: str) -> None:
    for claim in ({"sha256": named}, {"path": "/etc/passwd"}):
        with pytest.raises(StorageError, match="does not name a stored file"):
            await read(tmp_path, StorageDriverClaim(claim))


@pytest.mark.parametrize("linked", ["file", "folder"])
async def test_symbolic_links_in_the_storage_folder_are_not_followed(tmp_path: Path, linked: str) -> None:
    """Even if the link leads to the stored file."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    claim = await store(folder)
    moved = file_of(folder, claim) if linked == "file" else file_of(folder, claim).parent
    moved.rename(elsewhere)
    moved.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="cannot be read"):
        await read(folder, claim)
    if linked == "folder":
        with pytest.raises(StorageError, match="cannot be written"):
            await store(folder)


@pytest.mark.parametrize("fault", ["gone", "changed", "shorter", "a pipe", "a folder"])
async def test_a_missing_or_changed_file_is_named_in_the_error(tmp_path: Path, fault: str) -> None:
    claim = await store(tmp_path)
    file = file_of(tmp_path, claim)
    match fault:
        case "changed":
            file.write_bytes(b"x" * file.stat().st_size)
        case "shorter":
            os.truncate(file, 3)
        case _:
            file.unlink()
    if fault == "a pipe":
        os.mkfifo(file)
    elif fault == "a folder":
        file.mkdir()
    with pytest.raises(StorageError) as raised:
        await read(tmp_path, claim)
    assert str(file.relative_to(tmp_path)) in str(raised.value)
    assert str(tmp_path) not in str(raised.value)  # clients of the run read it, too
    assert "sesame" not in str(raised.value)


async def test_a_payload_that_cannot_be_written_raises_storage_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(StorageError, match="cannot be written: No such file"):
        await store(gone)
    with pytest.raises(StorageError, match="too large"):
        await store(tmp_path, Payload(data=bytes(MOST_BYTES)))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("/data", "it must be file:///folder or s3://bucket/prefix."),
        ("file://host/data", "it must be file:///folder"),
        ("file:///", "it must be file:///folder"),
        ("s3://", "it must be file:///folder"),
        ("s3://Bucket/x", "it must be file:///folder"),
        ("s3://bucket/x?region=eu", "it must be file:///folder"),
        ("gs://bucket", "it must be file:///folder"),
        ("file:///no/such/folder", "there is no folder /no/such/folder."),
    ],
)
def test_an_invalid_storage_url_is_refused_with_a_sentence(url: str, says: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        external_storage(url)
    assert str(raised.value).startswith(f"MULLIGAN_EXTERNAL_STORAGE is {url!r}, but ")
    assert says in str(raised.value)


def test_a_password_in_the_storage_url_is_not_quoted() -> None:
    with pytest.raises(DeclarationError) as raised:
        external_storage("s3://key:sesame@bucket/x")
    assert "sesame" not in str(raised.value)


def test_s3_storage_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(DeclarationError, match=r"needs the extra .s3. .*mulligan\[s3\]"):
        external_storage("s3://bucket/runs")


def test_a_storage_folder_may_have_a_blank_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    assert external_storage(folder.as_uri()).drivers[0].name() == "mulligan.folder"


def test_a_folder_that_is_mounted_while_it_is_looked_for_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its file would count as deleted, which ends the run."""
    kept, away = tmp_path / "kept", tmp_path / "away"
    kept.mkdir()
    files = StoredFiles(kept, "payload", is_never_empty=True)
    files.write("ab12", b"data")
    kept.rename(away)
    look = files._is_there

    def mounted() -> bool:
        away.rename(kept)
        return look()

    monkeypatch.setattr(files, "_is_there", mounted)
    assert files.read("ab12") == b"data"
