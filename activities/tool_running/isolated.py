"""Runs code in processes that can be killed: `@tool(isolated=True)`, and work on data that may be hostile.

A thread cannot be ended from outside, and code that computes without returning to Python (a regular expression that
backtracks, an SQL function) stops every thread of its process. Here each call has a process of its own, which ends with the
call, with all that it has started. From the worker to it there are:

- a template for each module and `isolated_env`, a process that has imported the module (isolated_template.py);
- a supervisor for each call, which the template forks (isolated_supervisor.py);
- the call's process, which the supervisor forks (isolated_child.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import secrets
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mulligan.activities.tool_running.isolated_child import Request, framed
from mulligan.activities.tool_running.isolated_environment import isolated_environment
from mulligan.activities.tool_running.isolated_supervisor import MAX_RESPONSE_BYTES, remove_folder
from mulligan.activities.tool_running.isolated_template import IMPORT_SECONDS, READY, main
from mulligan.activities.tool_running.process_tree import end_tree
from mulligan.activities.tool_running.render_result import UnusableResult
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.content import Part, Parts

MEMORY_BYTES = 512_000_000
"""Memory of all processes of a call together."""
MAX_CHARS = 2_000_000
MAX_REASON_CHARS = 1_000
MAX_NAMES = 100
"""Of an exception's class and its ancestors."""
PATIENCE_SECONDS = 10.0
"""Seconds by which a supervisor or template may be late. Then the worker kills it."""
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(Parts)
_NONE: Mapping[str, Any] = {}


class ProcessDied(Exception):
    """The call's process ended before it answered. The message says how, for a model to read."""


class ChildProcesses:
    """The child processes of one worker. Use from one event loop."""

    def __init__(
        self, most: int | None = None, memory_bytes: int = MEMORY_BYTES, secret_names: Collection[str] = ()
    ) -> None:
        """Start no process yet.

        Args:
            most: How many calls run at once, one for each core where None; more calls wait.
            memory_bytes: Of all processes of a call together.
            secret_names: Environment variables that calls do not get, beside those whose names say that they are secret.
        """
        self._room = asyncio.Semaphore(most or os.cpu_count() or 2)
        self._memory_bytes = memory_bytes
        self._secret_names = secret_names
        self._templates: dict[tuple[str, tuple[str, ...]], _Template] = {}
        """By module and `isolated_env`."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

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
            limit: Seconds. The call is then ended. The time to import its module does not count, unless each call has to
                import it (isolated_template.py).
            max_chars: A longer result is cut, with a note.

        Raises:
            TookTooLong: the limit passed; the code does not run any more.
            ProcessDied: it ended its process, or used more memory or processes than it may.
            UnusableResult: its result cannot be written as JSON.
            Exception: what it raised: of the same class, with the same message, where this process has imported the class.
        """
        return _text(await self._respond(function, (), (args, kwargs), limit, max_chars), limit)

    async def run_tool(
        self,
        function: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
        *,
        limit: float,
        env: Sequence[str] = (),
    ) -> str | list[Part]:
        """Call a tool's function as `run` does; its result as text, or as parts if it has images, files or audio.

        `env`: the tool's `isolated_env`.
        """
        response = await self._respond(function, tuple(env), (args, kwargs), limit, MAX_CHARS)
        if "parts" not in response:
            return _text(response, limit)
        try:
            return _PARTS.validate_python(response["parts"])
        except ValidationError as error:
            raise UnusableResult(str(error.errors()[0]["msg"])) from None

    async def close(self) -> None:
        """End all processes."""
        templates = list(self._templates.values())
        self._templates.clear()
        await asyncio.gather(*(template.end() for template in templates))

    async def _respond(
        self,
        function: str,
        env: tuple[str, ...],
        arguments: tuple[Sequence[Any], Mapping[str, Any]],
        limit: float,
        max_chars: int,
    ) -> dict[str, Any]:
        """The response of a call, whose processes have ended when this returns or raises."""
        pickled = pickle.dumps((tuple(arguments[0]), dict(arguments[1])))
        request = Request(secrets.token_bytes(16), function, pickled, limit, self._memory_bytes, max_chars)
        async with self._room:
            call = await self._begin(function.partition(":")[0], env)
            try:
                async with asyncio.timeout(limit + PATIENCE_SECONDS):
                    return await call.response(request)
            except TimeoutError:
                raise TookTooLong(limit) from None
            finally:
                await asyncio.shield(call.end())

    async def _begin(self, module: str, env: tuple[str, ...]) -> _Call:
        """Begin a call, at a new template if there is none or it has ended."""
        key = module, env
        async with self._locks[module]:
            if (template := self._templates.get(key)) is not None:
                with suppress(ConnectionError, BlockingIOError):
                    return template.begin()
                await self._templates.pop(key).end()
            environment = isolated_environment(os.environ, self._secret_names, env)
            # A module that cannot be imported, or leaves threads, is imported by each call.
            for imported in (module, None):
                template = await _Template.start(imported, environment)
                if template is not None:
                    self._templates[key] = template
                    return template.begin()
        raise ProcessDied("its process could not be started")


