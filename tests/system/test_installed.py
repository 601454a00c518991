"""The installed wheel in a project whose packages have the same names as folders of our checkout."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from mulligan.devserver import DevServer
from mulligan.extras import EXTRAS
from tests.support.command_fixtures import ROOT, Outcome, command
from tests.support.temporal import connect_to, environment_of
from tests.system.features.test_new import uv

THEIRS = ("tools", "workflows", "activities", "agents", "worker", "examples", "tests", "deploy")
BOT = """
from temporalio import activity, workflow

import {theirs}
from mulligan import Agent, Call, DurableAgent, Say, Script, tool
from mulligan.tools import list_files


@tool
async def whose() -> str:
    \"\"\"Whose packages are imported here.\"\"\"
    return ",".join(each.WHOSE for each in ({theirs}))


@activity.defn
def stamp(text: str) -> str:
    return f"{{text}}!"


@workflow.defn
class Stamped:
    @workflow.run
    async def run(self, prompt: str) -> str:
        from datetime import timedelta

        result = await DurableAgent("bot").run(prompt)
        return await workflow.execute_activity(stamp, str(result.output), start_to_close_timeout=timedelta(seconds=20))


turns = [Say(calls=[Call("whose")]), lambda messages: Say(messages[-1].text)]
script = Script("bot", turns)
bot = Agent(name="bot", model="scripted:bot", tools=[whose, list_files])
"""
WITHOUT_A_SERVER = """
import asyncio

from bot import bot, turns
from mulligan.testing import ScriptedModel, run_agent

print(asyncio.run(run_agent(bot, "Whose?", model=ScriptedModel(*turns))).output)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built like by `uv build` and `pip wheel`."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run([*build, "-t", "wheel"], cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and the libraries, but without the checkout."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    zipfile.ZipFile(wheel).extractall(site)
    # Added as a folder, not as a site: so the link to the checkout in there is not followed.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin/python"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose packages have the names of our folders."""
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"WHOSE = 'their {name}'\n")
    (tmp_path / "bot.py").write_text(BOT.format(theirs=", ".join(THEIRS)))
    return tmp_path


async def run(python: Path, *words: str, cwd: Path, **env: str) -> Outcome:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONPATH")}
    return await command(str(python), *words, cwd=cwd, env=kept | env)


