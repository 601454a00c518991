"""`mulligan new`: the new project works without changes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mulligan.cli.app import app
from mulligan.cli.new import FILES, MUST_BE_NEW, PYTEST, requirement
from mulligan.devserver import DevServer
from tests.support.command_fixtures import ROOT, Outcome, Run, command
from tests.support.temporal import environment_of

SKILL = ROOT / "skills/mulligan"


def uv() -> str:
    """The path of the program: on PATH, or where the Makefile installs it."""
    return shutil.which("uv") or str(ROOT / ".uv/bin/uv")


async def in_project(folder: Path, line: str, **env: str) -> Outcome:
    """Run a command of the project's README."""
    program, *words = shlex.split(line)
    assert program == "uv"
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    # The Python of these tests: uv would search for another one, which not every machine has.
    return await command(uv(), *words, cwd=folder, env=kept | {"UV_PYTHON": sys.executable} | env)


def shell_blocks(folder: Path) -> list[list[str]]:
    """The lines of each block of commands in the project's README."""
    return [
        block.split("\n")[:-1]
        for block in re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    ]


async def test_the_commands_of_a_new_projects_readme_pass(mulligan: Run, tmp_path: Path, temporal: DevServer) -> None:
    """From an empty folder to a run of its agent, with an existing server instead of a new one."""
    folder = tmp_path / "My Shop"
    made = await mulligan("new", str(folder))
    assert made.code == 0, made.err
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*FILES}
    first, [server], [worker], runs = shell_blocks(folder)
    printed = []
    for line in first:
        done = await in_project(folder, line)
        assert done.code == 0, done.out + done.err
        printed.append(done.out)
    assert "2 passed" in printed[1]
    assert "warning" not in printed[1]
    assert "support  scripted:support" in printed[2]
    assert server == "uv run mulligan dev"
    env = environment_of(temporal) | {"MULLIGAN_TASK_QUEUE": "new-project"}
    serving = asyncio.create_task(serve_until_cancelled(folder, worker, env))
    for line in runs:
        done = await in_project(folder, line, **env)
        assert done.code == 0, done.out + done.err
        assert "Order 7 is cancelled." in done.out
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_a_new_project_tells_coding_assistants_what_is_true_of_it(mulligan: Run, tmp_path: Path) -> None:
    """AGENTS.md names files and commands that exist, and the skill is the repository's, which `test_skill.py` runs."""
    assert (await mulligan("new", str(tmp_path / "shop"))).code == 0
    text = (tmp_path / "shop/AGENTS.md").read_text()
    assert text.startswith("# shop\n")
    named = re.findall(r"^\| `([\w./-]+)` \|", text, re.MULTILINE)
    assert named
    assert [file for file in named if not (tmp_path / "shop" / file).is_file()] == []
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"uv run mulligan (\w+)", text)) <= set(commands)
    skill = {path.relative_to(SKILL) for path in SKILL.rglob("*.md")}
    assert {Path(name).relative_to(".agents/skills/mulligan") for name in FILES if name.startswith(".agents")} == skill
    for path in skill:
        assert (tmp_path / "shop/.agents/skills/mulligan" / path).read_text() == (SKILL / path).read_text()


