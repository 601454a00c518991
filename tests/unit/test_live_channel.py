"""The live channel on one machine, with real sockets and processes: who is told what, whoever dies, freezes or does not read."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mulligan.client.encryption import FrameSeal
from mulligan.client.event_position import Position
from mulligan.client.live_reader import LiveReader
from mulligan.live import publisher as publishing
from mulligan.live import sockets
from mulligan.live.publisher import Publisher
from mulligan.live.socket_folder import MOST_PATH_BYTES, UnusableFolderError, check_folder, socket_folder
from mulligan.live.sockets import connect_to_all, listening
from mulligan.live.subscriptions import Subscription, Subscriptions
from mulligan.wire.event_types import LiveText
from mulligan.wire.live_frames import (
    MOST_LINE_BYTES,
    CallEnd,
    CallOpen,
    CallPlace,
    News,
    Sealed,
    Unwatch,
    Watch,
    Written,
    line_of,
    server_frame,
    worker_frame,
    worker_line,
)

PLACE = CallPlace(workflow="w", run="r", scheduled=1_010, attempt=1, conversation="0", step=1)
WRITING = {"step": 1, "at": "1970-01-01T00:00:01+00:00", "conversation": "0"}


class Words:
    """What a call has written: the newest characters of it."""

    def __init__(self, kept: int = 16_000) -> None:
        self.text, self.kept = "", kept

    def snapshot(self) -> LiveText:
        start = max(0, len(self.text) - self.kept)
        return LiveText(conversation="0", step=1, attempt=1, start=start, text=self.text[start:])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = Path(f"/tmp/mulligan-test-{os.getpid()}-{tmp_path.name[-4:]}")
    check_folder(made, create=True)
    return made


@pytest.fixture(autouse=True)
def no_sockets_stay(folder: Path) -> Any:
    yield
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


@asynccontextmanager
async def publisher_in(folder: Path) -> AsyncIterator[Publisher]:
    made = Publisher()
    async with made.opened(), listening(made, folder):
        yield made


def subscriptions_in(folder: Path) -> Subscriptions:
    return Subscriptions(lambda made: asyncio.create_task(connect_to_all(folder, made)))


def opened_reader() -> LiveReader:
    """A reader whose query has said that the step is being written."""
    made = LiveReader()
    made.take_run("r")
    made.take_query(WRITING)
    return made


async def until(condition: Callable[[], bool], subscription: Subscription) -> None:
    """Wait for what frames bring; each call that is heard of is confirmed by a query."""
    made = subscription.listener
    assert isinstance(made, LiveReader)
    while True:
        subscription.changed.clear()
        if made.needs_query:
            made.take_query(WRITING, made.asks())
        if condition():
            return
        await subscription.changed.wait()


def shown(made: LiveReader, read: Position = Position()) -> str:  # noqa: B008 - it is a value
    return "".join(event.text for event, _ in made.unseen(read) if event.type == "text_delta")


async def test_words_reach_all_that_watch_and_those_that_come_late(folder: Path) -> None:
    """From the first one, in the order in which they were written, whenever the worker starts."""
    one, two, late = opened_reader(), opened_reader(), opened_reader()
    first, second = subscriptions_in(folder), subscriptions_in(folder)
    with first.watching("w", one) as of_one, second.watching("w", two) as of_two:
        async with publisher_in(folder) as published:
            words = Words()
            with published.calling(PLACE, words.snapshot) as wrote:
                for number in range(20):
                    words.text += f"{number} "
                    wrote()
                    await asyncio.sleep(0)
                await until(lambda: shown(one) == words.text, of_one)
                await until(lambda: shown(two) == words.text, of_two)
                with first.watching("w", late) as of_late:
                    await until(lambda: shown(late) == words.text, of_late)
                words.text += "end"
            await until(lambda: shown(one) == words.text, of_one)
            await until(lambda: not one.is_covered(0), of_one)
            published.news("w", "r")
            await until(lambda: one.has_news, of_one)
        assert list(folder.iterdir()) == []


async def test_a_connection_that_comes_back_goes_on_where_it_was(folder: Path) -> None:
    """The server asks for the words after those that it has, and nothing is covered meanwhile."""
    made, words = opened_reader(), Words()
    with subscriptions_in(folder).watching("w", made) as subscription:
        async with AsyncExitStack() as stack:
            published = await stack.enter_async_context(publisher_in(folder))
            with published.calling(PLACE, words.snapshot) as wrote:
                words.text = "Hello"
                wrote()
                await until(lambda: shown(made) == "Hello", subscription)
                await stack.aclose()
                await until(lambda: not made.is_covered(0), subscription)
                words.text = "Hello, world"
                assert shown(made) == "Hello"
                await stack.enter_async_context(published.opened())
                await stack.enter_async_context(listening(published, folder))
                await until(lambda: shown(made) == "Hello, world", subscription)


WORKER = """
import asyncio, sys
from pathlib import Path
from tests.unit.test_live_channel import PLACE, Words, publisher_in

