"""The process of one script's interpreter, forked by its template: does what the worker asks, and says what came of it."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pydantic_monty as monty

from mulligan.activities.code_mode.interpreter import Interpreter, ScriptLimits
from mulligan.activities.code_mode.interpreter_news import Ending, InterpreterNews
from mulligan.activities.code_mode.script_error import ScriptError
from mulligan.activities.code_mode.script_function import ScriptFunction
from mulligan.activities.tool_running.process_tree import die_with_parent, memory_of

VALUES_BYTES = 96_000_000
"""Memory for what a script gives to this process: a value, a message, arguments, in several forms at once. Beyond it the
process ends, before the worker has got any of it."""
LENGTH_BYTES = 8
TOO_LARGE = (
    "The script was ended: what it returns, raises or gives to a call takes too much memory, or its interpreter crashed. "
    "Return and print less."
)


def send_message(connection: socket.socket, message: bytes) -> None:
    """Send a message, with its length before it."""
    connection.sendall(len(message).to_bytes(LENGTH_BYTES, "big") + message)


def serve_script(connection: socket.socket) -> None:
    """Run a script as the worker asks, until that closes the connection."""
    die_with_parent()
    setup = _received(connection)
    if setup is None:
        return
    functions = {name: ScriptFunction(**each) for name, each in setup["functions"].items()}
    interpreter = Interpreter(functions, ScriptLimits(**setup["limits"]))
    with monty.Monty(min_processes=0, max_processes=1) as pool:
        interpreter.open(pool)
        _limit_memory()
        _close_log()
        send_message(connection, _written(InterpreterNews()))
        while (request := _received(connection)) is not None:
            send_message(connection, _written(_carried_out(interpreter, request)))


def _carried_out(interpreter: Interpreter, request: dict[str, Any]) -> InterpreterNews:
    failure, is_refused = None, False
    try:
        if "code" in request:
            interpreter.start(request["code"])
        elif interpreter.waits_for(request["number"]):
            interpreter.deliver(**request)
        else:
            is_refused = True
    except ScriptError as error:
        failure = Ending(str(error), error.detail, error.kind)
    except (MemoryError, RuntimeError):  # RuntimeError: Monty's bound of a message
        failure = Ending(TOO_LARGE, "", "tool_exception")
    except Exception as error:  # noqa: BLE001 - of Monty, which raises its own types for all that it knows
        failure = Ending(
            f"The script was ended: its interpreter failed ({type(error).__name__}).", "", "tool_exception"
        )
    news, interpreter.news = interpreter.news, InterpreterNews()
    news.failure, news.is_refused = failure, is_refused
    news.memory = interpreter.memory + memory_of(os.getpid())
    news.printed = ["".join(news.printed)]  # Monty may bring it letter by letter
    return news


def _written(news: InterpreterNews) -> bytes:
    return json.dumps(asdict(news), ensure_ascii=False).encode(errors="replace")


def _received(connection: socket.socket) -> dict[str, Any] | None:
    """The next request of the worker; None if it has closed the connection."""
    with connection.makefile("rb", buffering=0) as stream:
        length = int.from_bytes(_exactly(stream, LENGTH_BYTES), "big")
        request: dict[str, Any] | None = json.loads(_exactly(stream, length)) if length else None
        return request


def _exactly(stream: Any, length: int) -> bytes:
    received = bytearray()
    while len(received) < length and (piece := stream.read(length - len(received))):
        received += piece
    return bytes(received) if len(received) == length else b""


def _close_log() -> None:
    """Write nothing of a script to its worker's log, such as why this process could not read a value: the model is told."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def _limit_memory() -> None:
    """Bound the memory of this process, and not that of Monty, which it has started and which has a bound of its own."""
    if sys.platform != "linux":
        return
    with suppress(OSError, ValueError):
        used = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        most = int(used[1]) * 1024 + VALUES_BYTES if used else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
