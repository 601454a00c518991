"""Runs code in child processes that can be killed: `@tool(isolated=True)`, and work on data that may be hostile.

A thread cannot be ended from outside, and code that computes without returning to Python (a regular expression that
backtracks, an SQL function) stops every thread of its process. Here such code runs in a process of its own, with limits on
time, memory and the size of its result that apply whatever it does. Children are kept for the next call, so that only the
first ones pay for starting Python and importing the tool's module.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mulligan.activities.tool_running.isolated_child import LENGTH_BYTES, READY, Request
from mulligan.activities.tool_running.render_result import UnusableResult
from mulligan.activities.tool_running.tool_runtime import TookTooLong
from mulligan.content import Part, Parts

__all__ = ["ChildProcesses", "ProcessDied"]

MEMORY_BYTES = 512_000_000
"""Heap and anonymous mappings of a child."""
MAX_CHARS = 2_000_000
START_SECONDS = 30.0
_MAX_RESPONSE_BYTES = 32_000_000
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(Parts)
_NONE: Mapping[str, Any] = {}


class ProcessDied(Exception):
    """The child process ended before it answered. The message says how, for a model to read."""


class ChildProcesses:
    """The child processes of one worker. Use from one event loop."""

    def __init__(self, most: int | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        """`most`: how many run at once, one for each core where None; more calls wait."""
        self._room = asyncio.Semaphore(most or os.cpu_count() or 2)
        self._memory_bytes = memory_bytes
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: set[asyncio.subprocess.Process] = set()

    async def run(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
        *,
        limit: float,
        max_chars: int = MAX_CHARS,
    ) -> str:
        """Call a function, sync or async; its result as text: a text as it is, anything else as JSON.

        Args:
            function: `module:qualified.name`, as `mulligan.tool.reference_of` returns it.
            args: Positional arguments; they are pickled.
            kwargs: Keyword arguments; they are pickled.
            limit: Seconds. The process is then killed. The time to start it, where none is idle, does not count.
            max_chars: A longer result is cut, with a note.

        Raises:
            TookTooLong: the limit passed; the code does not run any more.
            ProcessDied: it ended its process, or used more memory than it may.
            UnusableResult: its result cannot be written as JSON.
            Exception: what it raised: of the same class, with the same message, where this process has imported the class.
        """
        return self._text(await self._respond(function, args, kwargs, limit=limit, max_chars=max_chars))

    async def run_tool(
        self, function: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NONE, *, limit: float
    ) -> str | list[Part]:
        """The same for a tool: its result as text, or as parts if it has images, files or audio."""
        response = await self._respond(function, args, kwargs, limit=limit, max_chars=MAX_CHARS)
        if "parts" not in response:
            return self._text(response)
        try:
            return _PARTS.validate_python(response["parts"])
        except ValidationError as error:
            raise UnusableResult(str(error.errors()[0]["msg"])) from None

    async def _respond(
        self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, limit: float, max_chars: int
    ) -> dict[str, Any]:
        arguments = pickle.dumps((tuple(args), dict(kwargs)))
        request = pickle.dumps(Request(function, arguments, limit, self._memory_bytes, max_chars))
        try:
            async with self._room:
                child = self._idle.pop() if self._idle else await self._start()
                try:
                    async with asyncio.timeout(limit):
                        response = await _exchange(child, request)
                except BaseException:
                    await self._end(child)
                    raise
                self._idle.append(child)
        except TimeoutError:
            raise TookTooLong(limit) from None
        return response

    async def close(self) -> None:
        """Kill all children."""
        for child in list(self._all):
            await self._end(child)

    async def _start(self) -> asyncio.subprocess.Process:
        # -c and not -m, which would put the current folder first on the child's path: it gets this process's path.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {_CHILD} import main; main()"
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._all.add(child)
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                await child.stdout.readexactly(len(READY))
        except BaseException as error:
            await self._end(child)
            if isinstance(error, TimeoutError | asyncio.IncompleteReadError):
                raise ProcessDied("its process could not be started") from None
            raise
        return child

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Kill a child and whatever it has started."""
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.shield(child.wait())

    def _text(self, response: dict[str, Any]) -> str:
        if "text" in response:
            return str(response["text"])
        if "unusable" in response:
            raise UnusableResult(str(response["unusable"]))
        if "memory" in response:
            raise ProcessDied(f"it needed more than the {self._memory_bytes // 1_000_000} MB of memory that it may use")
        raise _rebuilt([str(name) for name in response["raised"]], str(response["message"]))


_CHILD = "mulligan.activities.tool_running.isolated_child"


async def _exchange(child: asyncio.subprocess.Process, request: bytes) -> dict[str, Any]:
    """Send a request, and read the response.

    Raises:
        ProcessDied: the child ended, or sent what is not a response.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(len(request).to_bytes(LENGTH_BYTES, "big") + request)
        await child.stdin.drain()
        length = int.from_bytes(await child.stdout.readexactly(LENGTH_BYTES), "big")
        if length > _MAX_RESPONSE_BYTES:
            raise ProcessDied(f"its result has {length:,} bytes; {_MAX_RESPONSE_BYTES:,} are the most")
        response = json.loads(await child.stdout.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise ProcessDied(f"its process {_how_it_ended(await child.wait())}") from None
    if not isinstance(response, dict):
        raise ProcessDied("its process sent something that is not a response")
    return response


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"


def _rebuilt(names: Sequence[str], message: str) -> Exception:
    """An exception like the one in the child: of its name, and of its nearest ancestor that this process has imported.

    So `retry_on` and `handle_errors` match it as if it had been raised here. Nothing of the child's is executed.
    """

    def text(_: Exception) -> str:
        return message

    name = names[0].rpartition(":")[2].rpartition(".")[2] if names else "Exception"
    for ancestor in filter(None, (*map(_imported, names), Exception)):
        with suppress(Exception):  # a class may refuse to be subclassed
            kind: type[Exception] = type(name, (ancestor,), {"__str__": text})
            return kind.__new__(kind)  # without `__init__`, which may need arguments of its own
    raise AssertionError("Exception can be subclassed")


def _imported(name: str) -> type[Exception] | None:
    """The exception class of that name, `module:qualified.name`, if this process has imported it."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
