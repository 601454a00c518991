"""`adopt`: examples of other frameworks, run by their own runner and by Mulligan, in environments of their own.

Each example is sent to the same scripted server, and both must send the same requests in meaning, make the same calls, and end
with the same output.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mulligan.devserver import DevServer
from tests.support.own_environment import own_environment
from tests.support.temporal import environment_of

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "openai_agents": ("openai-agents=={version}", ("0.21.0", "0.24.0")),
    "pydantic_ai": ("pydantic-ai-slim[openai,mcp]=={version}", ("2.68.0",)),
}
VERSIONS = [(name, version) for name, (_, versions) in FRAMEWORKS.items() for version in versions]
SECONDS_TO_INSTALL = 600  # the package index may be slow


async def installed(framework: str, version: str) -> Path:
    """The Python of an environment with a framework, and with what Mulligan needs. Its code is that of this folder."""
    requirement = FRAMEWORKS[framework][0].format(version=version)
    needs = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    ours = f"mulligan[mcp,anthropic,google] @ {ROOT.as_uri()}"
    folder = await own_environment(framework, f"{version}-{needs}", requirement, ours, "aiohttp>=3.13", "pytest>=9")
    return folder / "bin/python"


async def run_program(python: Path, *arguments: str, temporal: DevServer | None = None) -> str:
    """What a program in such an environment prints."""
    # The options of the tests that run now may be those of a plugin which that environment does not have.
    ours = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment = {**ours, **(environment_of(temporal) if temporal else {}), "PYTHONPATH": str(ROOT)}
    program = await asyncio.create_subprocess_exec(
        str(python),
        *arguments,
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await program.communicate()
    assert program.returncode == 0, (out + err).decode()[-3000:]
    return out.decode()


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda each: "-".join(each))
async def python(request: pytest.FixtureRequest) -> tuple[str, Path]:
    framework, version = request.param
    return framework, await installed(framework, version)


@pytest.mark.timeout(SECONDS_TO_INSTALL)
async def test_examples_run_as_by_their_own_runner(python: tuple[str, Path], temporal: DevServer) -> None:
    framework, program = python
    lines = (
        await run_program(program, "-m", "tests.support.adopting.compare_adopted", framework, temporal=temporal)
    ).splitlines()
    compared: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len(compared) >= 10
    for each in compared:
        assert each["ours"]["refusals"] == each["theirs"]["refusals"] == []
        assert each["ours"] == each["theirs"], each["name"]


@pytest.mark.timeout(SECONDS_TO_INSTALL)
async def test_the_example_of_the_page_of_adopt_runs(tmp_path: Path) -> None:
    """Its agent finds the order, as docs/adopt.md shows it."""
    [code] = re.findall(r"```py\n(.*?)```", (ROOT / "docs/adopt.md").read_text(), re.DOTALL)
    (tmp_path / "page.py").write_text(
        f"{code}\nimport asyncio\nfrom mulligan import Call, Say\nfrom mulligan.testing import ScriptedModel, run_agent\n"
        "model = ScriptedModel(Say(calls=[Call('find_order', {'number': 7})]), 'It is on its way.')\n"
        "run = asyncio.run(run_agent(support, 'Where is order 7?', model=model))\n"
        "print([call.result.text for call in run.calls], run.output)\n"
    )
    out = await run_program(await installed("openai_agents", "0.24.0"), str(tmp_path / "page.py"))
    assert out.splitlines()[-1] == "['on its way'] It is on its way."


@pytest.mark.timeout(SECONDS_TO_INSTALL)
async def test_what_does_not_carry_over_is_refused_or_warned_about_by_name(python: tuple[str, Path]) -> None:
    framework, program = python
    test = f"tests/support/adopting/adopting_{framework}.py"
    printed = await run_program(
        program, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "--noconftest", test
    )
    assert " passed" in printed
