"""`mulligan new`: write the files of a new project."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
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
PYTEST = '[tool.pytest.ini_options]\nasyncio_mode = "auto"\nasyncio_default_fixture_loop_scope = "function"'
"""The settings of pytest in pyproject.toml without which the new tests do not run."""
MUST_BE_NEW, ASSISTANTS = ("agents.py", "test_agents.py"), "AGENTS.md"
"""Files that a project must not have; and the file for coding assistants, to which a section may be added."""


def new(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The project's folder; it is created if it does not exist.")
    ],
) -> None:
    """Create a working project: an agent with two tools, a test that needs no server and no API key, and what a coding
    assistant should know (`AGENTS.md`, and a skill).

    In a project that exists, `mulligan new .` adds the files that it lacks and a section to its `AGENTS.md`, and prints
    what to add to its `pyproject.toml`. No file is overwritten.

    Examples: `mulligan new shop`, `mulligan new .`

    Exit code: 2 if the folder has an `agents.py` or a `test_agents.py` already; then nothing is written.
    """
    if existing := [name for name in MUST_BE_NEW if (path / name).exists()]:
        fail(
            f"{path} has {' and '.join(existing)} already; nothing was written. Choose another folder, or rename that file."
        )
    kept = [name for name in FILES if (path / name).exists()]
    values = {"name": _project_name(path), "mulligan": requirement()}
    try:
        for name, source in FILES.items():
            text = (files("mulligan.cli") / "new_project" / source).read_text(encoding="utf-8")
            text = Template(text).substitute(values) if source.endswith(".txt") else text
            if name not in kept:
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                with (path / name).open("x", encoding="utf-8") as file:
                    file.write(text)
            elif name == ASSISTANTS:
                with (path / name).open("a", encoding="utf-8") as file:
                    file.write(_as_section(text))
    except OSError as error:
        fail(f"{error.filename or path} cannot be written: {error.strerror}.")
    written = [name for name in FILES if name not in kept and not name.startswith(".agents")]
    print_line(f"{path}: {', '.join(written)}, .agents/skills/mulligan")
    _print_next(path, kept)


def _as_section(page: str) -> str:
    """A page in Markdown as a section of another page: its title and those of its sections are one level lower."""
    _, _, body = page.partition("\n")
    return "\n## Agents with Mulligan\n" + body.replace("\n## ", "\n### ")


def _print_next(path: Path, kept: list[str]) -> None:
    """Print what to do in the project. `kept`: its files that were there before."""
    for name in kept:
        print_progress(f"{name}: a section was added" if name == ASSISTANTS else f"{name}: was there, and is as it was")
    if ".gitignore" in kept:
        print_progress("Add `.env` to .gitignore, if it is not there: keys are in it.")
    if "pyproject.toml" in kept:
        print_progress("Add these lines to pyproject.toml (if it has the first one, add the others below it):")
        for line in PYTEST.splitlines():
            print_progress(line)
    install = "uv add --dev pytest pytest-asyncio"
    if not _depends_on_mulligan(path / "pyproject.toml"):
        install = f"uv add {shlex.quote(requirement())} && {install}"
    enter = "" if path == Path() else f"cd {shlex.quote(str(path))} && "
    print_progress(f"Next: {enter}{install if 'pyproject.toml' in kept else 'uv sync'} && uv run pytest")


def _depends_on_mulligan(project: Path) -> bool:
    """Whether a pyproject.toml has Mulligan as a dependency, as after `uv add`. It may be missing, or broken."""
    try:
        dependencies = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
        return any(re.match(r"mulligan($|[^\w.-])", each) for each in dependencies)
    except (OSError, ValueError, KeyError, TypeError):
        return False


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
