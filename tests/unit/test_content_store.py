"""The content storage: what is stored, under which name, and what is refused when it is read."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest

from mulligan import File, Image, InvalidRunInputError, RunInput, UserMessage
from mulligan.client.content_store import (
    ChangedContentError,
    ContentStore,
    MissingContentError,
    configured_content_store,
)
from mulligan.client.store_content import MOST_INLINE_BYTES, store_content
from mulligan.client.stored_files import StorageError, StoredFiles
from mulligan.content import Media, digest_of, media_of
from mulligan.errors import DeclarationError
from tests.support.content_files import PDF, png

KEY = bytes(range(32))
OTHER = bytes(reversed(range(32)))
DATA = png(5_000)
DAY = 86_400


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MULLIGAN_CONTENT_DIR", "MULLIGAN_EXTERNAL_STORAGE", "MULLIGAN_ENCRYPTION_KEYS"):
        monkeypatch.delenv(name, raising=False)


def store_in(folder: Path, keys: dict[str, bytes] | None = None, *, strict: bool = False) -> ContentStore:
    return ContentStore(StoredFiles(folder, "content"), keys, strict=strict)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_content_is_stored_once_under_its_digest(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    ref = await store.put(DATA)
    assert ref == digest_of(DATA)
    assert await store.put(DATA) == ref
    [file] = files(tmp_path)
    assert file.name == ref.removeprefix("sha256:")
    assert await store.get(ref) == DATA


async def test_with_keys_neither_the_bytes_nor_the_digest_are_in_the_storage(tmp_path: Path) -> None:
    store = store_in(tmp_path, {"a": KEY})
    ref = await store.put(DATA)
    [file] = files(tmp_path)
    assert file.name != ref.removeprefix("sha256:")
    assert DATA[100:200] not in file.read_bytes()
    assert await store.get(ref) == DATA
    assert await store_in(tmp_path, {"b": OTHER, "a": KEY}).get(ref) == DATA  # the keys were changed
    with pytest.raises(MissingContentError):
        await store_in(tmp_path, {"b": OTHER}).get(ref)


async def test_content_from_before_the_keys_is_read_unless_they_are_strict(tmp_path: Path) -> None:
    ref = await store_in(tmp_path).put(DATA)
    assert await store_in(tmp_path, {"a": KEY}).get(ref) == DATA
    with pytest.raises(MissingContentError):
        await store_in(tmp_path, {"a": KEY}, strict=True).get(ref)


@pytest.mark.parametrize("keys", [None, {"a": KEY}])
async def test_content_that_was_changed_or_exchanged_is_refused(tmp_path: Path, keys: dict[str, bytes] | None) -> None:
    store = store_in(tmp_path, keys)
    ref = await store.put(DATA)
    [file] = files(tmp_path)
    other = await store.put(PDF)
    [file_of_other] = [each for each in files(tmp_path) if each != file]
    file.write_bytes(file_of_other.read_bytes())
    with pytest.raises(ChangedContentError, match="another digest"):
        await store.get(ref)
    file.write_bytes(b"\xff\xff nothing")
    with pytest.raises(ChangedContentError):
        await store.get(ref)
    assert await store.get(other) == PDF


async def test_a_link_in_the_storage_is_not_followed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    ref = await store.put(DATA)
    [file] = files(tmp_path)
    file.unlink()
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", file)
    with pytest.raises(StorageError, match="cannot be read"):
        await store.get(ref)


async def test_the_settings_name_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured_content_store() is None
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    store = configured_content_store()
    assert store is not None
    await store.put(DATA)
    assert len(files(tmp_path / "content")) == 1
    external = tmp_path / "external"
    external.mkdir()
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", external.as_uri())
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"a:{base64.b64encode(KEY).decode()}")
    store = configured_content_store()
    assert store is not None
    await store.put(DATA)
    [file] = files(external / "content")
    assert DATA[100:200] not in file.read_bytes()
    monkeypatch.delenv("MULLIGAN_EXTERNAL_STORAGE")
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "missing" / "content"))
    with pytest.raises(DeclarationError, match="cannot be created: there is no folder to create it in"):
        configured_content_store()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "file"))
    with pytest.raises(DeclarationError, match="cannot be created: it is a file"):
        configured_content_store()


@pytest.mark.parametrize("setting", ["MULLIGAN_CONTENT_DIR", "MULLIGAN_EXTERNAL_STORAGE"])
async def test_the_folder_is_created_by_the_first_content_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(setting, {"MULLIGAN_CONTENT_DIR": f"{tmp_path}/content"}.get(setting, tmp_path.as_uri()))
    store = configured_content_store()
    assert store is not None
    with pytest.raises(MissingContentError):
        await store.get(digest_of(DATA))
    assert list(tmp_path.iterdir()) == []
    assert await store.get(await store.put(DATA)) == DATA
    assert (tmp_path / "content").stat().st_mode & 0o777 == 0o700


async def test_a_tenants_content_is_found_by_that_tenant_only(tmp_path: Path) -> None:
    """Also with keys that were changed since, and not if it was stored without a tenant."""
    store = store_in(tmp_path, {"a": KEY})
    ref = await store.of("ada").put(DATA)
    assert ref == digest_of(DATA)
    for other in (store, store.of("bob"), store.of("ada ")):
        with pytest.raises(MissingContentError):
            await other.get(ref)
    assert await store_in(tmp_path, {"b": OTHER, "a": KEY}).of("ada").get(ref) == DATA
    assert await store.put(DATA) == ref
    with pytest.raises(MissingContentError):
        await store.of("bob").get(ref)
    assert len(files(tmp_path)) == 2


async def test_prune_deletes_what_was_neither_written_nor_read_for_so_long(tmp_path: Path) -> None:
    """And the remains of writers that were interrupted, but nothing that is not the storage's."""
    store, stored = store_in(tmp_path), StoredFiles(tmp_path, "content")
    used = {name: await store.put(png(3_000, seed)) for seed, name in enumerate(("read", "written", "unused"))}
    old = time.time() - 40 * DAY
    subfolder = next(path.parent for path in files(tmp_path))
    remains, foreign = subfolder / f".{'a' * 16}-{'b' * 16}", subfolder / "notes.txt"
    for path in (remains, foreign):
        path.write_text("x")
    for path in files(tmp_path):
        os.utime(path, (old, old))
    (subfolder / f"{'c' * 64}").symlink_to(foreign)
    await store.get(used["read"])
    await store.put(png(3_000, 1))
    expected = (2, 1 + len(next(path for path in files(tmp_path) if path.name in used["unused"]).read_bytes()))
    assert stored.prune(time.time() - 30 * DAY, dry_run=True) == expected
    assert len(files(tmp_path)) == 6
    assert stored.prune(time.time() - 30 * DAY) == expected
    assert stored.prune(time.time() - 30 * DAY) == (0, 0)
    assert {path.name for path in files(tmp_path)} == {
        *(used[name].removeprefix("sha256:") for name in ("read", "written")), "notes.txt", "c" * 64
    }  # fmt: skip
    assert StoredFiles(tmp_path / "never written", "content").prune(time.time()) == (0, 0)


