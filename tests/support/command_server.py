"""`mulligan …` and `worker.py` as processes that need not import everything again.

A process of Python takes half a second to two seconds of CPU time before it does anything, and the tests start hundreds of commands. So
one process imports what they need, once, and forks for each command. What a test gets is a process of its own, with its own
environment, folder, input, output, signals and exit code; only the imports have been made already. Tests of those (and of what
`ps` shows, or of another folder's modules) start a new Python.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PIPE, DEVNULL = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
IMPORTED = (
    *(
        "mulligan.cli.app",
        "mulligan.cli._follow",
        "mulligan.cli._live_view",
        "mulligan.cli._people",
        "mulligan.cli._runs",
    ),
    *(
        "mulligan.cli._sub_runs",
        "mulligan.cli._trace",
        "mulligan.client.connect",
        "mulligan.worker.process",
        "mulligan.worker.wiring",
    ),
    "openai.resources.chat.completions",
    "openai.resources.responses",
)
_MOST_BYTES = 150_000


class CommandServer:
    """The process that forks. It ends when this process does."""

    def __init__(self) -> None:
        self.path = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> str:
        """Start it, unless it runs; return the path of its socket, on which it answers once it has imported everything."""
        if not self.path:
            self._folder = tempfile.TemporaryDirectory(prefix="commands-")
            self.path = os.path.join(self._folder.name, "socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(self.path)
                listener.listen(128)
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.command_server", str(listener.fileno())],
                    cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[listener.fileno()],
                )  # fmt: skip
        return self.path

    def stop(self) -> None:
        """End it, if this process has started it. Commands that still run are not ended."""
        if self._process is not None and self._folder is not None:
            self._process.communicate()
            self._folder.cleanup()
        self._process, self._folder, self.path = None, None, ""


COMMAND_SERVER = CommandServer()
"""That of this process, or the path of the one that several processes share."""


class CommandProcess:
    """A process as asyncio's: the same methods, for a process that another one has started."""

    def __init__(self, pid: int, connection: socket.socket, pipes: dict[str, asyncio.StreamReader]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self._stdout, self._stderr = pipes.get("stdout"), pipes.get("stderr")
        self._ended = asyncio.create_task(self._until_ended(connection))

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        return self._stdout

    @property
    def stderr(self) -> asyncio.StreamReader | None:
        return self._stderr

    async def _until_ended(self, connection: socket.socket) -> int:
        with connection:
            self.returncode = int(await asyncio.get_running_loop().sock_recv(connection, 20))
        return self.returncode

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """What it writes until it has ended."""
        out, err = await asyncio.gather(*(self._read(stream) for stream in (self._stdout, self._stderr)))
        await self.wait()
        return out, err

    async def _read(self, stream: asyncio.StreamReader | None) -> bytes:
        return await stream.read() if stream is not None else b""

    def send_signal(self, number: int) -> None:
        """Send it, unless the process has ended."""
        with suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def start_command(
    *words: str,
    env: Mapping[str, str],
    cwd: Path = ROOT,
    given: bytes = b"",
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    module: str = "",
) -> CommandProcess:
    """Start `mulligan …`.

    Args:
        module: In place of `mulligan`: a program of tests, whose `run` is called.
        given: What it can read from its stdin.
        stdin: A file descriptor in place of `given`.
        stdout: `PIPE`, `DEVNULL`, a file descriptor, or None for that of this process.
        stderr: The same.
    """
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends: list[int] = []
    pipes: dict[str, asyncio.StreamReader] = {}
    try:
        if stdin is None:
            with tempfile.TemporaryFile() as file:
                file.write(given)
                file.seek(0)
                ends.append(os.dup(file.fileno()))
        else:
            ends.append(os.dup(stdin))
        for name, where, own in (("stdout", stdout, 1), ("stderr", stderr, 2)):
            if where == PIPE:
                ours, theirs = os.pipe()
                ends.append(theirs)
                pipes[name] = reader = asyncio.StreamReader()
                await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), os.fdopen(ours, "rb", 0))
            else:
                own = own if where is None else where
                ends.append(os.open(os.devnull, os.O_RDWR) if where == DEVNULL else os.dup(own))
        connection.connect(COMMAND_SERVER.start())
        connection.setblocking(False)
        request = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd), "module": module}).encode()
        assert len(request) < _MOST_BYTES
        socket.send_fds(connection, [request], ends)
    finally:
        for end in ends:
            os.close(end)
    pid = int(await loop.sock_recv(connection, 20))  # on a busy machine the imports take more than a minute
    return CommandProcess(pid, connection, pipes)


async def run_command(
    *words: str, env: Mapping[str, str], cwd: Path = ROOT, given: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Run `mulligan …` to its end: exit code, stdout, stderr."""
    process = await start_command(*words, env=env, cwd=cwd, given=given, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    return await process.wait(), out, err


def _serve(listener: socket.socket) -> None:
    """Fork for each request, until the process that has started this one ends and so closes its stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        _collect()
        message, ends, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if os.fork() == 0:
            listener.close()
            _watch(connection, json.loads(message), ends)
        connection.close()
        for end in ends:
            os.close(end)
    _collect()


def _collect() -> None:
    """Wait for those that have ended: otherwise they stay as zombies, and their CPU time is not counted."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(connection: socket.socket, request: dict[str, Any], ends: list[int]) -> None:
    """Start the command, and report its process id and then its exit code."""
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(request, ends)
    for end in (0, 1, 2, *ends):
        os.close(end)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(request: dict[str, Any], ends: list[int]) -> None:
    from mulligan.cli import _terminal
    from mulligan.cli.app import main

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, end in enumerate(ends):
            os.dup2(end, number)
            os.close(end)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        for console in (_terminal.out, _terminal.err):
            type(console).__init__(console, stderr=console.stderr)  # it has read COLUMNS when it was made
        sys.path[:1] = [str(Path(sys.executable).parent), *filter(None, os.getenv("PYTHONPATH", "").split(os.pathsep))]
        sys.argv = [request["module"] or "mulligan", *request["words"]]
        sys.orig_argv = [sys.executable, "-m", *sys.argv]  # a supervisor starts its processes by it
        if request["module"]:
            importlib.import_module(request["module"]).run()
            sys.stderr.flush()
            os._exit(0)
        main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
