"""Start and stop Temporal's dev server on 127.0.0.1, or use a server that already runs."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from mulligan.devserver._process import process_group
from mulligan.devserver.download import quiet_runtime
from mulligan.devserver.find import DevServerError, find_temporal
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES

LOOPBACK = "127.0.0.1"
NAMESPACE = "default"

# Server 1.32 still has the defaults that these replace. Measured on it, each without and with the setting
# (docs/decisions/2026-11-25-dev-server-from-the-package-index.md):
DYNAMIC_CONFIG = (
    # 20 polls a second: a step of a lone run takes 34 ms instead of 16.
    "history.transferProcessorMaxPollRPS=10000",
    # 4 partitions of each task queue: a step of a lone run takes 1.2 times as long.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # 20 polls a second: timers of 40 runs are late by 191 ms instead of 12 (median).
    "history.timerProcessorMaxPollRPS=10000",
    # 1 s: a timer, and so each retry of an activity, is 906 ms late instead of 14.
    'history.timerProcessorMaxTimeShift="50ms"',
    # 1 min and 10 s: so long tasks go to the open polls of a lost machine (docs/decisions/2026-11-27-lost-workers.md).
    'frontend.keepAliveTime="1s"',
    'frontend.keepAliveTimeout="2s"',
)

_SECONDS_TO_START = 60
_SECONDS_TO_STOP = 10
_SECONDS_TO_ANSWER = 5
_SECONDS_BETWEEN_TRIES = 0.02
_LAST_LINES = 3
"""Lines of the server's output that are in the error if it does not start."""


class PortInUseError(DevServerError):
    """A requested port cannot be used, usually because another program listens on it."""

    def __init__(self, port: int, why: str) -> None:
        super().__init__(
            f"port {port} on 127.0.0.1 cannot be used ({why}): stop the program that uses it, or choose another port"
        )
        self.port = port


class ServerEndedError(DevServerError):
    """The dev server ended by itself while it was used. The message ends with the last lines of its output."""


class ServerStartError(DevServerError):
    """The dev server ended, or did not answer, while it started. The message ends with the last lines of its output."""


async def _forever() -> None:
    await asyncio.Event().wait()


@dataclass(frozen=True)
class DevServer:
    """A Temporal server that answers. `embedded`: this process started it, so it needs no TLS and no API key."""

    address: str
    namespace: str
    ui_url: str | None
    embedded: bool = True
    until_ended: Callable[[], Awaitable[None]] = field(default=_forever, compare=False, repr=False)
    """Waits until the server that this process started has ended by itself, and then raises a `ServerEndedError`."""


def _ignore(_: str) -> None:
    pass


@asynccontextmanager
async def temporal_server(
    *,
    port: int | None = None,
    ui_port: int | None = None,
    db: Path | None = None,
    dynamic_config: Sequence[str] = (),
    options: Sequence[str] = (),
    progress: Callable[[str], None] = _ignore,
) -> AsyncIterator[DevServer]:
    """Run a dev server while the block runs. It ends with this process, also after `kill -9`.

    Args:
        port: the port for clients; a free port if None.
        ui_port: the port of the web UI; a free port if None.
        db: a SQLite file that stores the runs; they are in memory only if None.
        dynamic_config: more settings of Temporal's dynamic configuration, each as `key=value`.
        options: more options of `temporal server start-dev`.
        progress: gets a line every few seconds while the program is fetched.

    Raises:
        NoDevServerError: there is no `temporal` program, and it cannot be fetched.
        PortInUseError: a requested port is in use.
        ServerStartError: the server ended, or did not answer, while starting.
    """
    for requested in (port, ui_port):
        if requested is not None:
            _check_port(requested)
    program = await find_temporal(progress)
    port, ui_port = port or _free_port(), ui_port or _free_port()
    server = DevServer(f"{LOOPBACK}:{port}", NAMESPACE, f"http://{LOOPBACK}:{ui_port}")
    async with process_group(*_command(program, port, ui_port, db, dynamic_config), *options) as process:
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        reading = asyncio.create_task(_read_output(process, last_lines))
        try:
            await _wait_until_it_answers(server, process, reading, last_lines)

            async def until_ended() -> None:
                await asyncio.wait({reading})
                raise ServerEndedError(
                    f"Temporal's dev server has ended ({await process.wait()}): {_joined(last_lines)}"
                )

            yield replace(server, until_ended=until_ended)
        finally:
            # With runs in memory there is nothing to save: it is killed, which takes 2 s less than a graceful stop.
            if db is not None and process.returncode is None:
                process.terminate()
                await asyncio.wait({reading}, timeout=_SECONDS_TO_STOP)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def any_server(progress: Callable[[str], None]) -> AsyncIterator[DevServer]:
    """Use the server at TEMPORAL_ADDRESS (or of a temporal.toml profile) if it answers, else start a dev server.

    Raises:
        DevServerError: as `temporal_server` does.
    """
    running = await _configured_server(progress)
    if running is not None:
        yield running
        return
    async with temporal_server(progress=progress) as server:
        yield server


