"""Temporal's real dev server: its start, its use and its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from mulligan.devserver import DevServer, any_server, dev_server, temporal_server
from tests.support.processes import descendants_with, is_running

PROJECT = Path(__file__).parents[2]

SERVE = """
import asyncio, sys
from mulligan.devserver import temporal_server
async def main():
    async with temporal_server() as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _no_configured_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "temporal.toml"
    config.touch()
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(config))


def processes_of(address: str) -> list[int]:
    """The ids of the server process for this address and of the shell that watches it."""
    return descendants_with(address.rpartition(":")[2])


def serves(processes: list[int]) -> bool:
    return any(is_running(pid) for pid in processes)


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.02)


async def start_a_workflow(server: DevServer) -> None:
    client = await Client.connect(server.address, namespace=server.namespace)
    await client.start_workflow("Any", id="it", task_queue="nobody")


async def test_the_server_accepts_workflows_at_once_and_is_gone_after_the_block():
    async with temporal_server() as server:
        assert server.address.startswith("127.0.0.1:")
        assert server.embedded
        started = processes_of(server.address)
        assert started
        await start_a_workflow(server)
    assert not serves(started)


async def test_the_web_ui_of_the_server_responds():
    async with temporal_server() as server:
        assert server.ui_url is not None
        host, _, port = server.ui_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
        await writer.wait_closed()


async def test_several_servers_run_side_by_side():
    async with temporal_server() as one, temporal_server() as other:
        assert one.address != other.address
        await asyncio.gather(start_a_workflow(one), start_a_workflow(other))


async def test_a_requested_port_is_used_and_can_be_used_again():
    async with temporal_server() as chosen:
        port = int(chosen.address.rpartition(":")[2])
    async with temporal_server(port=port) as server:
        assert server.address == chosen.address


async def test_with_a_database_file_the_runs_outlive_the_server(tmp_path):
    for time in ("first", "second"):
        async with temporal_server(db=tmp_path / "runs.db") as server:
            client = await Client.connect(server.address)
            if time == "first":
                await client.start_workflow("Any", id="it", task_queue="nobody")
            described = await client.get_workflow_handle("it").describe()
            assert described.status is WorkflowExecutionStatus.RUNNING
            started = processes_of(server.address)
            assert started
        assert not serves(started)


async def test_the_server_is_gone_when_the_block_raises():
    started: list[int] = []

    async def fail() -> None:
        async with temporal_server() as server:
            started.extend(processes_of(server.address))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert started
    assert not serves(started)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_the_server_dies_with_the_process_that_started_it(by):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        started = processes_of(address)
        assert started
        process.send_signal(by)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    await until(lambda: not serves(started))


async def test_any_server_uses_the_server_that_answers_at_temporal_address(monkeypatch):
    async with temporal_server() as running:
        monkeypatch.setenv("TEMPORAL_ADDRESS", running.address)
        said: list[str] = []
        async with any_server(said.append) as server:
            assert server == DevServer(running.address, "default", ui_url=None, embedded=False)
        assert said == []
        assert serves(processes_of(running.address))


async def test_any_server_reads_the_address_of_a_temporal_profile(tmp_path):
    async with temporal_server() as running:
        (tmp_path / "temporal.toml").write_text(f'[profile.default]\naddress = "{running.address}"\n')
        async with any_server(lambda _: None) as server:
            assert server.address == running.address
            assert not server.embedded


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
async def test_any_server_starts_one_where_none_answers_and_says_so(monkeypatch, address):
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    said: list[str] = []
    async with any_server(said.append) as server:
        assert server.embedded
        await start_a_workflow(server)
    assert f"no Temporal server answers at {address}" in said[0]


async def test_any_server_does_not_wait_for_a_server_that_accepts_and_never_answers(monkeypatch):
    monkeypatch.setattr(dev_server, "_SECONDS_TO_ANSWER", 0.5)

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(never, "127.0.0.1", 0)
    async with silent:
        monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        said: list[str] = []
        async with any_server(said.append) as server:
            assert server.embedded
    assert "no Temporal server answers" in said[0]


async def test_any_server_without_an_address_starts_one_silently():
    said: list[str] = []
    async with any_server(said.append) as server:
        assert server.embedded
    assert not [line for line in said if "answers" in line]


async def test_any_server_says_that_a_configuration_cannot_be_read(tmp_path):
    (tmp_path / "temporal.toml").write_text("this is no toml")
    said: list[str] = []
    async with any_server(said.append) as server:
        assert server.embedded
    assert "cannot be read" in said[0]
