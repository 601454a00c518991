"""Start Temporal's dev server on loopback, and stop it; or take the one that runs already."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from mulligan.devserver._process import process_group
from mulligan.devserver._runtime import quiet_runtime
from mulligan.devserver.errors import PortInUseError, ServerStartError
from mulligan.devserver.find import find_temporal

LOOPBACK = "127.0.0.1"
NAMESPACE = "default"

DYNAMIC_CONFIG = (
    # As it comes, a lone run gets 10 activities a second (202 ms a step; 20 ms with these).
    "history.transferProcessorMaxPollRPS=10000",
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # Activities then stay with the workflow's own worker, whose cache holds the conversation.
    "system.enableActivityEagerExecution=true",
)

_SECONDS_TO_START = 60
_SECONDS_TO_STOP = 10
_SECONDS_TO_ANSWER = 5
_SECONDS_BETWEEN_TRIES = 0.02
_LAST_WORDS = 3


@dataclass(frozen=True)
class DevServer:
    """A Temporal server that answers. `embedded`: this process started it, so no profile's TLS or key is for it."""

    address: str
    namespace: str
    ui_url: str | None
    embedded: bool = True


def _say_nothing(_: str) -> None:
    pass


@asynccontextmanager
async def temporal_server(
    *,
    port: int | None = None,
    ui_port: int | None = None,
    db: Path | None = None,
    dynamic_config: Sequence[str] = (),
    progress: Callable[[str], None] = _say_nothing,
) -> AsyncIterator[DevServer]:
    """Run a dev server of our own for the length of the block. It dies with this process, even by `kill -9`.

    Args:
        port: for clients; any free one if None.
        ui_port: for the web UI; any free one if None.
        db: a SQLite file that keeps the runs; in memory if None.
        dynamic_config: more of Temporal's dynamic settings, each as `key=value`.
        progress: told a line now and then while the program is fetched.

    Raises:
        NoDevServerError: there is no `temporal` program, nor a way to get one.
        PortInUseError: a port that was asked for is taken.
        ServerStartError: the server ended, or did not answer, while starting.
    """
    for asked in (port, ui_port):
        if asked is not None:
            _must_be_free(asked)
    program = await find_temporal(progress)
    port, ui_port = port or _free_port(), ui_port or _free_port()
    server = DevServer(f"{LOOPBACK}:{port}", NAMESPACE, f"http://{LOOPBACK}:{ui_port}")
    async with process_group(*_command(program, port, ui_port, db, dynamic_config)) as process:
        last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        listening = asyncio.create_task(_listen(process, last_words))
        try:
            await _until_it_answers(server, process, listening, last_words)
            yield server
        finally:
            # In memory there is nothing to save: it is killed, 2 s sooner than it would stop by itself.
            if db is not None and process.returncode is None:
                process.terminate()
                await asyncio.wait({listening}, timeout=_SECONDS_TO_STOP)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


@asynccontextmanager
async def any_server(progress: Callable[[str], None]) -> AsyncIterator[DevServer]:
    """The server at TEMPORAL_ADDRESS (or at the address of a temporal.toml profile) if it answers, else one of our own.

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
    if db is not None:
        command += ["--db-filename", db.absolute()]
    return command


async def _listen(process: asyncio.subprocess.Process, last_words: deque[str]) -> None:
    # Always read, or the server would stand still once the pipe is full.
    assert process.stdout is not None
    async for line in process.stdout:
        last_words.append(line.decode(errors="replace").strip())


async def _until_it_answers(
    server: DevServer, process: asyncio.subprocess.Process, listening: asyncio.Task[None], last_words: deque[str]
) -> None:
    config: ClientConnectConfig = {"target_host": server.address, "namespace": server.namespace}
    try:
        async with asyncio.timeout(_SECONDS_TO_START):
            while process.returncode is None:
                # The code once more: what answers may be another's server, which took the port a moment before ours.
                if await _answers(config) and process.returncode is None:
                    return
                await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
            await listening
            what = "ended while starting"
    except TimeoutError:
        what = f"did not answer at {server.address} within {_SECONDS_TO_START} s"
    said = " / ".join(word for word in last_words if word) or "it said nothing"
    raise ServerStartError(f"Temporal's dev server {what}: {said}")


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
        # A server that refuses this question, or knows no such namespace, is there all the same: who connects is told.
        return error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}
    except (RuntimeError, ValueError, OSError):
        # The SDK's words for "no connection", for an address that is none, and for a certificate that is not there.
        return False
    return True


def _must_be_free(port: int) -> None:
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
            # A connection that the listening side closes first rests in TIME_WAIT: for a minute the system gives the
            # port to nobody who asks for any, while who asks for this one gets it. So servers can start side by side.
            with socket.create_connection((LOOPBACK, port)), suppress(OSError):
                listener.accept()[0].close()
    return port
