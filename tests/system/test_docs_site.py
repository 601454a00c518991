"""The docs as a site: each public name and each command is on it, it loads nothing from another host, and faults fail the build."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mulligan.cli.app import app

ROOT = Path(__file__).parents[2]
PUBLIC = ("mulligan", "mulligan.tools", "mulligan.testing", "mulligan.events", "mulligan.providers")
SOURCES = ("docs", "mulligan", "workflows", "activities", "tools", "deploy", "benchmarks", "examples")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs-site` builds it."""
    [options] = re.findall(r"sphinx-build (.*) docs site$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options.split(), "docs", str(out)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = build(ROOT, out)
    assert (built.returncode, built.stderr) == (0, "")
    return out


def test_each_public_name_is_in_the_reference(site: Path) -> None:
    """`__all__` of what users import, against the names that the site's inventory lists."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert public - {"mulligan.events", "mulligan.serve"} - listed == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_in_the_reference_with_its_options(site: Path, name: str) -> None:
    page = (site / "reference/commands.html").read_text()
    section = page.split(f"<h2>mulligan {name}<")[1].split("<h2>")[0]
    text = re.sub(r"<[^>]+>", "", section)
    for parameter in COMMANDS[name].params:
        for spelled in parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]:
            assert spelled in text


def test_an_opened_page_makes_no_request_to_another_host(site: Path) -> None:
    """Links of the text lead anywhere; scripts, styles, fonts and images are the site's own."""
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"([^\"]+)\"", page.read_text())
        assert loaded
        assert not [address for address in loaded if re.match(r"(?:https?:)?//", address)]
    for file in [*site.rglob("*.css")]:
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", file.read_text())


def test_faults_fail_the_build(tmp_path: Path) -> None:
    """A copy of the project with one fault of each kind."""
    for folder in SOURCES:
        shutil.copytree(
            ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("results", "__pycache__")
        )
    faults = {
        "docs/people.md": [("# ", "# [x](gone.md) [y](events.md#gone) {py:class}`mulligan.Gone`\n\n# ")],
        "docs/reference/python.md": [("\ntool\n", "\ntool\nGone\n"), ("\nHandleErrors\n", "\n")],
        "docs/index.md": [("- [Typed answers](structured-output.md)\n", "")],
        "mulligan/errors.py": [('    """The tool, or its worker, did not answer in time."""\n', "    pass\n")],
        "mulligan/values.py": [('    """Tokens of the model call."""\n', "")],
        "mulligan/output.py": [("    Args:\n        result:", "    Args:\n        gone:")],
        "mulligan/cli/show.py": [('typer.Argument(help="The run\'s id.")', "typer.Argument()")],
    }
    for name, edits in faults.items():
        text = (tmp_path / name).read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / name).write_text(text)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    for warning in (
        "people.md:1: WARNING: 'myst' cross-reference target not found: 'gone.md'",
        "local id not found in doc 'events': 'gone'",
        "py:class reference target not found: mulligan.Gone",
        "mulligan has no Gone",
        "mulligan.ToolTimeoutError: no docstring",
        "mulligan.Step: the field `usage` is not described",
        "mulligan.output_of: the parameter `result` is not described",
        "mulligan.output_of: describes a parameter `gone`, which it does not have",
        "names the type mulligan.policy.HandleErrors, which is not in the reference",
        "structured-output.md: WARNING: document isn't included in any toctree",
        "mulligan show: ID has no help text",
    ):
        assert warning in built.stderr