def _command(
    program: Path, port: int, ui_port: int, db: Path | None, dynamic_config: Sequence[str]
) -> list[str | Path]:
    command: list[str | Path] = [program, "server", "start-dev", "--ip", LOOPBACK, "--log-level", "error"]
    command += ["--port", str(port), "--ui-port", str(ui_port)]
    for setting in (*DYNAMIC_CONFIG, *dynamic_config):
        command += ["--dynamic-config-value", setting]
    for attribute in SEARCH_ATTRIBUTES:
        command += ["--search-attribute", f"{attribute.name}=Keyword"]
    if db is not None:
        command += ["--db-filename", db.absolute()]
    return command


async def _read_output(process: asyncio.subprocess.Process, last_lines: deque[str]) -> None:
    # The output must be read: once the pipe is full, the server would block.
    assert process.stdout is not None
    async for line in process.stdout:
        last_lines.append(line.decode(errors="replace").strip())


async def _wait_until_it_answers(
    server: DevServer, process: asyncio.subprocess.Process, reading: asyncio.Task[None], last_lines: deque[str]
) -> None:
    config: ClientConnectConfig = {"target_host": server.address, "namespace": server.namespace}
    try:
        async with asyncio.timeout(_SECONDS_TO_START):
            while process.returncode is None:
                # The return code is checked again: another server may have taken the port first and be answering.
                if await _answers(config) and process.returncode is None:
                    return
                await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
            await reading
            problem = "ended while starting"
    except TimeoutError:
        problem = f"did not answer at {server.address} within {_SECONDS_TO_START} s"
    raise ServerStartError(f"Temporal's dev server {problem}: {_joined(last_lines)}")


def _joined(last_lines: Iterable[str]) -> str:
    return " / ".join(line for line in last_lines if line) or "it printed nothing"


async def _configured_server(progress: Callable[[str], None]) -> DevServer | None:
    try:
        profile = ClientConfigProfile.load()
        config = profile.to_client_connect_config()
    except (RuntimeError, OSError) as error:
        progress(f"Temporal's configuration cannot be read ({error}): starting a dev server")
        return None
    if not profile.address:
        return None
    try:
        async with asyncio.timeout(_SECONDS_TO_ANSWER):
            answers = await _answers(config)
    except TimeoutError:
        answers = False
    if answers:
        return DevServer(profile.address, profile.namespace or NAMESPACE, ui_url=None, embedded=False)
    progress(f"no Temporal server answers at {profile.address}: starting a dev server")
    return None


async def _answers(config: ClientConnectConfig) -> bool:
    try:
        client = await Client.connect(**config, runtime=quiet_runtime())
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        # A server that refuses this call, or has no such namespace, does answer: the error is reported on connecting.
        return error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}
    except (RuntimeError, ValueError, OSError):
        # The SDK raises these for a failed connection, an invalid address, and a missing certificate.
        return False
    return True


def _check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise PortInUseError(port, "it is not between 0 and 65535")
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
        raise PortInUseError(port, why) from error


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        if sys.platform == "linux":
            # A connection that the listening side closes first stays in TIME_WAIT. For a minute the system then does not
            # choose this port for others, but allows it to be bound by number. So servers can start side by side.
            with socket.create_connection((LOOPBACK, port)), suppress(OSError):
                listener.accept()[0].close()
    return port
