"""Run a program that takes long, with lines about its progress."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from mulligan.devserver._cache import SECONDS_BETWEEN_LINES, FetchError
from mulligan.devserver._process import process_group

_REASON_LINES = 3


async def run_with_progress(
    command: tuple[str | Path, ...],
    summary: Callable[[float, list[str]], str],
    progress: Callable[[str], None],
    *,
    cwd: Path,
    env: Mapping[str, str],
) -> None:
    """Run a command, and give `progress` a line every few seconds: `summary` of the seconds and the lines of output so far.

    Raises:
        FetchError: the command failed. The text has the last lines of its output.
    """
    lines: list[str] = []
    began = time.monotonic()
    try:
        async with process_group(*command, cwd=cwd, env=env) as process:
            output = process.stdout
            assert output is not None

            async def read() -> None:
                async for line in output:
                    lines.append(line.decode(errors="replace").strip())

            reading = asyncio.create_task(read())
            try:
                while not reading.done():
                    progress(summary(time.monotonic() - began, lines))
                    await asyncio.wait({reading}, timeout=SECONDS_BETWEEN_LINES)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await process.wait()
    except OSError as error:
        raise FetchError(f"{command[0]}: {error.strerror}") from error
    if process.returncode:
        last_lines = " / ".join(deque((line for line in lines if line), maxlen=_REASON_LINES))
        raise FetchError(f"`{Path(command[0]).name}` failed: {last_lines or f'exit code {process.returncode}'}")
