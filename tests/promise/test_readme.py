"""The commands and code of the README, and of the pages that it names, do what they say."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from mulligan import connect
from mulligan.client.settings import Settings
from tests.support.command_fixtures import ROOT, Run, command
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

README = (ROOT / "README.md").read_text()
SETTINGS = (ROOT / "docs/settings.md").read_text()
QUEUE = "readme"


def block(language: str, containing: str, page: str = "README.md") -> str:
    """The page's one block of that language that contains the text."""
    blocks: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    [text] = [text for kind, text in blocks if kind == language and containing in text]
    return text


def test_the_readme_is_read_in_minutes_and_shows_a_picture_at_once() -> None:
    """Its alternative text names the three things that the picture shows."""
    lines = README.splitlines()
    assert len(lines) <= 150
    [picture] = re.findall(r'<img src="(docs/images/[\w-]+\.png)"[^>]* alt="([^"]+)"', "\n".join(lines[:40]))
    assert (ROOT / picture[0]).is_file()
    assert all(word in picture[1] for word in ("mistake", "repair", "approval"))


def test_the_quick_start_is_two_lines_that_run_the_demo_and_the_tests() -> None:
    """The first runs the demo, the second the tests; both are targets of the Makefile."""
    quick = README.split("## Quick start")[1]
    first = re.search(r"```(\w+)\n(.*?)```", quick, re.DOTALL)
    assert first is not None
    assert (first[1], first[2]) == ("sh", "make demo\nmake test\n")
    for line, does in {"make demo": "run --no-dev mulligan demo", "make test": "run pytest"}.items():
        dry = subprocess.run([*shlex.split(line), "-n"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert does in dry.stdout


def test_each_setting_is_in_docs_settings_with_its_default() -> None:
    """Both ways: the page names each variable of `Settings`, and no variable that nothing reads."""
    for name, field in Settings.model_fields.items():
        variable = field.validation_alias or f"MULLIGAN_{name.upper()}"
        row = next(line for line in SETTINGS.splitlines() if f"`{variable}`" in line)
        if field.default_factory is None and field.default not in ([], None, SecretStr(""), ""):
            default = str(field.default)
            assert (default.lower() if isinstance(field.default, bool) else default) in row
    read = {str(field.validation_alias or f"MULLIGAN_{name.upper()}") for name, field in Settings.model_fields.items()}
    elsewhere = {"MULLIGAN_WORKSPACE", "MULLIGAN_FETCH_ALLOW"}  # of tools: mulligan/tools/workspace.py, web_address.py
    assert set(re.findall(r"MULLIGAN_[A-Z_]+", SETTINGS)) <= read | elsewhere


async def test_the_smallest_agent_goes_on_after_its_worker_was_killed(
    mulligan: Run, environment: dict[str, str], model: OpenAIServer, tmp_path: Path
) -> None:
    """shop.py and the commands as printed: a run waits for an approval, its worker is killed, the next one goes on."""
    (tmp_path / "shop.py").write_text(block("python", "support = Agent("))
    _, served, start, approve, show = (_words(line) for line in block("sh", "mulligan start support").splitlines())
    paid = Turn(calls=[("refund", '{"order_id": 7, "euros": 12.5}', "c1")])
    model.script("gpt-5-mini", [paid, Turn("Ada has her money back.")])
    queue = {"MULLIGAN_TASK_QUEUE": f"{QUEUE}-shop"}
    async with _worker(environment | queue | model.environment(), tmp_path, *served) as first:
        started = await mulligan(*start, **queue)
        assert (started.code, started.out) == (0, "my-run\n"), started.err
        while "refund" not in (await mulligan("pending", "my-run", **queue)).out:
            await asyncio.sleep(0.1)
        first.kill()
        await first.wait()
    async with _worker(environment | queue | model.environment(), tmp_path, *served):
        approved = await mulligan(*approve, "--yes", **queue)  # a person is asked on the terminal
        assert approved.code == 0, approved.err
        client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
        result = await client.get_workflow_handle("my-run").result()
        assert (result["status"], result["output"]) == ("completed", "Ada has her money back.")
        shown = await mulligan(*show, **queue)
        assert shown.out.count("12.50 euros are paid back for order 7.") == 1


async def test_the_agents_of_other_pages_run_as_described(
    environment: dict[str, str], model: OpenAIServer, tmp_path: Path
) -> None:
    """Those of docs/workflows.md and docs/structured-output.md, and the example that the first one names, on one worker."""
    (tmp_path / "shop.py").write_text(block("python", "support = Agent("))
    (tmp_path / "turns.py").write_text(block("python", "class TwoTurns", "docs/workflows.md"))
    (tmp_path / "letters.py").write_text(block("python", "claims = Agent(", "docs/structured-output.md"))
    model.script("gpt-5-mini", [Turn("A lamp."), Turn("It is cancelled.")])
    env = environment | {"MULLIGAN_TASK_QUEUE": QUEUE} | model.environment()
    loaded = (word for module in ("shop", "turns", "letters", "examples.refund_desk") for word in ("--load", module))
    async with _worker(env, tmp_path, "worker", *loaded):
        client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
        said = await client.execute_workflow("TwoTurns", "Ada", id="readme-2", task_queue=QUEUE)
        assert said == "It is cancelled."
        given = {"agent": "claims", "prompt": "My lamp broke."}
        read = await client.execute_workflow("AgentWorkflow", given, id="readme-3", task_queue=QUEUE)
        assert (read["output"], read["output_type"]) == ({"order": 7, "amount": 12.5}, "Refund")
        assert read["recovered_failures"] == 1
        file = tmp_path / "client.py"
        printed = block("python", "RefundDesk", "docs/workflows.md")
        file.write_text(printed.replace('task_queue="agents"', f'task_queue="{QUEUE}"'))
        ran = await command(sys.executable, str(file), env=env)
        assert (ran.code, "refunded" in ran.out) == (0, True), ran.err


@asynccontextmanager
async def _worker(env: dict[str, str], folder: Path, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that serves; it is ended after the block."""
    program = [sys.executable, str(ROOT / "worker.py"), *words[1:]]
    worker = await asyncio.create_subprocess_exec(*program, env=env, cwd=folder, stderr=asyncio.subprocess.PIPE)
    assert worker.stderr is not None
    try:
        assert b"support" in await worker.stderr.readline()
        yield worker
    finally:
        if worker.returncode is None:
            worker.terminate()
            await worker.wait()


def _words(line: str) -> list[str]:
    """What a line of the README gives to `mulligan`."""
    return shlex.split(line.partition("uv run mulligan ")[2], comments=True)


async def test_the_readme_names_no_command_that_does_not_exist(mulligan: Run, environment: dict[str, str]) -> None:
    """Each `mulligan …` of the README is a command."""
    named = set(re.findall(r"uv run mulligan (\w+)", README))
    listed = await command(sys.executable, "-c", "from mulligan.cli.app import main; main()", "--help", env=environment)
    assert named
    assert all(name in listed.out for name in named)
