"""The supervisor of one isolated call: it forks the call's process, watches it, and ends it with all that it has started.

Descendants of the call whose parents end become children of the supervisor. So when it has no child, none of them is left,
whatever sessions and groups they are in; only then it answers. If the call kills it, the template does the same in its
place (isolated_template.py).
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, NoReturn

from mulligan.activities.tool_running.isolated_child import (
    LENGTH_BYTES,
    Request,
    answer_call,
    out_of_memory,
)
from mulligan.activities.tool_running.process_tree import (
    adopt_orphans,
    children_of,
    end_tree,
    memory_of,
    processes_below,
)

MAX_RESPONSE_BYTES = 32_000_000
MAX_PROCESSES = 64
"""Of one call. They take the machine's time and process ids from others, however little memory each has."""
LOOK_SECONDS = 0.05
"""Between two looks at a call's processes and their memory."""


def supervise(call: socket.socket, link: socket.socket, folder: str, inherited: Sequence[socket.socket]) -> NoReturn:
    """Serve one call, and end this process.

    Args:
        call: Where the worker sends the Request and gets the response.
        link: A socket whose other end the template has.
        folder: A folder to create for the call's temporary files. It is removed with the call.
        inherited: The template's sockets, to be closed: no call may reach another one's.
    """
    try:
        for each in inherited:
            each.close()
        adopt_orphans()
        request: Request = pickle.loads(_read(call))  # noqa: S301 - the worker wrote it
        os.mkdir(folder, 0o700)
        answers, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            for each in (call, link, answers):
                each.close()
            answer_call(request, theirs, folder)
        theirs.close()
        response = _Watch(child, answers, link, request).response()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        end_children()
        remove_folder(folder)
        call.sendall(request.id + response)
    finally:
        os._exit(0)


def end_children() -> None:
    """End all children of this process, with all below them. Whoever loses its parent becomes one of them and ends too."""
    with suppress(ChildProcessError):  # none is left
        while True:
            end_tree(children_of(os.getpid()))
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.0005)


class _Watch:
    """Waits for the response of a call's process, and looks at what it and its descendants take."""

    def __init__(self, child: int, answers: socket.socket, link: socket.socket, request: Request) -> None:
        self._child, self._link, self._request = child, link, request
        self._answers: socket.socket | None = answers
        self._received = bytearray()
        self._status: int | None = None

    def response(self) -> bytes:
        """The call's own response as JSON, or a response with the reason why the call gave none."""
        now = time.monotonic()
        end, next_look = now + self._request.limit, now + LOOK_SECONDS
        while now < end:
            sockets = [each for each in (self._link, self._answers) if each is not None]
            ready = wait(sockets, max(0.0, min(end, next_look) - now))
            if self._link in ready:  # the template has ended
                return _json({"died": "its process was killed"})
            if self._answers in ready:
                if (response := self._received_response()) is not None:
                    return response
            elif self._status is not None:
                return _json({"died": f"its process {_how_it_ended(self._status)}"})
            self._reap()
            now = time.monotonic()
            if now >= next_look:
                next_look = now + LOOK_SECONDS
                if (excess := self._excess()) is not None:
                    return _json(excess)
        return _json({"timeout": True})

    def _received_response(self) -> bytes | None:
        """Read once; the response if all of it is there."""
        assert self._answers is not None
        chunk = self._answers.recv(1 << 16)
        if not chunk:
            self._answers = None
        self._received += chunk
        if len(self._received) < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._received[:LENGTH_BYTES], "big")
        if length > MAX_RESPONSE_BYTES:
            return _json({"died": f"its result has {length:,} bytes; the limit is {MAX_RESPONSE_BYTES:,}"})
        is_whole = len(self._received) >= LENGTH_BYTES + length
        return bytes(self._received[LENGTH_BYTES : LENGTH_BYTES + length]) if is_whole else None

    def _reap(self) -> None:
        """Wait for the processes that have ended, orphans of the call too, and remember how its own ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self._status = os.waitstatus_to_exitcode(ended[1])

    def _excess(self) -> dict[str, str] | None:
        """The response if the call takes more than it may."""
        processes = processes_below(os.getpid())
        if len(processes) > MAX_PROCESSES:
            return {"died": f"it had more than the {MAX_PROCESSES} processes that it may have"}
        if sum(map(memory_of, processes)) > self._request.memory_bytes:
            return out_of_memory(self._request)
        return None


def _read(call: socket.socket) -> bytes:
    """A framed message. It is short if the worker has ended, and then no Request."""
    with call.makefile("rb") as stream:
        return stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "big"))


def _json(response: dict[str, Any]) -> bytes:
    return json.dumps(response).encode()


def remove_folder(folder: str) -> None:
    """Remove a folder, however deeply what a call has written there is nested."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # its folders are nested too deeply for Python
        with suppress(OSError):
            subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)  # noqa: S603, S607 - ours


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"
