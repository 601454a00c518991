"""Functions that misbehave in every way that ends or blocks a process, to be called in a child process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mulligan import ToolContext


def takes_a_context(ctx: ToolContext) -> str:
    return ctx.agent


class OwnError(LookupError):
    """An exception of the tool's own module."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)

    def __str__(self) -> str:
        return "own words"


class Final(Exception):
    """An exception that refuses to be subclassed, as some libraries' do."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


def add(one: int, two: int) -> int:
    return one + two


def process_id() -> int:
    return os.getpid()


async def add_later(one: int, two: int) -> int:
    await asyncio.sleep(0)
    return one + two


def backtracks() -> object:
    return re.match("^(a+)+$", "a" * 60 + "b")


def sorts_in_c() -> object:
    database = sqlite3.connect(":memory:")
    return database.execute("SELECT instr(hex(zeroblob(7000000)), hex(zeroblob(3500000)) || '1')").fetchall()


def takes_memory() -> int:
    return len(bytearray(3_000_000_000))


def takes_memory_in_c() -> object:
    database = sqlite3.connect(":memory:")
    columns = ",".join(["x"] * 1000)
    query = f"WITH a AS MATERIALIZED (SELECT hex(zeroblob(1990000)) AS x) SELECT {columns} FROM a"
    return database.execute(query).fetchall()


def raises_own() -> None:
    raise OwnError(1, "x")


def raises_known() -> None:
    raise FileNotFoundError("no such file")


def raises_what_has_no_subclasses() -> None:
    raise Final("final words")


def exits() -> None:
    os._exit(3)


def says_exit() -> None:
    sys.exit("over")


def crashes() -> None:
    ctypes.string_at(0)


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def prints() -> str:
    print("not a response")
    os.write(1, b"nor this\n")
    return "ok"


def long_text(size: int) -> str:
    return "x" * size


CALLS: list[int] = []
IMPORTED_BY = os.getpid()


def count_calls() -> int:
    CALLS.append(os.getpid())
    return len(CALLS)


def imported_here() -> bool:
    return os.getpid() == IMPORTED_BY


def is_alone(folder: str) -> bool:
    is_alone = not any(Path(folder).iterdir())
    file = Path(folder, str(os.getpid()))
    file.touch()
    time.sleep(0.01)
    file.unlink()
    return is_alone


def writes_response(response: bytes) -> None:
    """Write the answer of this call in the place of what answers it, and end."""
    for descriptor in range(3, 256):
        with suppress(OSError):
            os.write(descriptor, len(response).to_bytes(8, "big") + response)
    os._exit(0)


def answers_twice() -> str:
    for descriptor in range(3, 256):
        for text in ("first", "forged"):
            response = b'{"text": "%s"}' % text.encode()
            with suppress(OSError):
                os.write(descriptor, len(response).to_bytes(8, "big") + response)
    return "first"


def environments(names: list[str]) -> dict[str, list[str]]:
    """Which of the variables a call has: in Python, in the kernel's record of its process, and in a program that it starts."""
    program = [sys.executable, "-S", "-c", "import os; print(*os.environ, sep='\\n')"]
    in_program = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()
    in_kernel = [line.partition("=")[0] for line in Path("/proc/self/environ").read_text().split("\0")]
    found = {"Python": [*os.environ], "kernel": in_kernel, "program": in_program}
    return {where: [name for name in names if name in present] for where, present in found.items()}


def parents_open() -> list[str]:
    """What this process may read of its supervisor and its template."""
    readable, process = [], os.getpid()
    for parent in ("supervisor", "template"):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        for file in ("environ", "mem", "maps", "smaps_rollup"):
            with suppress(OSError), open(f"/proc/{process}/{file}", "rb"):
                readable.append(f"{parent} {file}")
    return readable


def writes_a_large_file(file: str) -> None:
    with open(file, "wb") as out:
        for _ in range(400):
            out.write(b"x" * 1_000_000)
