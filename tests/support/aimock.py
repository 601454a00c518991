"""aimock (npm `@copilotkit/aimock`, MIT): a server of five APIs of models by another project, with answers from a file."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.npm_packages import installed
from tests.support.ports import free_ports

PACKAGE = {"@copilotkit/aimock": "1.43.0"}
SECONDS = 60
"""Until it answers."""


@asynccontextmanager
async def aimock(fixtures: Sequence[dict[str, Any]], folder: Path) -> AsyncIterator[str]:
    """The address of a server with these answers, each with what it answers (`match`).

    Args:
        fixtures: The answers.
        folder: A new folder for them.
    """
    modules = await installed("aimock", PACKAGE, with_node=False)
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": list(fixtures)}))
    [port] = free_ports(1)
    program = modules / "node_modules/@copilotkit/aimock/dist/cli.js"
    command = [shutil.which("node") or "node", str(program), "-p", str(port), "-f", str(folder / "fixtures.json")]
    with (folder / "aimock.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=log, stderr=log)
    try:
        await _until_ready(f"http://127.0.0.1:{port}/health", process, folder / "aimock.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _until_ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(SECONDS), httpx2.AsyncClient() as client:
        while process.returncode is None:
            try:
                await client.get(url)
                return
            except httpx2.HTTPError:
                await asyncio.sleep(0.1)
    raise RuntimeError(f"aimock ended with {process.returncode}: {log.read_text()[-2000:]}")
