"""The house's rules, read off the imports: doors -> workflows -> activities -> tools -> mulligan; never upward."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("mulligan", "tools", "activities", "workflows")
"""From the ground up: a room may import from itself and from the rooms before it."""
CONFINES = ("mulligan.tools.workspace", "mulligan.tools.web_address")
DOORS = ("mulligan/cli/", "mulligan/testing/", "mulligan/worker/", "worker.py")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """The modules that a file imports; without `lazy`, only those imported as it is."""
    tree = ast.parse(path.read_text())
    nodes: list[ast.AST] = list(ast.walk(tree)) if lazy else list(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def is_door(path: Path) -> bool:
    return str(path.relative_to(ROOT)).startswith(DOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_looks_upward(path: Path) -> None:
    """`mulligan/__init__.py` alone hands on DurableAgent, lazily; the doors see all."""
    if is_door(path) or path == ROOT / "mulligan/__init__.py":
        pytest.skip("a door")
    room = path.relative_to(ROOT).parts[0]
    above = tuple(f"mulligan.{each}" for each in (*ROOMS[ROOMS.index(room) + 1 :], "worker"))
    assert not {name for name in imports(path) if name.startswith(above)}


@pytest.mark.parametrize("path", sorted((ROOT / "tools").glob("*.py")), ids=lambda path: path.name)
def test_tools_do_not_know_each_other(path: Path) -> None:
    """What tools share is lower than the tools: what confines them."""
    if path.name != "__init__.py":
        assert not {
            name for name in imports(path) if name.startswith("mulligan.tools.") and not name.startswith(CONFINES)
        }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "workflows").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_workflows_are_deterministic(path: Path) -> None:
    """No clock, random, I/O or logging but the workflow's; nothing caught broadly; activities asked for by name."""
    source = path.read_text()
    forbidden = {"time", "random", "logging", "os", "socket", "threading", "subprocess", "uuid", "datetime.datetime"}
    if "agents" not in path.parts:
        assert not {name for name in imports(path) if name in forbidden or name.startswith("mulligan.activities")}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None
            assert not {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} & {
                "Exception",
                "BaseException",
            }


@pytest.mark.parametrize("path", sorted((ROOT / "mulligan").glob("*.py")), ids=lambda path: path.name)
def test_the_package_loads_no_provider(path: Path) -> None:
    """`import mulligan` costs no provider SDK and holds no workflow code."""
    names = imports(path, lazy=False)
    assert not {name for name in names if name.split(".")[0] == "openai" or name.startswith("temporalio.workflow")}


@pytest.mark.parametrize("path", [*FILES, ROOT / "worker.py"], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_in_a_head(path: Path) -> None:
    """300 lines, and no room for odds and ends."""
    assert len(path.read_text().splitlines()) <= 300
    assert path.stem not in {"utils", "helpers", "manager", "base", "common", "misc"}


BARE = re.compile(r"^\s*(?:>>> )?(?:from|import) (?:workflows|activities|tools|worker)\b", re.MULTILINE)
"""An import by the name of a folder of the checkout: a second copy of the module beside that of `mulligan.…`."""


@pytest.mark.parametrize("suffix", ["py", "md"])
def test_nobody_imports_by_a_bare_name(suffix: str) -> None:
    """Whoever installs Mulligan has `mulligan` alone, and may have folders of these names of their own."""
    tracked = subprocess.run(["git", "ls-files", f"*.{suffix}"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [ROOT / name for name in tracked.stdout.split()]
    assert len(files) > 20
    assert not [path for path in files if path.is_file() and BARE.search(path.read_text())]


def test_the_package_takes_in_the_folders_beside_it() -> None:
    """The same files under both names, and none twice."""
    for room in ("workflows", "activities", "tools"):
        link = ROOT / "mulligan" / room
        assert link.is_symlink()
        assert link.readlink() == Path("..") / room


def test_no_root_module_shadows_the_library() -> None:
    """A root module named like one of the standard library's would be imported in its place."""
    roots = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not roots & sys.stdlib_module_names
