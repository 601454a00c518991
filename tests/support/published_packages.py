"""Packages of which the system tests read the data: downloaded once a version into the user's cache, never installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from mulligan.devserver._cache import locked_scratch_folder
from tests.support.go_programs import say_on_stderr

PIP = "26.0"
"""uv has no command that downloads a package without installing it."""


@dataclass(frozen=True)
class PublishedPackage:
    """A file of a package on PyPI, by its hash. `is_source`: the source distribution, which has the package's tests."""

    name: str
    version: str
    sha256: str
    is_source: bool = False


JSONSCHEMA = PublishedPackage(
    "jsonschema", "4.26.0", "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326", is_source=True
)
"""Its source distribution contains the JSON-Schema-Test-Suite (MIT), in the folder `json`."""
BFCL = PublishedPackage("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a")
"""The Berkeley Function Calling Leaderboard (Apache-2.0): schemas of tools, and the correct calls."""


async def download(package: PublishedPackage) -> Path:
    """The path of the package's archive; it is downloaded unless it exists, and checked against its hash."""
    folder = user_cache_path("mulligan") / "tests" / f"{package.name}-{package.version}"
    if not folder.exists():
        async with locked_scratch_folder(folder, say_on_stderr) as scratch:
            if not folder.exists():
                await _pip_download(package, scratch)
                os.replace(scratch / "archive", folder)
    [archive] = folder.iterdir()
    return archive


async def _pip_download(package: PublishedPackage, scratch: Path) -> None:
    requirement = scratch / "requirements.txt"
    requirement.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    form = "--no-binary" if package.is_source else "--only-binary"
    process = await asyncio.create_subprocess_exec(
        os.environ.get("UV") or shutil.which("uv") or "uv",
        *("run", "--quiet", "--no-project", "--python", sys.executable, "--with", f"pip=={PIP}", "python", "-m", "pip"),
        *("download", "--quiet", "--no-deps", form, ":all:", "-r", str(requirement), "-d", str(scratch / "archive")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
