"""Environments of their own for programs from the package index, made once a machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from platformdirs import user_cache_path

from mulligan.devserver._cache import locked_scratch_folder
from tests.support.go_programs import say_on_stderr


async def own_environment(name: str, version: str, *requirements: str, alone: str | None = None) -> Path:
    """The folder of an environment with these requirements; it is made unless it exists. Its programs are in `bin`: call
    them by `bin/python`, as they name the folder in which they were made. `alone`: a requirement that is installed without
    what it requires itself.
    """
    folder = user_cache_path("mulligan") / "tests" / f"{name}-{version}"
    if not folder.exists():
        async with locked_scratch_folder(folder, say_on_stderr) as scratch:
            if not folder.exists():
                made = scratch / "made"
                await _run(scratch, "venv", "-q", "--relocatable", "--python", sys.executable, str(made))
                if requirements:
                    await _run(scratch, "pip", "install", "-q", "--python", str(made / "bin/python"), *requirements)
                if alone is not None:
                    await _run(
                        scratch, "pip", "install", "-q", "--python", str(made / "bin/python"), "--no-deps", alone
                    )
                os.replace(made, folder)
    return folder


async def _run(folder: Path, *command: str) -> None:
    """Run uv outside of this project, whose constraints it would apply."""
    program = os.environ.get("UV") or shutil.which("uv") or "uv"
    process = await asyncio.create_subprocess_exec(
        program, *command, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {told.decode()[-2000:]}")
