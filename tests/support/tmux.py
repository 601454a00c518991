"""A command in a real terminal: tmux, with a width of its own."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

END = "— ended —"


async def screen_of(*command: str | Path, env: Mapping[str, str], width: int, height: int = 60) -> list[str]:
    """The lines on the screen of a terminal after a command has ended there. Skips the test where tmux is not installed."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("tmux is not installed (Debian: apt-get install tmux)")
    socket = ("-L", f"test-{uuid.uuid4().hex[:8]}", "-f", os.devnull)
    line = f"{shlex.join(map(str, command))}; echo {shlex.quote(END)}; sleep 600"
    terminal = {name: value for name, value in env.items() if name not in ("COLUMNS", "NO_COLOR", "TMUX")}
    await _run(
        tmux, *socket, "new-session", "-d", "-x", str(width), "-y", str(height), line,
        env=terminal | {"LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while END not in (screen := await _run(tmux, *socket, "capture-pane", "-p", env=terminal)):
                await asyncio.sleep(0.1)
    finally:
        await _run(tmux, *socket, "kill-server", env=terminal)
    return [each.rstrip() for each in screen.partition(END)[0].splitlines()]


async def _run(*command: str, env: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(env), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()