def test_the_wheel_has_one_package_and_one_command(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {name.split("/")[0] for name in names} == {"mulligan", f"mulligan-{version}.dist-info"}
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "mulligan", "workflows", "activities", "tools"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    files = [name for name in tracked.stdout.split() if not (ROOT / name).is_symlink() and (ROOT / name).is_file()]
    expected = {name if name.startswith("mulligan/") else f"mulligan/{name}" for name in files}
    skill = ROOT / "skills/mulligan"  # `mulligan new` copies it
    expected |= {f"mulligan/cli/new_project/skill/{path.relative_to(skill)}" for path in skill.rglob("*.md")}
    assert {name for name in names if name.startswith("mulligan/")} == expected
    [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
    text = zipfile.ZipFile(wheel).read(entry_points).decode()
    assert text.split() == ["[console_scripts]", "mulligan", "=", "mulligan.cli.app:main"]


def test_the_source_distribution_has_the_same_files_and_no_links(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t", "sdist"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as source:
        members = source.getmembers()
    assert all(member.isfile() for member in members)
    names = {member.name.split("/", 1)[1] for member in members}
    of_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("mulligan/")}
    assert {name for name in names if name.startswith("mulligan/")} == of_wheel
    assert {name.split("/")[0] for name in names} - {"mulligan"} == {
        *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore")
    }


@pytest.mark.parametrize("first", ["the project", "the environment"])
async def test_an_agent_runs_beside_packages_named_like_our_folders(python: Path, project: Path, first: str) -> None:
    """In both orders of `sys.path`, each import finds its own package."""
    env = {"PYTHONPATH": str(project)} if first == "the project" else {}
    code = WITHOUT_A_SERVER if env else f"import sys\nsys.path.append({str(project)!r})\n{WITHOUT_A_SERVER}"
    ran = await run(python, "-P", "-c", code, cwd=project, **env)
    assert ran.code == 0, ran.err
    assert ran.out.strip() == ",".join(f"their {name}" for name in THEIRS)
    listed = await run(python, "-P", "-m", "mulligan", "agents", "--load", "bot", "--json", cwd=project, **env)
    assert listed.code == 0, listed.err
    assert {agent["name"] for agent in json.loads(listed.out)} == {"bot"}


async def test_an_installed_worker_serves_the_agent_workflow_and_activity_of_a_module(
    python: Path, project: Path, temporal: DevServer
) -> None:
    """`mulligan worker --load bot`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONPATH")}
    worker = await asyncio.create_subprocess_exec(
        str(python), "-P", "-m", "mulligan", "worker", "--load", "bot", "--task-queue", "installed",
        cwd=project, env=kept | environment_of(temporal), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert worker.stderr is not None
    try:
        line = (await worker.stderr.readline()).decode()
        assert "Serving bot on task queue 'installed'" in line
        client = await connect_to(temporal)
        output = await client.execute_workflow("Stamped", "Whose?", id="installed", task_queue="installed")
        assert output == ",".join(f"their {name}" for name in THEIRS) + "!"
    finally:
        worker.terminate()
        await worker.communicate()
    assert worker.returncode == 0


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and its dependencies, but none of its extras."""
    folder = tmp_path_factory.mktemp("base")
    constraints = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    (folder / "constraints.txt").write_text("\n".join(constraints))
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    install = [uv(), "pip", "install", "--quiet", "--python", str(python), str(wheel)]
    subprocess.run([*install, "--constraints", str(folder / "constraints.txt")], cwd=folder, check=True)
    return python


async def test_a_base_installation_runs_an_agent(base: Path, project: Path) -> None:
    """Without extras: an agent with a scripted model runs, and the commands start."""
    env = {"PYTHONPATH": str(project)}
    ran = await run(base, "-P", "-c", WITHOUT_A_SERVER, cwd=project, **env)
    assert ran.code == 0, ran.err
    assert ran.out.strip() == ",".join(f"their {name}" for name in THEIRS)
    helped = await run(base, "-P", "-m", "mulligan", "--help", cwd=project)
    assert helped.code == 0, helped.err
    assert "worker" in helped.out
    listed = await run(base, "-P", "-m", "mulligan", "agents", "--load", "bot", "--json", cwd=project, **env)
    assert listed.code == 0, listed.err
    assert {agent["name"] for agent in json.loads(listed.out)} == {"bot"}


NEEDS_AN_EXTRA = {
    "web": "from mulligan.tools import fetch_page",
    "mcp": (
        "from mulligan import Agent, McpServer\n\n"
        "notes = McpServer('notes', command=['notes'])\nbot = Agent(name='notes', model='scripted:x', mcp=[notes])"
    ),
    "serve": "from mulligan import serve\n\nserve.app()",
    "s3": "import os\n\nos.environ['MULLIGAN_EXTERNAL_STORAGE'] = 's3://bucket/prefix'",
}


@pytest.mark.parametrize("extra", NEEDS_AN_EXTRA)
async def test_who_needs_an_extra_reads_the_command_that_installs_it(base: Path, project: Path, extra: str) -> None:
    """At the start of the worker, in one sentence without a traceback."""
    (project / "needs.py").write_text(f"{NEEDS_AN_EXTRA[extra]}\n")
    started = await run(
        base, "-P", "-m", "mulligan", "worker", "--load", "needs", cwd=project, TEMPORAL_ADDRESS="localhost:1"
    )
    said = " ".join(started.err.split())
    assert started.code == 2, said
    assert f"needs the extra '{extra}' of Mulligan, which is not installed" in said
    assert f"uv add 'mulligan[{extra}]'" in said
    assert "Traceback" not in said


def test_the_extras_are_those_of_the_package() -> None:
    """Each extra of pyproject.toml has its packages in EXTRAS, and `all` is their sum."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) - {"all"} == set(EXTRAS)
    assert extras["all"] == [f"mulligan[{','.join(name for name in extras if name != 'all')}]"]
