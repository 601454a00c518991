"""What clients make of files, stored content, pollers and errors, without a server."""

from __future__ import annotations

import atexit
import base64
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowQueryFailedError

from mulligan.client import connect, served_agents
from mulligan.client.connect import EXIT_SECONDS, explain_unreadable_data
from mulligan.client.content_store import ContentStore
from mulligan.client.converter import data_converter
from mulligan.client.encryption import EncryptionCodec, with_encryption
from mulligan.client.experiments.read_cases import read_cases
from mulligan.client.export_case import copy_content
from mulligan.client.send_update import MOST_BYTES, UpdateTooLargeError, send_update
from mulligan.client.served_agents import MOST_SETS, ServedAgents, read_other_workers
from mulligan.client.settings import Settings
from mulligan.client.stored_files import StoredFiles
from mulligan.content import Image
from mulligan.run_input import RunInput
from mulligan.values import UserMessage
from mulligan.wire.case import Case, CaseError
from tests.support.content_files import png

KEYS = {"a": bytes(32)}


def store(folder: Path, keys: dict[str, bytes] | None = None, *, strict: bool = False) -> ContentStore:
    return ContentStore(StoredFiles(folder, "content", creates_folder=True), keys, strict=strict)


@pytest.mark.parametrize("keys", [None, KEYS])
async def test_content_with_a_name_is_replaced_and_is_a_tenants_own(
    tmp_path: Path, keys: dict[str, bytes] | None
) -> None:
    stored = store(tmp_path, keys)
    assert await stored.get_named("table") is None
    await stored.put_named("table", b"1")
    await stored.put_named("table", b"22")
    assert await stored.get_named("table") == b"22"
    assert await stored.get_named("other") is None
    assert await stored.of("ada").get_named("table") is None
    await stored.of("ada").put_named("table", b"hers")
    assert [await each.get_named("table") for each in (stored, stored.of("ada"), stored.of("bob"))] == [
        b"22",
        b"hers",
        None,
    ]


async def test_named_content_from_before_the_keys_is_read_unless_they_are_strict(tmp_path: Path) -> None:
    await store(tmp_path).put_named("table", b"1")
    assert await store(tmp_path, KEYS).get_named("table") == b"1"
    assert await store(tmp_path, KEYS, strict=True).get_named("table") is None


async def test_the_content_of_a_case_is_copied_from_and_to_its_tenant(tmp_path: Path) -> None:
    """Each once; content that is in the message itself needs no copy."""
    source, target = store(tmp_path / "from"), store(tmp_path / "to")
    refs = [await source.of("ada").put(data) for data in (b"one", b"two")]
    images = [Image(media_type="image/png", ref=ref, size=3) for ref in (*refs, refs[0])]
    messages = [
        UserMessage(
            role="user",
            text="Look.",
            content=[*images, Image(media_type="image/png", data=base64.b64encode(png(100)).decode())],
        ),
        UserMessage(role="user", text="Text alone."),
    ]
    case = cast(Case, SimpleNamespace(messages=messages, input=RunInput(agent="a", prompt="Go.", tenant="ada")))
    assert await copy_content(case, source, target) == 2
    assert [await target.of("ada").get(ref) for ref in refs] == [b"one", b"two"]


async def test_what_was_encrypted_but_is_no_payload_is_refused_in_workflow_tasks() -> None:
    """A worker that raised an error there would try the task for ever."""
    codec = EncryptionCodec(KEYS)
    [good] = await codec.encode([Payload(data=b"x")])
    [bad] = await codec.encode([cast(Any, _NoPayload())])
    for_tasks = codec.for_workflow_tasks()
    refused, fine = await for_tasks.decode([bad, good])
    assert b"What was encrypted is not a payload." in refused.SerializeToString()
    assert fine == Payload(data=b"x")
    with pytest.raises(Exception, match="pars"):
        await codec.decode([bad])


class _NoPayload:
    def SerializeToString(self) -> bytes:
        return b"\xff\xff\xff"


async def test_encryption_reads_what_is_not_encrypted_unless_it_is_strict() -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
    codec = with_encryption(data_converter, KEYS).payload_codec
    assert codec is not None
    assert await codec.decode([plain]) == [plain]
    strict = with_encryption(data_converter, KEYS, strict=True).payload_codec
    assert strict is not None
    assert await strict.decode([plain]) != [plain]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RuntimeError("TMPRL1105: x"), "is in external storage; set MULLIGAN_EXTERNAL_STORAGE"),
        (ValueError("No driver found with name 'mulligan.s3'"), "another kind of external storage"),
        (ValueError("S3StorageDriver cannot read"), "S3StorageDriver cannot read"),
        (KeyError("Unknown payload encoding binary/encrypted"), "set MULLIGAN_ENCRYPTION_KEYS to the keys"),
        (ValueError("A payload is encrypted with the key 'x'"), "A payload is encrypted with the key 'x'"),
        (WorkflowQueryFailedError("Encoded failure"), "may lack the first key"),
        (WorkflowQueryFailedError("Another failure"), None),
        (RuntimeError("A payload is none"), None),
        (RuntimeError("anything else"), None),
    ],
)
def test_data_that_cannot_be_read_is_explained_and_no_other_error(error: Exception, sentence: str | None) -> None:
    said = explain_unreadable_data(error)
    assert (sentence in said) if sentence is not None else said == ""


