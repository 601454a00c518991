"""deploy/Dockerfile without Docker: its build stage runs in a scratch folder, then its entry point.

Not tested: the base images, the user, and the read-only file system, except that the worker writes only to its
workspace.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import httpx2
import pytest

from mulligan.devserver import DevServer
from tests.support.ports import free_ports
from tests.support.temporal import connect_to, environment_of

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
Instruction = tuple[str, str]


def stages(dockerfile: Path) -> list[list[Instruction]]:
    """The instructions of each stage, with lines joined and comments removed."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[Instruction]] = []
    for line in filter(str.strip, text.splitlines()):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    """The variables that ENV sets."""
    pairs = (pair.partition("=") for word, rest in stage if word == "ENV" for pair in shlex.split(rest))
    return {name: value for name, _, value in pairs}


def argument_of(stage: list[Instruction], word: str) -> str:
    """The arguments of the only instruction with this keyword."""
    [rest] = [rest for each, rest in stage if each == word]
    return rest


_, BUILD, FINAL = stages(DEPLOY / "Dockerfile")
BASE = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "VIRTUAL_ENV", "PYTHON"))}


async def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    """What a command prints; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.fixture(scope="module")
async def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual environment of the build stage, made by its COPY and RUN instructions."""
    source = tmp_path_factory.mktemp("src")
    made = tmp_path_factory.mktemp("opt") / "mulligan"
    env = {**BASE, **environment(BUILD), "UV_PROJECT_ENVIRONMENT": str(made), "UV_PYTHON": sys.executable}
    env["PATH"] = os.pathsep.join((str(Path(os.environ.get("UV") or shutil.which("uv") or "").parent), env["PATH"]))
    for word, rest in BUILD:
        if word == "COPY" and "--from" not in rest:
            *names, target = rest.split()
            for name in names:
                copied = source / target / name if target == "./" else source / target
                (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copied)
        elif word == "RUN":
            await run("/bin/sh", "-c", re.sub(r"--mount=\S+", "", rest), cwd=source, env=env)
    shutil.rmtree(source)  # the final image has only the virtual environment
    return made


def snapshot(*folders: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for folder in folders for path in [folder, *folder.rglob("*")]}


async def test_the_image_serves_a_users_package_writes_nothing_and_drains(
    venv: Path, temporal: DevServer, tmp_path: Path
) -> None:
    """Like `docker run -v ./example:/agents:ro`: with ENV, WORKDIR and ENTRYPOINT of the final stage."""
    agents = shutil.copytree(DEPLOY / "example", tmp_path / "agents", ignore=shutil.ignore_patterns("__pycache__"))
    home, [port] = tmp_path / "home", free_ports(1)
    home.mkdir()
    (agents / "worker.py").write_text("raise SystemExit('a file of a user stands in for the worker')\n")
    # UV_COMPILE_BYTECODE: an image without bytecode starts more slowly each time, and cannot write it later.
    assert list(venv.rglob("worker.cpython-*.pyc"))
    env = {
        **BASE, **environment(FINAL), "PATH": f"{venv / 'bin'}:/usr/bin:/bin", "HOME": str(home),
        "MULLIGAN_WORKSPACE": str(tmp_path / "workspace"), "MULLIGAN_LOAD": "stock", **environment_of(temporal),
        "MULLIGAN_TASK_QUEUE": "image", "MULLIGAN_HEALTH_ADDRESS": f"127.0.0.1:{port}",
    }  # fmt: skip
    before = snapshot(venv, agents, home)
    program, *arguments = json.loads(argument_of(FINAL, "ENTRYPOINT"))
    worker = await asyncio.create_subprocess_exec(
        venv / "bin" / program, *arguments, cwd=agents, env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        client = await connect_to(temporal)
        given = {"agent": "stock", "prompt": "Are there lamps?"}
        handle = await client.start_workflow("AgentWorkflow", given, id="image", task_queue="image", result_type=dict)
        assert (await handle.result())["output"] == "I looked: lamp: 3 in stock."
        async with httpx2.AsyncClient() as http:
            assert (await http.get(f"http://127.0.0.1:{port}/readyz")).text == "ok\n"
    finally:
        worker.terminate()
        _, said = await worker.communicate()
    assert worker.returncode == 0, said.decode()
    assert b"Draining" in said
    assert snapshot(venv, agents, home) == before


def test_everything_that_is_installed_has_the_pinned_version_and_a_hash() -> None:
    """`make pin` writes both files. Without hashes, uv would install nothing (--require-hashes)."""
    pinned = set(re.findall(r'^    "([\w.-]+==[^ ;"]+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    for name in ("requirements.txt", "build-requirements.txt"):
        entries = re.split(r"\n(?=\S)", (DEPLOY / name).read_text().strip())
        assert {re.split(r"[ ;\\]", entry)[0] for entry in entries} <= pinned
        assert all("--hash=sha256:" in entry for entry in entries)
        assert f"--require-hashes -r {name}" in (DEPLOY / "Dockerfile").read_text()
    assert "apt-get" not in (DEPLOY / "Dockerfile").read_text()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {re.match(r"[\w-]+", each)[0] for each in wanted["project"]["dependencies"]}  # type: ignore[index]
    assert names <= set(re.findall(r"^([\w-]+)==", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE))
    assert wanted["build-system"]["requires"] == [each for each in pinned if each.startswith("hatchling==")]


def test_the_final_image_contains_no_build_tools(venv: Path) -> None:
    assert not {"uv", "pip", "ruff", "pytest", "mypy"} & {path.name for path in (venv / "bin").iterdir()}
    assert [rest for word, rest in FINAL if word == "COPY"] == ["--from=build /opt/mulligan /opt/mulligan"]


def test_the_image_runs_as_a_numeric_user_and_receives_sigterm() -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", argument_of(FINAL, "USER")), (
        "by number: Kubernetes' runAsNonRoot reads no names"
    )
    assert argument_of(FINAL, "STOPSIGNAL") == "SIGTERM"
    assert isinstance(
        json.loads(argument_of(FINAL, "ENTRYPOINT")), list
    )  # no shell, which would not forward the signal
    assert environment(FINAL)["MULLIGAN_WORKSPACE"] == "/workspace"


def test_the_build_context_contains_only_what_is_copied() -> None:
    """An allow list, so that no `.env` or `.git` gets into a layer."""
    first, *rules = [
        line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line and line[0] != "#"
    ]
    assert first == "*"
    seen = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    copied = {name for word, rest in BUILD if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]}
    assert seen == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_example_image_is_derived_from_this_image_with_the_same_uv() -> None:
    text = (DEPLOY / "example/Dockerfile").read_text()
    assert "ARG MULLIGAN=mulligan-worker:0.1.0" in text
    assert "mulligan-worker:0.1.0" in (DEPLOY / "compose.yaml").read_text()
    versions = set(re.findall(r"astral-sh/uv:([\w.]+)", text + (DEPLOY / "Dockerfile").read_text()))
    assert len(versions) == 1
    assert argument_of(FINAL, "USER") in text


@pytest.mark.parametrize(
    "dockerfile", [DEPLOY / "Dockerfile", DEPLOY / "example/Dockerfile"], ids=["worker", "example"]
)
async def test_hadolint_reports_nothing(dockerfile: Path) -> None:
    assert await run(Path(sys.executable).with_name("hadolint"), dockerfile, cwd=ROOT, env=BASE) == ""