async def serve_until_cancelled(folder: Path, line: str, env: dict[str, str]) -> None:
    """The worker of the project, started without `uv run`, so that signals reach it."""
    program, run, *words = shlex.split(line)
    assert (program, run) == ("uv", "run")
    process = await asyncio.create_subprocess_exec(
        str(folder / ".venv/bin" / words[0]), *words[1:], cwd=folder, env=os.environ | env,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await process.wait()
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("name", MUST_BE_NEW)
async def test_new_replaces_no_agents_and_no_tests(mulligan: Run, tmp_path: Path, name: str) -> None:
    """Then nothing is written."""
    (tmp_path / name).write_text("theirs")
    done = await mulligan("new", str(tmp_path))
    assert done.code == 2
    assert f"has {name} already; nothing was written" in " ".join(done.err.split())
    there = [(str(path.relative_to(tmp_path)), path.read_text()) for path in tmp_path.rglob("*") if path.is_file()]
    assert there == [(name, "theirs")]


async def test_new_adds_agents_to_a_project_that_exists_and_overwrites_no_file(mulligan: Run, tmp_path: Path) -> None:
    """`uv init`, `mulligan new .`, and then what the command prints: the tests of the agent pass in that project."""
    folder = tmp_path / "shop"
    assert (await in_project(tmp_path, "uv init --bare --no-workspace shop")).code == 0
    theirs = {"README.md": "# Theirs\n", ".gitignore": ".venv/\n", "AGENTS.md": "# Rules\n\nBe brief.\n"}
    for name, text in theirs.items():
        (folder / name).write_text(text)
    project = (folder / "pyproject.toml").read_text()
    made = await mulligan("new", str(folder))
    assert made.code == 0, made.err
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*FILES}
    assert (folder / "pyproject.toml").read_text() == project
    assert {name: (folder / name).read_text() for name in ("README.md", ".gitignore")}.items() <= theirs.items()
    page = (folder / "AGENTS.md").read_text()
    assert page.startswith(theirs["AGENTS.md"] + "\n## Agents with Mulligan\n")
    assert re.findall(r"^#+ .+$", page, re.MULTILINE) == ["# Rules", "## Agents with Mulligan", "### Rules"]
    said = made.err.splitlines()
    assert "README.md: was there, and is as it was" in said
    assert "AGENTS.md: a section was added" in said
    assert "Add `.env` to .gitignore, if it is not there: keys are in it." in said
    assert (
        "Add these lines to pyproject.toml (if it has the first one, add the others below it):\n" + PYTEST in made.err
    )
    (folder / "pyproject.toml").write_text(f"{project}\n{PYTEST}\n")
    [following] = [line.removeprefix("Next: ") for line in said if line.startswith("Next: ")]
    enter, *lines = following.split(" && ")
    assert enter == f"cd {folder}"
    assert [line.split()[:2] for line in lines] == [["uv", "add"], ["uv", "add"], ["uv", "run"]]
    for line in lines:
        done = await in_project(folder, line)
        assert done.code == 0, done.out + done.err
    assert "2 passed" in done.out
    assert "warning" not in done.out


@pytest.mark.parametrize(
    ("project", "adds"),
    [
        ('[project]\ndependencies = ["mulligan[serve]>=0.1"]', False),
        ('[project]\ndependencies = ["mulligan"]', False),
        ('[project]\ndependencies = ["mulligan-extra"]', True),
        ("[project", True),
    ],
)
async def test_new_adds_mulligan_to_a_project_that_does_not_depend_on_it(
    mulligan: Run, tmp_path: Path, project: str, adds: bool
) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    made = await mulligan("new", str(tmp_path))
    assert made.code == 0, made.err
    assert ("&& uv add mulligan" in made.err or "&& uv add 'mulligan" in made.err) is adds


async def test_new_reports_a_folder_that_cannot_be_created(mulligan: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = await mulligan("new", str(tmp_path / "file" / "shop"))
    assert done.code == 2
    assert "cannot be written: Not a directory" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("direct", "expected"),
    [
        (None, "mulligan>=0.3.1,<0.4"),
        ({"url": "file:///src/mulligan", "dir_info": {"editable": True}}, "mulligan @ file:///src/mulligan"),
        (
            {"url": "https://example.com/m.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "mulligan @ git+https://example.com/m.git@abc",
        ),
        ({"url": "https://example.com/m.whl", "archive_info": {}}, "mulligan @ https://example.com/m.whl"),
    ],
)
def test_a_new_project_depends_on_the_mulligan_that_created_it(
    direct: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        version = "0.3.1"

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return direct and json.dumps(direct)

    monkeypatch.setattr(sys.modules[requirement.__module__], "distribution", lambda name: Installed())
    assert requirement() == expected