def test_the_cause_of_a_failed_bucket_is_said() -> None:
    error = ValueError("S3StorageDriver cannot read")
    error.__cause__ = OSError("no route")
    assert explain_unreadable_data(error) == "S3StorageDriver cannot read: no route."


def test_the_interpreter_waits_for_temporals_threads_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, it aborts now and then (temporalio 1.35 on Python 3.11)."""
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *call: registered.append(call[1:]))
    connect._wait_at_exit.__wrapped__()
    assert registered == [(EXIT_SECONDS,)]


def test_lines_of_tasks_are_read_with_their_numbers_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"input": "One."}\n\n   \n{"input": {"prompt": "Two.", "agent": "a"}, "expected": 2}\n')
    lines = read_cases(file, "a").lines
    assert [(line.id, line.input.prompt, line.expected) for line in lines] == [
        ("tasks.jsonl:1", "One.", None), ("tasks.jsonl:4", "Two.", 2),
    ]  # fmt: skip
    assert [line.id for line in read_cases(tmp_path, "a").lines] == ["tasks.jsonl:1", "tasks.jsonl:4"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 1 is not JSON"),
        ("[" * 2_000 + "]" * 2_000, "line 1 is nested too deeply."),
        ("1", 'line 1 must be one JSON object with "input"'),
        ('{"expected": 1}', 'line 1 must be one JSON object with "input"'),
        ('{"input": "x", "more": 1}', 'line 1 must be one JSON object with "input"'),
        ('{"input": {"agent": "b", "prompt": "x"}}', "line 1 is of the agent 'b', not of 'a'."),
        ('{"input": {"prompts": "x"}}', "line 1: "),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f"{line}\n")
    with pytest.raises(CaseError) as refused:
        read_cases(file, "a")
    assert sentence in str(refused.value)


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("{}")
    with pytest.raises(CaseError, match="has no case"):
        read_cases(tmp_path, "a")
    with pytest.raises(CaseError, match="cannot be read"):
        read_cases(tmp_path / "none.json", "a")


async def test_other_workers_are_listed_once_for_each_set_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their latest poll first; those with the same agents, and those of a user's own, are none."""
    own = ServedAgents("shop", frozenset({"a"}))
    tags = [ServedAgents("shop", frozenset({f"b{number}"})).tag for number in range(MOST_SETS + 2)]
    polled = [f"1@own{own.tag}", "2@users", *(f"{number}@host{tag}" for number in (3, 4) for tag in tags)]

    async def recent(*_: Any) -> dict[str, datetime]:
        return dict.fromkeys(polled, datetime.now(UTC))

    monkeypatch.setattr(served_agents, "recent_pollers", recent)
    assert await read_other_workers(cast(Any, None), own) == {tag: f"3@host{tag}" for tag in tags[:MOST_SETS]}


class _Sent(Exception):
    """The update was sent."""


class _Client:
    def get_workflow_handle(self, *_: Any) -> Any:
        raise _Sent


async def test_an_update_may_have_so_many_bytes_without_those_of_its_images() -> None:
    """They are stored elsewhere when it is sent."""

    async def send(**fields: Any) -> None:
        await send_update(cast(Any, _Client()), "run", "send_message", fields)

    large = "x" * MOST_BYTES
    with pytest.raises(UpdateTooLargeError, match=f"the limit is {MOST_BYTES:,}"):
        await send(text=large)
    with pytest.raises(UpdateTooLargeError):
        await send(content=[{"type": "text", "text": large}])
    for content in ([{"type": "image", "media_type": "image/png", "data": large}], ["a text"], None):
        with pytest.raises(_Sent):
            await send(text="Look.", content=content)
    fitting = MOST_BYTES - len(json.dumps({"text": "", "content": []}))
    with pytest.raises(_Sent):
        await send(text="x" * fitting)
    with pytest.raises(UpdateTooLargeError):
        await send(text="x" * (fitting + 1))


def test_a_worker_logs_text_and_reads_what_is_not_encrypted_unless_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MULLIGAN_LOG_FORMAT", "MULLIGAN_ENCRYPTION_STRICT"):
        monkeypatch.delenv(name, raising=False)
    assert (Settings().log_format, Settings().encryption_strict) == ("text", False)


def test_what_is_pruned_are_the_old_files_themselves(tmp_path: Path) -> None:
    """A link is followed neither to its file nor away from it, and other names are not ours."""
    stored = StoredFiles(tmp_path / "content", "content", creates_folder=True)
    name, other = "a" * 64, "b" * 64
    stored.write(name, b"12345")
    folder = tmp_path / "content" / "aa"
    (folder / other).symlink_to(folder / name)
    (folder / "notes").write_text("mine")
    for each in ("notes", name):
        os.utime(folder / each, (0, 0))
    assert stored.prune(1e9, dry_run=True) == (1, 5)
    assert stored.prune(1e9) == (1, 5)
    assert sorted(each.name for each in folder.iterdir()) == [other, "notes"]