async def main():
    async with publisher_in(Path(sys.argv[1])) as published:
        words = Words()
        with published.calling(PLACE.model_copy(update={"attempt": int(sys.argv[2])}), words.snapshot) as wrote:
            for number in range(100_000):
                words.text += f"{number} "
                wrote()
                await asyncio.sleep(0.005)

asyncio.run(main())
"""


@asynccontextmanager
async def worker(folder: Path, attempt: int = 1) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that writes without end."""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(folder), str(attempt), cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_killed_worker_is_lost_at_once_and_its_socket_is_removed(folder: Path) -> None:
    made = opened_reader()
    with subscriptions_in(folder).watching("w", made) as subscription:
        async with worker(folder) as process:
            await until(lambda: bool(shown(made)), subscription)
            assert made.leased_until > asyncio.get_running_loop().time()
            process.kill()
            await until(lambda: not made.leased_until, subscription)
            while list(folder.iterdir()):
                await asyncio.sleep(0.05)
        async with worker(folder, attempt=2):
            await until(
                lambda: "".join(event.type for event, _ in made.unseen(Position(0, 1, 3)))[:9] == "text_void",
                subscription,
            )


async def test_the_lease_of_a_frozen_worker_ends_though_its_connection_stays(folder: Path) -> None:
    """And begins again when it wakes, with nothing missing."""
    made, clock = opened_reader(), asyncio.get_running_loop().time
    with subscriptions_in(folder).watching("w", made) as subscription:
        async with worker(folder) as process:
            await until(lambda: bool(shown(made)), subscription)
            os.kill(process.pid, signal.SIGSTOP)
            while made.is_covered(clock()):
                await asyncio.sleep(0.1)
            before = shown(made)
            os.kill(process.pid, signal.SIGCONT)
            await until(lambda: made.is_covered(clock()) and len(shown(made)) > len(before), subscription)
            text = shown(made)
            assert text == "".join(f"{number} " for number in range(len(text)))[: len(text)]


