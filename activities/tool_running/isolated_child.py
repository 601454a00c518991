"""The child process of `isolated`: calls functions by name, under limits that the operating system enforces.

It reads requests from its standard input and writes responses to what was its standard output: eight bytes with the
length (big-endian), then the message. Requests are pickles, as the parent is trusted. Responses are JSON, as the child is
not: it handles data that may be hostile.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from mulligan.activities.tool_running.render_result import UnusableResult, cut, render
from mulligan.tool import Tool

__all__ = ["LENGTH_BYTES", "READY", "Request"]

LENGTH_BYTES = 8
READY = b"R"
"""What the child writes when it can take requests."""
SECONDS_PAST_LIMIT = 2.0
"""How long after its time limit the operating system ends a child that no parent has ended."""
FILE_BYTES = 256_000_000
"""The largest file that a call may write."""


@dataclass(frozen=True)
class Request:
    """A call. `function`: `module:qualified.name`, of a function or a Tool. `arguments`: pickled (args, kwargs).

    `limit`: seconds. `memory_bytes`: of heap and anonymous mappings, for the whole process. `max_chars`: of the result.
    """

    function: str
    arguments: bytes
    limit: float
    memory_bytes: int
    max_chars: int


def main() -> None:
    """Serve requests until the standard input ends."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a tool prints must not get between the responses
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, FILE_BYTES)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    responses.write(READY)
    responses.flush()
    while (request := _read(sys.stdin.buffer)) is not None:
        response = json.dumps(_respond(request)).encode()
        responses.write(len(response).to_bytes(LENGTH_BYTES, "big") + response)
        responses.flush()


def _read(requests: BinaryIO) -> Request | None:
    head = requests.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    request: Request = pickle.loads(requests.read(int.from_bytes(head, "big")))  # noqa: S301 - the parent wrote it
    return request


def _respond(request: Request) -> dict[str, Any]:
    """The result as text, or what was raised: its class and its ancestors by name, and its message."""
    # The default action of SIGALRM ends the process even while it computes without ever returning to Python.
    signal.setitimer(signal.ITIMER_REAL, request.limit + SECONDS_PAST_LIMIT)
    try:
        function = _find(request.function)
        args, kwargs = pickle.loads(request.arguments)  # noqa: S301 - the parent wrote it
        _lower(resource.RLIMIT_DATA, request.memory_bytes)
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        if _has_parts(value):
            from mulligan.activities.tool_running.tool_result import parts_of

            return {"parts": [part.model_dump(mode="json") for part in parts_of(value) or ()]}
        return {"text": cut(render(value), request.max_chars)}
    except UnusableResult as error:
        return {"unusable": str(error)}
    except MemoryError:
        return {"memory": True}
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is an outcome, SystemExit too
        return {"raised": _names_of(error), "message": _text_of(error)[: request.max_chars]}
    finally:
        _lower(resource.RLIMIT_DATA, resource.RLIM_INFINITY)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _has_parts(value: object) -> bool:
    """Whether a result may have parts. The module of those is imported by the tool then, and not for every child."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(type(each).__module__ == "mulligan.content" for each in values)


def _find(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found.function if isinstance(found, Tool) else found


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY and (value == resource.RLIM_INFINITY or value > hard):
        value = hard
    with suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(limit, (value, hard))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _names_of(error: BaseException) -> list[str]:
    return [f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return ""


if __name__ == "__main__":
    main()
