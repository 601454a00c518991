"""`mulligan new`: a project to begin with."""

from __future__ import annotations

import json
import re
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import fail

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "agents.py": "agents.py",
    "test_agents.py": "test_agents.py",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    ".env.example": "env.example.txt",
}
"""What is written, and where it comes from."""


def new(path: Annotated[Path, typer.Argument(help="The project's folder; made where it is not there.")]) -> None:
    """Make a project that works at once: an agent with two tools, and a test that needs no server and no key.

    Example: `mulligan new shop`

    Exit code: 2 where a file of the project is there already; then nothing is written.
    """
    taken = [name for name in FILES if (path / name).exists()]
    if taken:
        fail(f"{path} has {', '.join(taken)} already; nothing was written. Name another folder.")
    values = {"name": _project_name(path), "mulligan": requirement()}
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, source in FILES.items():
            text = (files("mulligan.cli") / "new_project" / source).read_text(encoding="utf-8")
            with (path / name).open("x", encoding="utf-8") as file:
                file.write(Template(text).substitute(values) if source.endswith(".txt") else text)
    except OSError as error:
        fail(f"{error.filename or path} cannot be written: {error.strerror}.")
    _terminal.out.print(f"{path}: {', '.join(FILES)}", markup=False, soft_wrap=True)
    _terminal.say(f"Next: cd {path} && uv sync && uv run pytest")


def requirement() -> str:
    """The Mulligan that is running, as a project's dependency: by its path or URL, if it was installed from one.

    The forms are those of PEP 508, read from the `direct_url.json` of PEP 610.
    """
    installed = distribution("mulligan")
    direct = installed.read_text("direct_url.json")
    if direct is None:
        major, minor, *_ = installed.version.split(".")
        return f"mulligan>={installed.version},<{major}.{int(minor) + 1}"
    origin = json.loads(direct)
    if version_control := origin.get("vcs_info"):
        return f"mulligan @ {version_control['vcs']}+{origin['url']}@{version_control['commit_id']}"
    return f"mulligan @ {origin['url']}"


def _project_name(path: Path) -> str:
    """The folder's name as a project may be called (PEP 508)."""
    return re.sub(r"[^a-z0-9]+", "-", path.resolve().name.lower()).strip("-") or "agents"
