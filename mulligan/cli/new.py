"""`mulligan new`: write the files of a new project."""

from __future__ import annotations

import json
import re
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from mulligan.cli._terminal import fail, print_line, print_progress

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "agents.py": "agents.py",
    "test_agents.py": "test_agents.py",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
    ".env.example": "env.example.txt",
    "AGENTS.md": "AGENTS.md.txt",
} | {
    f".agents/skills/mulligan/{name}": f"skill/{name}"
    for name in (
        "SKILL.md",
        *(f"references/{each}.md" for each in ("context", "people-and-waits", "run", "several-agents")),
    )
}
"""The files of the project, and the files in new_project/ that they are made from. The skill is that of the repository."""


def new(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The project's folder; it is created if it does not exist.")
    ],
) -> None:
    """Create a working project: an agent with two tools, a test that needs no server and no API key, and what a coding
    assistant should know (`AGENTS.md`, and a skill).

    Example: `mulligan new shop`

    Exit code: 2 if a file of the project exists already; then nothing is written.
    """
    existing = [name for name in FILES if (path / name).exists()]
    if existing:
        fail(f"{path} has {', '.join(existing)} already; nothing was written. Choose another folder.")
    values = {"name": _project_name(path), "mulligan": requirement()}
    try:
        for name, source in FILES.items():
            text = (files("mulligan.cli") / "new_project" / source).read_text(encoding="utf-8")
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            with (path / name).open("x", encoding="utf-8") as file:
                file.write(Template(text).substitute(values) if source.endswith(".txt") else text)
    except OSError as error:
        fail(f"{error.filename or path} cannot be written: {error.strerror}.")
    print_line(
        f"{path}: {', '.join(name for name in FILES if not name.startswith('.agents'))}, .agents/skills/mulligan"
    )
    print_progress(f"Next: cd {path} && uv sync && uv run pytest")


def requirement() -> str:
    """This installation of Mulligan as a dependency of a project: by path or URL if it was installed from one, else by
    version. The form is that of PEP 508; path and URL come from the `direct_url.json` of PEP 610.
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
    """The folder's name, changed into a valid project name (PEP 508)."""
    return re.sub(r"[^a-z0-9]+", "-", path.resolve().name.lower()).strip("-") or "agents"
