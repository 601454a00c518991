"""Each code block of the README and the pages is run or read by the program that it is for, or a comment in the page says why not.

A comment stands above the block, or below the page's title, where it counts for all blocks: `<!-- run by TEST -->` or
`<!-- not run: REASON -->`. The blocks of the reference are signatures.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
import yaml

from mulligan.cli.app import app
from tests.support.command_fixtures import command
from tests.support.docs_block import docs_block

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]+) -->\n)?^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"run by (tests/\S+\.py)|not run: \S.+")
OUTPUT = {"", "text", "markdown"}
"""What programs print, and prose."""
SET_BY_USERS = re.compile(r"(export \w+=.+|uv add (--\S+ )?'?[\w./\[\]-]+'?)( +#.*)?")
"""Settings, whose names `test_readme.py` compares with the code, and extras, which `test_installed.py` does."""
PIPE = re.compile(r"\s(?:>|\||&&|;)\s.*")


@dataclass(frozen=True)
class Block:
    """A code block of a page. `mark`: the comment that counts for it, or ""."""

    page: Path
    number: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.number}-{self.language}"


def blocks() -> list[Block]:
    """All blocks, except what programs print."""
    found = []
    for page in PAGES:
        text = page.read_text()
        of_page = re.match(r"# .+\n\n<!-- ((?:run by|not run:) .+) -->\n", text)
        for number, each in enumerate(BLOCK.finditer(text)):
            if each["language"] not in OUTPUT:
                mark = each["mark"] or (of_page[1] if of_page else "")
                found.append(Block(page, number, each["language"], each["text"], mark))
    return found


BLOCKS = blocks()
UNMARKED = [block for block in BLOCKS if not block.mark]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mark], ids=str)
def test_a_mark_has_a_reason_or_names_a_test_that_reads_the_page(block: Block) -> None:
    mark = MARK.fullmatch(block.mark)
    assert mark
    if mark[1]:
        assert block.page.stem in (ROOT / mark[1]).read_text()


@pytest.mark.parametrize("block", [block for block in UNMARKED if block.language not in ("python", "sh")], ids=str)
def test_a_block_of_data_can_be_read(block: Block) -> None:
    """Other languages need a mark."""
    read: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    assert read[block.language](block.text)


@pytest.mark.parametrize("block", [block for block in UNMARKED if block.language == "sh"], ids=str)
def test_each_line_of_a_shell_block_is_a_command_of_mulligan_with_options_that_it_has(block: Block) -> None:
    """They are parsed as the command does it. Other programs need a mark."""
    lines = [line.strip() for line in block.text.replace("\\\n", " ").splitlines()]
    for line in (line for line in lines if line and not line.startswith("#") and not SET_BY_USERS.fullmatch(line)):
        words = shlex.split(PIPE.sub("", line), comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        program = words[2:] if words[:2] == ["uv", "run"] else words
        assert program[0] == "mulligan", line
        parse(COMMANDS[program[1]], program[2:])


def parse(cli: Any, words: list[str]) -> None:
    """Read the arguments; a group's are those of its command."""
    if isinstance(cli, click.Group) or hasattr(cli, "commands"):
        assert words[0] in cli.commands
        parse(cli.commands[words[0]], words[1:])
        return
    with cli.make_context("mulligan", [*words], resilient_parsing=False):
        return


def test_at_most_ten_blocks_are_not_run() -> None:
    """Each stands above a block, or below a title for all blocks of the page."""
    assert len([block for block in BLOCKS if block.mark.startswith("not run")]) <= 10


async def test_the_command_for_old_payloads_deletes_only_them(tmp_path: Path) -> None:
    """That of docs/long-runs.md, in a folder of this test."""
    old, new = tmp_path / "00" / "old", tmp_path / "00" / "new"
    for file, days in ((old, 91), (new, 89)):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, times=(time.time() - days * 86_400,) * 2)
    line = docs_block("docs/long-runs.md", "-delete").replace("/srv/mulligan", shlex.quote(str(tmp_path)))
    ran = await command("sh", "-c", line, env={**os.environ})
    assert ran.code == 0, ran.err
    assert (old.exists(), new.exists()) == (False, True)


async def test_the_python_blocks_run_and_their_tests_pass(tmp_path: Path) -> None:
    """The blocks of a page are one module, in their order, in one session of pytest."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["mulligan.testing.plugin"]\n')
    pages = {block.page: "" for block in UNMARKED if block.language == "python"}
    for block in (block for block in UNMARKED if block.language == "python"):
        pages[block.page] += block.text + "\n\n"
    for page, text in pages.items():
        module = page.stem.replace("-", "_")
        imported = f"def test_the_page_{module}_can_be_imported() -> None:\n    assert __name__\n"
        (tmp_path / f"test_page_{module}.py").write_text(text + imported)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "."]
    ran = await command(sys.executable, *words, cwd=tmp_path, env={**os.environ})
    assert ran.code == 0, ran.out + ran.err
