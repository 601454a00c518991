"""Each path, section and module that a page names exists, and its Python can be read."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mulligan import RunInput, RunResult

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")],
    key=lambda page: str(page),
)
FOLDERS = "mulligan|workflows|activities|tools|tests|examples|deploy|benchmarks|docs|worker.py"
SUBPACKAGES = "workflows|activities|tools|client|worker|wire|observe|testing|schema|events|data_converter"
IN_BACKTICKS = re.compile(rf"`((?:{FOLDERS})(?:/[\w.*/-]+)?)(?:::?[\w.]+)?/?`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[\w-]*)?\)")
spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs/_site/reference_pages.py")
assert spec is not None
assert spec.loader is not None
REFERENCE = importlib.util.module_from_spec(spec)
spec.loader.exec_module(REFERENCE)
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The pages that name files and modules as they are now: the changelog names them as they were."""
NO_FILES_OF_OURS = {"tools/call", "deploy/.env", "deploy/compose.override.yaml"}
"""A method of MCP, and files that a user writes."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def paths(page: Path) -> set[Path]:
    text = page.read_text()
    return {ROOT / path for path in {*IN_BACKTICKS.findall(text)} - NO_FILES_OF_OURS} | {
        page.parent / link for link in LINK.findall(text)
    }


def test_each_path_that_a_page_names_exists() -> None:
    """In backticks from the root of the checkout, in links from the page; `*` stands for any name."""
    missing = [(named(page), path) for page in PRESENT for path in paths(page) if not list(path.parent.glob(path.name))]
    assert not missing


@cache
def anchors(page: Path) -> set[str]:
    """Those of its headings, as renderers make them: a repeated one gets a number."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
    return {
        slug + (f"-{slugs[:place].count(slug)}" if slug in slugs[:place] else "") for place, slug in enumerate(slugs)
    }


def test_each_section_that_a_link_names_exists() -> None:
    missing = [
        (named(page), file, anchor)
        for page in PAGES
        for file, anchor in re.findall(r"\]\(([^):\s#]*)#([\w-]+)\)", page.read_text())
        if anchor not in anchors(page.parent / file if file else page)
    ]
    assert not missing


def test_each_module_that_agents_md_names_by_its_file_exists() -> None:
    """Also in its map, which names files without their folders."""
    files = {path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.py")} | {"worker.py"}
    assert set(re.findall(r"\b\w+\.py\b", (ROOT / "AGENTS.md").read_text())) <= files


def is_there(name: str) -> bool:
    """Whether a name of the package, as `pkgutil.resolve_name` reads it, can be imported."""
    try:
        return pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


def test_each_name_of_the_package_that_a_page_names_exists() -> None:
    """`mulligan.client.…` and so on: a module, or an attribute of one."""
    pattern = rf"`(mulligan\.(?:{SUBPACKAGES})(?:\.\w+)*)(?:\(.*?\))?`"
    found = [(named(page), name) for page in PRESENT for name in re.findall(pattern, page.read_text())]
    assert found
    assert [each for each in found if not is_there(each[1])] == []


def imported_names(block: str) -> Iterator[str]:
    """What a block of Python imports of the package."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "mulligan":
            yield from (f"{node.module}:{alias.name}" for alias in node.names)


def test_each_python_block_of_a_page_parses_and_imports_what_exists() -> None:
    """Most blocks are also run, by the tests of what they are about."""
    missing = [
        (named(page), name)
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        for name in imported_names(block)
        if not is_there(name)
    ]
    assert not missing


@pytest.mark.parametrize(
    "module", ["mulligan", "mulligan.tools", "mulligan.testing", "mulligan.events", "mulligan.providers"]
)
def test_each_public_name_has_a_line_in_the_reference(module: str) -> None:
    """The lines of its `public-api` comments, below which are the names' descriptions."""
    listed = [line.partition(":")[0] for of, line in REFERENCE.reference_lines() if of == module]
    assert sorted(listed) == sorted({*importlib.import_module(module).__all__} - {"events", "serve"})


@pytest.mark.parametrize("page", REFERENCE.PAGES, ids=lambda page: page.name)
def test_the_reference_is_readable_in_the_repository_and_current(page: Path) -> None:
    """`make docs` writes it from the docstrings and the commands' options."""
    assert page.read_text() == REFERENCE.current_text(page)


def test_the_reference_has_the_fields_of_what_users_handle() -> None:
    text = (ROOT / "docs/reference/python.md").read_text()
    for name, fields in {
        "RunInput": RunInput.model_fields,
        "RunResult": RunResult.model_fields,
        "ToolContext": ["idempotency_key", "metadata", "attempt", "resources"],
    }.items():
        section = text.split(f"\n### {name}\n")[1].split("\n### ")[0]
        assert [field for field in fields if not re.search(rf"^- `{field}\b", section, re.MULTILINE)] == []
    # Modules of the same names are in the package as well.
    assert "\n### tool\n\n```py\ndef tool(\n" in text
    assert "\n### adopt\n\n```py\ndef adopt(\n" in text


def test_each_name_of_the_reference_is_described_with_its_fields_and_parameters() -> None:
    """A description under the field or parameter, in `Args:` or `Attributes:`, or in the text of the docstring."""
    entries = {(module, line): REFERENCE.find_entry(module, line) for module, line in REFERENCE.reference_lines()}
    assert entries
    assert [name for name, entry in entries.items() if entry is None or list(entry.problems())] == []
