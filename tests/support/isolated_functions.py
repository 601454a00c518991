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


def starts_a_process(file: str) -> None:
    program = f"import os, time; open({file!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", program])
    while not Path(file).exists() or not Path(file).read_text():
        time.sleep(0.05)
    time.sleep(600)


def writes_a_large_file(file: str) -> None:
    with open(file, "wb") as out:
        for _ in range(400):
            out.write(b"x" * 1_000_000)
