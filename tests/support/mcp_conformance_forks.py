"""Clients of the MCP conformance suite, as forks of one process: the suite starts a program for each of its scenarios.

That program only hands over its environment, address and output, and ends as the fork does. A start of Python that imports all
that a session needs takes a second of CPU time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

MESSAGE_BYTES = 150_000
PROGRAM = Path(__file__)


@asynccontextmanager
async def client_command() -> AsyncIterator[str]:
    """The command of the suite's client, while the process that is forked from runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # a name that the system chooses
        listener.listen(128)
        name = listener.getsockname()[1:].decode()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.mcp_conformance_forks", "--serve", str(listener.fileno()),
            cwd=PROGRAM.parents[2], stdin=asyncio.subprocess.DEVNULL, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            yield f"{sys.executable} -I -S {PROGRAM} {name}"
        finally:
            process.kill()
            await process.wait()


def hand_over(name: str, url: str) -> int:
    """Have a fork do the work of this process; returns its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{name}".encode())
        request = json.dumps({"url": url, "env": dict(os.environ)}).encode()
        assert len(request) < MESSAGE_BYTES
        socket.send_fds(connection, [request], [1, 2])
        return int(connection.recv(20) or b"1")


def serve(listener: socket.socket) -> None:
    """Fork for each connection, until this process is killed."""
    from tests.support import mcp_conformance_client  # noqa: F401 - forks have it

    gc.freeze()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run(connection)
        connection.close()


async def _client(url: str, connection: socket.socket) -> None:
    """The client of a scenario, until the program that has handed it over ends."""
    from tests.support.mcp_conformance_client import main

    asyncio.get_running_loop().add_reader(connection, os._exit, 1)
    await main(url)


def _run(connection: socket.socket) -> None:
    code = 1
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
        request = json.loads(message)
        os.environ.clear()
        os.environ.update(request["env"])
        asyncio.run(_client(request["url"], connection))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        connection.send(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[2])))
    sys.exit(hand_over(*sys.argv[1:]))