@dataclass(frozen=True)
class _Template:
    """A template's process. `control`: a socket to it. `folder`: for its calls' temporary files."""

    process: asyncio.subprocess.Process
    control: socket.socket
    folder: str

    @staticmethod
    async def start(module: str | None, environment: Mapping[str, str]) -> _Template | None:
        """Start a template that imports `module`; None if it does not become ready."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        folder = tempfile.mkdtemp(prefix="mulligan-isolated-")
        # -c and not -m, which would put the current folder first on its path: it gets this process's path.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from {main.__module__} import main; "
            f"main({theirs.fileno()}, {folder!r}, {module!r})"
        )
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                program,
                stdin=asyncio.subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        template = _Template(process, ours, folder)
        ready = b""
        try:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(IMPORT_SECONDS):
                    ready = await asyncio.get_running_loop().sock_recv(ours, len(READY))
        finally:
            if ready != READY:
                await asyncio.shield(template.kill())
        return template if ready == READY else None

    def begin(self) -> _Call:
        """Let the template fork the supervisor of a call.

        Raises:
            ConnectionError: the template has ended.
            BlockingIOError: it does not run any more.
        """
        if self.control.fileno() < 0:
            raise ConnectionError("the template was killed, as it did not end a call in time")
        (call, its_call), (ended, its_ended) = socket.socketpair(), socket.socketpair()
        with its_call, its_ended:
            for ours in (call, ended):
                ours.setblocking(False)
            try:
                socket.send_fds(self.control, [b"C"], [its_call.fileno(), its_ended.fileno()])
            except OSError:
                call.close()
                ended.close()
                raise
        return _Call(self, call, ended)

    async def end(self) -> None:
        """Let the template end all its calls and itself."""
        self.control.close()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.process.wait()
        except TimeoutError:
            await self.kill()
        await asyncio.to_thread(remove_folder, self.folder)

    async def kill(self) -> None:
        """Kill the template and all below it."""
        self.control.close()
        if self.process.returncode is None:
            await asyncio.to_thread(end_tree, [self.process.pid])
        await self.process.wait()
        await asyncio.to_thread(remove_folder, self.folder)


@dataclass(frozen=True)
class _Call:
    """A call that a template got. `connection`: to its supervisor. `ended`: closed when none of its processes is left."""

    template: _Template
    connection: socket.socket
    ended: socket.socket

    async def response(self, request: Request) -> dict[str, Any]:
        """Send the request, and read the response.

        Raises:
            ProcessDied: the supervisor ended, or the call sent what is not a response.
        """
        loop, received = asyncio.get_running_loop(), bytearray()
        with suppress(ConnectionError):
            await loop.sock_sendall(self.connection, framed(pickle.dumps(request)))
            while len(received) <= MAX_RESPONSE_BYTES and (chunk := await loop.sock_recv(self.connection, 1 << 20)):
                received += chunk
        if not received.startswith(request.id):
            raise ProcessDied("its process was killed")
        try:
            response = json.loads(received[len(request.id) :])
        except (ValueError, RecursionError):
            response = None
        if not isinstance(response, dict):
            raise ProcessDied(_NO_RESPONSE)
        return response

    async def end(self) -> None:
        """End the call, and wait until none of its processes is left."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                with suppress(OSError):  # the template has ended
                    self.ended.shutdown(socket.SHUT_WR)
                    await asyncio.get_running_loop().sock_recv(self.ended, 1)
        except TimeoutError:
            await self.template.kill()
        finally:
            self.connection.close()
            self.ended.close()


_NO_RESPONSE = "its process sent something that is not a response"


def _text(response: dict[str, Any], limit: float) -> str:
    """The result in a response, which may be anything, as the call's process writes it."""
    match response:
        case {"text": str(text)}:
            return text
        case {"timeout": True}:
            raise TookTooLong(limit)
        case {"unusable": str(why)}:
            raise UnusableResult(why[:MAX_REASON_CHARS])
        case {"died": str(how)}:
            raise ProcessDied(how[:MAX_REASON_CHARS])
        case {"raised": [*names], "message": str(message)}:
            raise _rebuilt([str(name) for name in names[:MAX_NAMES]], message[:MAX_CHARS])
    raise ProcessDied(_NO_RESPONSE)


def _rebuilt(names: Sequence[str], message: str) -> Exception:
    """An exception like the one in the child: of its name, and of its nearest ancestor that this process has imported.

    So `retry_on` and `handle_errors` match it as if it had been raised here. Nothing of the child's is executed.
    """

    def text(_: Exception) -> str:
        return message

    name = names[0].rpartition(":")[2].rpartition(".")[2] if names else ""
    name = name if name.isidentifier() else "Exception"
    for ancestor in filter(None, (*map(_imported, names), Exception)):
        with suppress(Exception):  # a class may refuse to be subclassed
            kind: type[Exception] = type(name, (ancestor,), {"__str__": text})
            return kind.__new__(kind)  # without `__init__`, which may need arguments of its own
    raise AssertionError("Exception can be subclassed")


def _imported(name: str) -> type[Exception] | None:
    """The exception class of that name, `module:qualified.name`, if this process has imported it."""
    module, _, qualified = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) and issubclass(value, Exception) else None
