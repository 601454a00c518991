"""The process of one isolated call: runs the function, under limits that the operating system enforces.

It is forked by its supervisor (isolated_supervisor.py), which alone reads what it answers: JSON and never a pickle, as it
handles data that may be hostile.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import pickle
import resource
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from mulligan.activities.tool_running.process_tree import die_with_parent
from mulligan.activities.tool_running.render_result import UnusableResult, cut, render
from mulligan.schema.error_text import error_text
from mulligan.schema.exception_group import single_cause
from mulligan.tool import Tool

LENGTH_BYTES = 8
FILE_BYTES = 256_000_000
"""The largest file that a call may write."""


@dataclass(frozen=True)
class Request:
    """A call, as the worker sends it to the call's supervisor.

    `id`: random bytes that its answer begins with. `function`: `module:qualified.name`, of a function or a Tool.
    `arguments`: pickled (args, kwargs). `limit`: seconds. `memory_bytes`: for all processes of the call together.
    `max_chars`: of the result.
    """

    id: bytes
    function: str
    arguments: bytes
    limit: float
    memory_bytes: int
    max_chars: int


def framed(message: bytes) -> bytes:
    """A message with its length before it: eight bytes, big-endian."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def out_of_memory(request: Request) -> dict[str, str]:
    """The response of a call that took more memory than it may."""
    return {"died": f"it needed more than the {request.memory_bytes // 1_000_000} MB of memory that it may use"}


def answer_call(request: Request, answers: socket.socket, folder: str) -> NoReturn:
    """Run the call in this process, send its response, and end the process. `folder`: for its temporary files."""
    code = 1
    try:
        die_with_parent()
        os.setsid()
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
        _limit(resource.RLIMIT_DATA, request.memory_bytes)
        # For a process that nobody is left to end. The limit is one of all its threads together.
        _limit(resource.RLIMIT_CPU, math.ceil(request.limit) * (os.cpu_count() or 1) + 5)
        response = _response(request)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a function may have closed or replaced it
                stream.flush()
        answers.sendall(framed(response))
        code = 0
    finally:
        os._exit(code)


def _response(request: Request) -> bytes:
    """The result as text, or what was raised: its class and its ancestors by name, and its message."""
    try:
        function = _find(request.function)
        args, kwargs = pickle.loads(request.arguments)  # noqa: S301 - the worker wrote it
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        return json.dumps(_result(value, request.max_chars)).encode()
    except UnusableResult as error:
        response: dict[str, Any] = {"unusable": str(error)}
    except MemoryError:
        response = out_of_memory(request)
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is an outcome, SystemExit too
        cause = single_cause(error)
        response = {"raised": _names_of(cause), "message": error_text(cause)[: request.max_chars]}
    return json.dumps(response).encode()


def _result(value: object, max_chars: int) -> dict[str, Any]:
    if _has_parts(value):
        from mulligan.activities.tool_running.tool_result import parts_of

        return {"parts": [part.model_dump(mode="json") for part in parts_of(value) or ()]}
    return {"text": cut(render(value), max_chars)}


def _has_parts(value: object) -> bool:
    """Whether a result may have parts. The module of those is imported by the tool then, and not for every call."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(type(each).__module__ == "mulligan.content" for each in values)


def _find(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value.function if isinstance(value, Tool) else value


def _limit(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(limit, (value, value))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _names_of(error: BaseException) -> list[str]:
    return [f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__]