async def raw(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    [path] = folder.iterdir()
    return await asyncio.open_unix_connection(str(path))


async def test_a_subscriber_that_does_not_read_takes_no_memory_and_gets_what_there_is_when_it_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it another one is told as before."""
    monkeypatch.setattr(publishing, "FASTEST", 0)
    made, words = opened_reader(), Words()
    async with publisher_in(folder) as published:
        with published.calling(PLACE, words.snapshot) as wrote:
            reader, writer = await raw(folder)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(line_of(Watch(workflow="w")))
            await writer.drain()
            with subscriptions_in(folder).watching("w", made) as subscription:
                for number in range(400):
                    words.text += f"{number:06d}," * 500
                    wrote()
                    await until(lambda: made.place is not None and made.place.start == len(words.text), subscription)
            while len(published._outboxes) > 1:
                await asyncio.sleep(0.01)
            [slow] = published._outboxes
            assert len(slow._changed) == 1
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            end, size = 0, 0
            while end < len(words.text):
                line = await reader.readline()
                size += len(line)
                frame = worker_frame(line)
                if isinstance(frame, Written):
                    assert frame.text == words.text[frame.place.start :][: len(frame.text)]
                    assert frame.place.start == end or frame.is_whole
                    end = frame.place.start + len(frame.text)
            assert size < len(words.text) / 2
            writer.close()


async def test_subscribers_and_their_runs_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is beyond it is closed, or not told; a line that is too long, or no frame, hurts nobody else."""
    monkeypatch.setattr(publishing, "MOST_SUBSCRIBERS", 2)
    monkeypatch.setattr(publishing, "MOST_RUNS", 3)
    async with publisher_in(folder) as published:
        reader, writer = await raw(folder)
        writer.write(b"nonsense\n{}\n" + b"".join(line_of(Watch(workflow=f"w{number}")) for number in range(5)))
        while len(published._watchers) < 3:
            await asyncio.sleep(0.01)
        long, long_writer = await raw(folder)
        long_writer.write(b"x" * 1_000_000)
        assert await _closes(long)
        _second, second_writer = await raw(folder)
        third, third_writer = await raw(folder)
        assert await _closes(third)
        assert sorted(published._watchers) == ["w0", "w1", "w2"]
        writer.write(line_of(Unwatch(workflow="w0")))
        while "w0" in published._watchers:
            await asyncio.sleep(0.01)
        for each in (writer, long_writer, second_writer, third_writer):
            each.close()
        while published._outboxes:
            await asyncio.sleep(0.01)
        assert published._watchers == {}
        assert reader is not None


async def _closes(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_a_peer_of_another_user_is_closed_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with publisher_in(folder) as published:
        uid = os.getuid()
        monkeypatch.setattr("mulligan.live.sockets.os.getuid", lambda: uid + 1)
        reader, writer = await raw(folder)
        assert await _closes(reader)
        assert published._outboxes == set()
        writer.close()


async def test_a_server_leaves_sockets_that_nobody_of_this_user_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the connection; it removes the file of a dead one, and leaves other files alone."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "1-dead.sock"))
    (folder / "notes.txt").write_text("mine")
    monkeypatch.setattr(sockets, "_is_own", lambda _: False)
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        writer.close()
        closed.set()

    async with await asyncio.start_unix_server(serve, str(folder / "2-other.sock")):
        with subscriptions_in(folder).watching("w", opened_reader()):
            await closed.wait()
            while (folder / "1-dead.sock").exists():
                await asyncio.sleep(0.01)
    assert {"notes.txt"} <= {each.name for each in folder.iterdir()}


def test_the_folder_is_the_users_own_and_closed_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert socket_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/mulligan")
    assert socket_folder({"XDG_RUNTIME_DIR": "here"}).name == socket_folder({}).name == f"mulligan-{os.getuid()}"
    folder.chmod(0o755)
    check_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    link = folder / "link"
    link.symlink_to(folder)
    (folder / "file").touch()
    for path, why in {
        link: "is a link",
        folder / "file": "is no folder",
        folder / "no" / "where": "does not exist",
        folder / ("x" * MOST_PATH_BYTES): "too many characters",
    }.items():
        with pytest.raises(UnusableFolderError, match=why):
            check_folder(path, create=True)
    with pytest.raises(FileNotFoundError):
        check_folder(folder / "none")
    uid = os.getuid()
    monkeypatch.setattr("mulligan.live.socket_folder.os.getuid", lambda: uid + 1)
    with pytest.raises(UnusableFolderError, match="another user"):
        check_folder(folder)


@pytest.mark.parametrize(
    "frame",
    [
        CallOpen(place=PLACE),
        Written(place=PLACE, at=1.5, text="a\nb\0"),
        CallEnd(place=PLACE),
        News(workflow="w", run="r"),
    ],
    ids=lambda frame: str(frame.type),
)
def test_a_frame_is_one_line_and_read_as_it_was_sent(frame: Any) -> None:
    line = line_of(frame)
    assert line.count(b"\n") == 1
    assert worker_frame(line) == frame
    assert server_frame(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"type": "newer"}',
        b'{"type": "news", "workflow": "", "run": "r"}',
        line_of(News(workflow="w", run="r")).replace(b'"r"', b'"' + b"r" * 2_000 + b'"'),
        line_of(CallOpen(place=PLACE)).replace(b":1010", b":-1"),
        line_of(Written(place=PLACE, at=1, text="x")).replace(b'"x"', b'"' + b"x" * 20_000 + b'"'),
    ],
)
def test_what_is_no_frame_or_too_large_is_none(line: bytes) -> None:
    assert worker_frame(line) is None


def test_encrypted_frames_are_read_by_who_has_the_key_and_only_for_their_workflow() -> None:
    """With keys, what is not encrypted is nothing."""
    seal, other = FrameSeal({"a": b"1" * 32}), FrameSeal({"a": b"2" * 32})
    frame = Written(place=PLACE, at=1.5, text="secret words")
    line = worker_line(frame, seal)
    assert b"secret" not in line
    assert worker_frame(line, seal) == frame
    assert worker_frame(line, other) is None
    assert worker_frame(line) is None
    assert worker_frame(line_of(frame), seal) is None
    assert worker_frame(line.replace(b'"w"', b'"x"'), seal) is None
    inner = line_of(News(workflow="other", run="r"))
    assert worker_frame(line_of(Sealed(workflow="w", data=b64encode(seal.seal("w", inner)))), seal) is None
    assert worker_frame(b'{"type": "sealed", "workflow": "w", "data": "AAAA"}', seal) is None
    assert worker_line(frame, None) == line_of(frame)
    longest = Written(place=PLACE, at=1.5, text="\0" * 16_384)
    assert worker_frame(worker_line(longest, seal), seal) == longest
    assert len(worker_line(longest, seal)) < MOST_LINE_BYTES