async def test_bytes_above_two_kilobytes_are_replaced_by_their_digest_and_size(tmp_path: Path) -> None:
    small, large = Image.from_bytes(png()), Image.from_bytes(DATA, name="a.png")
    run_input = RunInput(
        agent="a",
        prompt=["Look.", small, large],
        messages=[UserMessage(role="user", content=[File.from_bytes(PDF), large])],
    )
    stored = await store_content(run_input, store_in(tmp_path))
    assert isinstance(stored.prompt, list)
    assert stored.prompt[1] == small
    part = stored.prompt[2]
    assert isinstance(part, Media)
    assert part.model_dump() == {
        "type": "image",
        "media_type": "image/png",
        "ref": digest_of(DATA),
        "name": "a.png",
        "size": len(DATA),
    }
    [message] = stored.messages
    assert isinstance(message, UserMessage)
    assert [each.ref for each in media_of(message.content)] == [None, digest_of(DATA)]
    assert await store_content(stored, store_in(tmp_path)) == stored


async def test_a_reference_of_a_prompt_must_be_to_stored_content(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    missing = RunInput(agent="a", prompt=[Image(ref=digest_of(DATA), media_type="image/png")])
    with pytest.raises(InvalidRunInputError, match='"prompt\\[0\\]" cannot be used: The content sha256:'):
        await store_content(missing, store)
    await store.put(DATA)
    known = await store_content(missing, store)
    assert isinstance(known.prompt, list)
    assert media_of(known.prompt)[0].size == len(DATA)
    wrong = RunInput(agent="a", prompt=[Image(ref=digest_of(DATA), media_type="image/png", size=5)])
    with pytest.raises(InvalidRunInputError, match='has a "size" of 5'):
        await store_content(wrong, store)


async def test_without_a_storage_large_content_is_refused_with_what_to_set() -> None:
    fits = RunInput(agent="a", prompt=[Image.from_bytes(png(MOST_INLINE_BYTES - 1_000))])
    assert await store_content(fits) == fits
    too_large = RunInput(agent="a", prompt=[Image.from_bytes(png(MOST_INLINE_BYTES))])
    with pytest.raises(InvalidRunInputError, match="Set MULLIGAN_CONTENT_DIR or MULLIGAN_EXTERNAL_STORAGE"):
        await store_content(too_large)
