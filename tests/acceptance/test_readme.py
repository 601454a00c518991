"""The commands and code of the README, and of the pages that it names, do what they say."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from pydantic import SecretStr

from mulligan import connect
from mulligan.client.settings import Settings
from tests.acceptance.conftest import ROOT, Run, command

README = (ROOT / "README.md").read_text()
SETTINGS = (ROOT / "docs/settings.md").read_text()
QUEUE = "readme"


def block(language: str, containing: str, page: str = "README.md") -> str:
    """The page's one block of that language that contains the text."""
    blocks: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    [text] = [text for kind, text in blocks if kind == language and containing in text]
    return text


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


async def test_the_agents_printed_in_the_readme_run_as_described(
    mulligan: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """shop.py as printed: the worker loads it, `start --wait` prints its answer, `show` the mistake and the repair.

    The agents of the other pages, and the example that docs/workflows.md names, are served by the same worker.
    """
    (tmp_path / "shop.py").write_text(block("python", "support = Agent("))
    (tmp_path / "turns.py").write_text(block("python", "class TwoTurns", "docs/workflows.md"))
    (tmp_path / "letters.py").write_text(block("python", "claims = Agent(", "docs/structured-output.md"))
    env = environment | {"MULLIGAN_TASK_QUEUE": QUEUE}
    assert "```sh\nuv run mulligan worker --load shop\n```" in README
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "worker.py"), "--load", "shop", "--load", "turns", "--load", "letters",
        "--load", "examples.refund_desk",
        env=env, cwd=tmp_path, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert worker.stderr is not None
    try:
        assert b"support" in await worker.stderr.readline()
        start, show = (shlex.split(line.removeprefix("uv run mulligan ")) for line in _lines("mulligan start support"))
        started = await mulligan(*start, **{"MULLIGAN_TASK_QUEUE": QUEUE})
        assert (started.code, started.out) == (0, "Order 7 is cancelled.\n")
        shown = await mulligan(*show)
        assert "returned to the model: invalid_arguments" in shown.out
        assert "repaired by fix" in shown.out
        client = await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
        given = json.loads(re.search(r"--input '(.*)'", block("sh", "temporal workflow start"))[1])  # type: ignore[index]
        result = await client.execute_workflow("AgentWorkflow", given, id="readme-1", task_queue=QUEUE)
        assert result["status"] == "completed"
        assert await client.execute_workflow("TwoTurns", "Ada", id="readme-2", task_queue=QUEUE)
        given = {"agent": "claims", "prompt": "My lamp broke."}
        read = await client.execute_workflow("AgentWorkflow", given, id="readme-3", task_queue=QUEUE)
        assert (read["output"], read["output_type"]) == ({"order": 7, "amount": 12.5}, "Refund")
        assert read["recovered_failures"] == 1
        for page, containing, printed in (
            ("README.md", "RunInput(", "'completed'"),
            ("docs/workflows.md", "RefundDesk", "refunded"),
        ):
            file = tmp_path / "client.py"
            file.write_text(block("python", containing, page).replace('task_queue="agents"', f'task_queue="{QUEUE}"'))
            ran = await command(sys.executable, str(file), env=env)
            assert (ran.code, printed in ran.out) == (0, True), ran.err
    finally:
        worker.terminate()
        await worker.wait()


def _lines(having: str) -> list[str]:
    return block("sh", having).strip().splitlines()


async def test_the_readme_names_no_command_that_does_not_exist(mulligan: Run, environment: dict[str, str]) -> None:
    """Each `mulligan …` of the README is a command."""
    named = set(re.findall(r"uv run mulligan (\w+)", README))
    listed = await command(sys.executable, "-c", "from mulligan.cli.app import main; main()", "--help", env=environment)
    assert named
    assert all(name in listed.out for name in named)
