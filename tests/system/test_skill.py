"""The skill for coding assistants: its form, and its twenty recipes, each run as it stands there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from mulligan.cli.app import app
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.command_fixtures import command
from tests.support.http_server import http_server
from tests.support.lab import Lab

FOLDER = Path(__file__).parents[2] / "skills/mulligan"
PAGES = [FOLDER / "SKILL.md", *sorted((FOLDER / "references").glob("*.md"))]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def sections() -> dict[str, str]:
    """The recipes by their titles."""
    text = "\n".join(page.read_text() for page in PAGES)
    return dict(re.findall(r"^###? (\d+\. [^\n]+)\n(.*?)(?=^###? \d+\. |\Z)", text, re.MULTILINE | re.DOTALL))


RECIPES = sections()
TESTED = {
    title: section for title, section in RECIPES.items() if "\ndef test_" in section or "async def test_" in section
}


def files(section: str) -> dict[str, str]:
    """The Python blocks of a recipe by the names of their files: in the first line, or that of a test."""
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    named = [(re.match(r"# (\w+\.py)\n", block), block) for block in blocks]
    return {name[1] if name else "test_recipe.py": block for name, block in named}


def test_the_skill_has_the_form_that_assistants_expect() -> None:
    """As agentskills.io describes it: front matter, name of the folder, lengths; and all its links lead somewhere."""
    text = PAGES[0].read_text()
    _, front, body = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert set(facts) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert facts["name"] == FOLDER.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", facts["name"])
    assert 1 <= len(facts["description"]) <= 1024
    assert 1 <= len(facts["compatibility"]) <= 500
    assert len(body.splitlines()) <= 500
    assert {FOLDER / link for link in re.findall(r"\]\((references/[^)]+)\)", body)} == set(PAGES[1:])


def test_there_are_twenty_recipes_and_all_but_the_last_have_code_that_is_run() -> None:
    assert sorted(int(title.split(".")[0]) for title in RECIPES) == [*range(1, 21)]
    assert [title for title in RECIPES if title not in TESTED] == [
        "18. HTTP, OpenAI's API, chat pages", "20. Deployment",
    ]  # fmt: skip


async def test_the_recipes_pass_as_they_are_printed(tmp_path: Path) -> None:
    """All in one session of pytest, so that they share the embedded server."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["mulligan.testing.plugin"]\n')
    for number, section in enumerate(TESTED.values()):
        folder = tmp_path / f"recipe_{number}"
        folder.mkdir()
        for name, text in files(section).items():
            (folder / name).write_text(text)
    ran = await command(
        sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", ".", cwd=tmp_path, env={**os.environ}
    )
    assert ran.code == 0, ran.out + ran.err
    assert re.search(r"^19 passed", ran.out, re.MULTILINE)


async def test_the_recipe_for_serving_works_with_openais_client(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = files(RECIPES["18. HTTP, OpenAI's API, chat pages"])
    assert [*recipe] == ["teller.py", "client.py"]
    (tmp_path / "teller.py").write_text(recipe["teller.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    async with (
        running_worker(lab.client, load(["teller"]), lab.telemetry, "recipe-18"),
        http_server(lab.client, task_queue="recipe-18") as door,
    ):
        client = recipe["client.py"].replace("http://127.0.0.1:8300", str(door.http.base_url).rstrip("/"))
        (tmp_path / "client.py").write_text(client)
        ran = await command(sys.executable, "client.py", cwd=tmp_path, env={**os.environ})
    assert (ran.code, ran.out) == (0, "It is published.\n"), ran.err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_of_the_skill_exists_with_its_options(page: Path) -> None:
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for name, rest in re.findall(r"uv run mulligan (\S+)(.*)", block):
            options = {spelled for parameter in COMMANDS[name].params for spelled in parameter.opts}
            if commands := getattr(COMMANDS[name], "commands", None):
                options |= {s for each in commands.values() for p in each.params for s in p.opts}
            assert set(re.findall(r"(?<=\s)--[a-z-]+", rest.split("  #")[0])) <= options, name


def test_the_names_that_the_skill_imports_are_public() -> None:
    """It tells assistants to import from three modules; its own code does so."""
    for page in PAGES:
        modules = re.findall(r"^from (mulligan\S*) import", page.read_text(), re.MULTILINE)
        assert set(modules) <= {"mulligan", "mulligan.tools", "mulligan.testing"}
