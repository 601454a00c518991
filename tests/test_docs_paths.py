"""Each path, section and module that a page names exists, and its Python can be read."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")],
    key=lambda page: str(page),
)
FOLDERS = "mulligan|workflows|activities|tools|tests|examples|deploy|benchmarks|docs|worker.py"
SUBPACKAGES = "workflows|activities|tools|client|worker|wire|observe|testing|schema|events|data_converter"
IN_BACKTICKS = re.compile(rf"`((?:{FOLDERS})(?:/[\w.*/-]+)?)(?:::?[\w.]+)?/?`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[\w-]*)?\)")
spec = importlib.util.spec_from_file_location("docstrings", ROOT / "docs/_site/docstrings.py")
assert spec is not None
assert spec.loader is not None
DOCSTRINGS = importlib.util.module_from_spec(spec)
spec.loader.exec_module(DOCSTRINGS)
PAST = {"CHANGELOG.md"}
"""It names files under the names that they had."""
NO_FILES_OF_OURS = {"tools/call", "deploy/.env", "deploy/compose.override.yaml"}
"""A method of MCP, and files that a user writes."""


def paths(page: Path) -> set[Path]:
    text = page.read_text()
    return {ROOT / path for path in {*IN_BACKTICKS.findall(text)} - NO_FILES_OF_OURS} | {
        page.parent / link for link in LINK.findall(text)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_path_that_a_page_names_exists(page: Path) -> None:
    """In backticks from the root of the checkout, in links from the page; `*` stands for any name."""
    if page.name in PAST:
        pytest.skip("it names files under the names that they had")
    missing = [path for path in paths(page) if not list(path.parent.glob(path.name))]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_section_that_a_link_names_exists(page: Path) -> None:
    for file, anchor in re.findall(r"\]\(([^):\s#]*)#([\w-]+)\)", page.read_text()):
        titles = re.findall(r"^#+ (.+)$", (page.parent / file if file else page).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_module_that_agents_md_names_by_its_file_exists() -> None:
    """Also in its map, which names files without their folders."""
    files = {path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.py")} | {"worker.py"}
    assert set(re.findall(r"\b\w+\.py\b", (ROOT / "AGENTS.md").read_text())) <= files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_name_of_the_package_that_a_page_names_exists(page: Path) -> None:
    """`mulligan.client.…` and so on: a module, or an attribute of one."""
    if page.name in PAST:
        pytest.skip("it names modules under the names that they had")
    for name in re.findall(rf"`(mulligan\.(?:{SUBPACKAGES})(?:\.\w+)*)(?:\(.*?\))?`", page.read_text()):
        assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_python_block_of_a_page_parses_and_imports_what_exists(page: Path) -> None:
    """Most blocks are also run, by the tests of what they are about."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "mulligan":
                for alias in node.names:
                    assert pkgutil.resolve_name(f"{node.module}:{alias.name}") is not None


@pytest.mark.parametrize(
    "module", ["mulligan", "mulligan.tools", "mulligan.testing", "mulligan.events", "mulligan.providers"]
)
def test_each_public_name_has_a_line_in_the_reference(module: str) -> None:
    """The lines of its `public-api` blocks; `make docs-site` replaces them by the names' descriptions."""
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    blocks = re.findall(rf"^:::\{{public-api\}} {re.escape(module)}\n(.*?)^:::", pages, re.MULTILINE | re.DOTALL)
    listed = [line.partition(":")[0] for block in blocks for line in block.splitlines()]
    assert sorted(listed) == sorted({*importlib.import_module(module).__all__} - {"events", "serve"})


@pytest.mark.parametrize(("module", "line"), DOCSTRINGS.reference_lines())
def test_each_name_of_the_reference_is_described_with_its_fields_and_parameters(module: str, line: str) -> None:
    """A description under the field or parameter, in `Args:` or `Attributes:`, or in the text of the docstring."""
    entry = DOCSTRINGS.find_entry(module, line)
    assert entry is not None
    assert list(entry.problems()) == []
