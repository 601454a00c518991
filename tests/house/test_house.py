"""The rules of the house, checked on the source: who may import whom, where things are, how long they may be."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import mulligan
from mulligan.features import FEATURES
from tests.support.imported_modules import Modules, names_in, nodes, tree

ROOT = Path(__file__).parents[2]
LINKED = ("workflows", "activities", "tools")
"""Folders of the checkout that the package takes in: `workflows/turn.py` is the module `mulligan.workflows.turn`."""
LINKS = {f"mulligan/{room}": room for room in LINKED}
FACADES = {"mulligan", "mulligan.events", "mulligan.feature", "mulligan.providers"}
"""Modules that only hand on what users import. An import from one of them counts as one from where the name is defined."""
DOORS = {"mulligan.cli", "mulligan.testing", "mulligan.__main__", *FACADES}
LAYERS = [
    {"mulligan.schema"},
    {"ground floor"},
    {"mulligan.adopt"},
    {"mulligan.wire"},
    {"mulligan.live"},
    {"mulligan.observe", "mulligan.client", "mulligan.devserver"},
    {"mulligan.run_view"},
    {"mulligan.trace_view"},
    {"mulligan.tools"},
    {"mulligan.activities"},
    {"mulligan.workflows"},
    {"mulligan.ended_runs", "mulligan.context_view"},
    {"mulligan.worker", "mulligan.serve"},
    {"mulligan.supervisor", "mulligan.doctor"},
    DOORS,
]
"""The rooms from the bottom to the top: each may import from itself, its neighbours and what is below it."""
GROUND_FLOOR = {
    "durations",
    "endpoint",
    "extras",
    "feature",
    "foreign_results",
    "model_name",
    "once",
    "policy",
    "prices",
    "provider_plugin",
    "providers",
}
"""Files of mulligan/ that define nothing that users import, beside those that do: several rooms need each of them."""
TOOLS_MAY_SHARE = {"mulligan.tools.workspace", "mulligan.tools.web_address"}
"""What confines the tools. Otherwise no tool imports another one."""
ONE_OF_A_ROW = (
    "mulligan/cli/",
    "mulligan/features/",
    "mulligan/worker/sdk_workarounds/",
    "workflows/agents/",
    "tools/",
)
"""Folders with one file a command, feature, workaround, agent or tool: these may be as short as they like."""
SEPARATE_PROGRAMS = {"mulligan.activities.mcp._child", "mulligan.activities.mcp.faults_by"}
"""Files that run in a process of their own, so they cannot be part of the file that names them."""
REGISTRIES = {"mulligan.activities.models.available_providers"}
"""The list of a row of like files, in the folder of that row: who adds a provider finds it there."""
MAX_FUNCTION_LINES = 50
"""Without the docstring."""
MIN_FILE_LINES = 40


def _modules() -> dict[str, Path]:
    """Every module of the product and its file; the files that `mulligan new` copies are not part of it."""
    modules = {}
    for path in sorted(ROOT.glob("mulligan/**/*.py")) + [
        p for room in LINKED for p in sorted((ROOT / room).rglob("*.py"))
    ]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] == "mulligan" and (parts[1] in LINKED or "new_project" in parts):
            continue
        parts = ("mulligan", *parts) if parts[0] in LINKED else parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


MODULES = _modules()
PARTS = Modules(ROOT, map(str, (path.relative_to(ROOT) for path in MODULES.values())), LINKS, FACADES)
FILES = sorted(MODULES.values())


def _files(pattern: str) -> list[Path]:
    found = sorted(ROOT.glob(pattern))
    assert found
    return found


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """The modules that a file may import, other libraries' too, as dotted names."""
    return {f"{module}.{name}".rstrip(".") for module, name in names_in(nodes(tree(path), lazy=lazy))} | {
        module for module, _ in names_in(nodes(tree(path), lazy=lazy))
    }


def _defining_module(module: str, name: str) -> str | None:
    """The module of the product that an import of (module, name) needs; None for other libraries."""
    found = PARTS.defining(module, name)
    return found if found in MODULES else None


@cache
def graph() -> dict[str, set[str]]:
    """Each module and those that it imports, lazy imports included. What the facades hand on lazily is not in it."""
    return {
        module: {target for names in names_in(nodes(tree(path))) if (target := _defining_module(*names))} - {module}
        for module, path in MODULES.items()
    }


def _room(module: str) -> str:
    if module in DOORS:
        return module
    path = MODULES[module]
    is_ground_floor = path.parent == ROOT / "mulligan" and path.name != "__init__.py"
    is_ground_floor |= path.parent == ROOT / "mulligan/features"
    return "ground floor" if is_ground_floor else ".".join(module.split(".")[:2])


def _layer(module: str) -> int:
    return next(number for number, rooms in enumerate(LAYERS) if _room(module) in rooms)


def test_no_module_imports_from_a_room_above() -> None:
    """Lazy imports count. Only the facades hand on from above."""
    assert [
        (module, target)
        for module in MODULES.keys() - FACADES
        for target in graph()[module]
        if _layer(target) > _layer(module)
    ] == []


def test_no_modules_import_each_other() -> None:
    """Modules that nothing imports, or that import nothing, are removed until none is left: what remains is a cycle."""
    remaining = {module: set(targets) for module, targets in graph().items()}
    while removable := [
        module
        for module, targets in remaining.items()
        if not targets or not any(module in others for others in remaining.values())
    ]:
        for module in removable:
            del remaining[module]
        remaining = {module: targets & remaining.keys() for module, targets in remaining.items()}
    assert remaining == {}


def test_rooms_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    rooms = {(_room(module), _room(target)) for module, targets in graph().items() for target in targets}
    assert {(one, other) for one, other in rooms if one != other and (other, one) in rooms} == set()


def test_tools_do_not_import_each_other() -> None:
    """What tools share is below them: what confines them."""
    assert [
        (_id(path), name)
        for path in _files("tools/*.py")
        if path.name != "__init__.py"
        for name in imports(path)
        if name.startswith("mulligan.tools.") and not name.startswith(tuple(TOOLS_MAY_SHARE))
    ] == []


@pytest.mark.parametrize("path", _files("workflows/**/*.py"), ids=_id)
def test_workflows_are_deterministic(path: Path) -> None:
    """No clock, random, I/O or logging but the workflow's; nothing caught broadly; activities are called by name."""
    forbidden = {"time", "random", "logging", "os", "socket", "threading", "subprocess", "uuid", "datetime.datetime"}
    if "agents" not in path.parts:
        assert not {name for name in imports(path) if name in forbidden or name.startswith("mulligan.activities")}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None
            assert not {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} & {
                "Exception",
                "BaseException",
            }


def test_importing_the_package_loads_no_provider() -> None:
    """`import mulligan` loads no provider's SDK and no workflow code."""
    assert [
        (_id(path), name)
        for path in _files("mulligan/*.py")
        for name in imports(path, lazy=False)
        if name.split(".")[0] == "openai" or name.startswith("temporalio.workflow")
    ] == []


def test_the_command_needs_no_library_that_is_slow_to_import() -> None:
    """`mulligan --help` comes without Temporal's client and pydantic: they take several times as long as all else."""
    code = "import mulligan.cli.app, sys; print(*{'openai', 'pydantic', 'temporalio'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []


def test_a_name_of_the_package_is_not_a_module_of_that_name() -> None:
    """`tool`, `score` and `adopt` are functions also where the files that define them were imported before."""
    code = "import mulligan.tool, mulligan.score, mulligan.adopt.terms, mulligan; print(*map(callable, (%s)))"
    names = "mulligan.tool, mulligan.score, mulligan.adopt"
    shown = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["True"] * 3


COMES_WITH = {
    "anyio": "mcp",
    "botocore": "boto3",
    "jsonschema_specifications": "jsonschema",
    "markupsafe": "jinja2",
    "mcp_types": "mcp",
    "nexusrpc": "temporalio",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "typing_extensions": "pydantic",
}
"""Packages that are part of how one uses another one: who has the one has the other, in the version that belongs to it."""
OF_USERS = {"pytest", "agents", "pydantic_ai"}
"""What only `mulligan.testing`, and `mulligan.adopt`, import: who uses that has it."""


def test_what_is_imported_is_declared() -> None:
    """Otherwise an install loses it as soon as the package that happens to bring it does without it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[\[>=<]", text)[0] for text in requirements}
    distributions = packages_distributions()
    undeclared = set()
    for module in {name for path in _modules().values() for name in _top_level_imports(path)} - OF_USERS:
        owners = {name.lower().replace("_", "-") for name in distributions.get(COMES_WITH.get(module, module), ())}
        if not owners & declared:
            undeclared.add(module)
    assert undeclared == set()


def _top_level_imports(path: Path) -> set[str]:
    """The packages of others that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"mulligan"}


PRIVATE_OF_SDK = re.compile(
    r"temporalio(?:\.\w+)*\._[a-z]|temporalio\.bridge|\b(?:activity|workflow)\._|import _[A-Z]\w*|__temporal_(?:workflow|activity)_def"
    r"|\b(?:worker|handle|exception)\._[a-z]|\.activate = "
)
WORKAROUNDS = "mulligan/worker/sdk_workarounds/"


def test_only_the_workarounds_use_private_parts_of_temporalio() -> None:
    """What a release of the SDK may change stands in one folder. Tests may use such parts, to break them."""
    assert [
        (_id(path), match[0])
        for path in [*FILES, ROOT / "worker.py", *_files("examples/**/*.py"), *_files("benchmarks/*.py")]
        if not _id(path).startswith(WORKAROUNDS)
        for match in PRIVATE_OF_SDK.finditer(path.read_text())
    ] == []


@pytest.mark.parametrize("path", _files(f"{WORKAROUNDS}*.py"), ids=_id)
def test_a_workaround_names_its_upstream_issue_and_its_test(path: Path) -> None:
    """The versions that need it, an issue or that none is known, and a test that fails once the SDK does without it."""
    if path.stem in ("__init__", "workaround_runner"):
        return
    docstring = " ".join((ast.get_docstring(tree(path)) or "").split())
    assert "temporalio 1.35.0" in docstring
    assert re.search(r"temporalio/[a-z-]+ issue \d+|no (?:upstream )?issue known", docstring)
    tests = ROOT / "tests/unit/test_sdk_faults.py", ROOT / "tests/live/test_sdk_faults_on_a_server.py"
    assert any(path.name in test.read_text() for test in tests)


OUTCOMES = ("raises", "warns", "expect", "fail", "replay_workflow")
"""Calls that assert something: of pytest, of playwright, and of temporalio, whose replay raises."""
CHECKS = re.compile(r"_?(check|expect|assert|validate|all_complete|send_broken|read_changed|runs_are)")
"""Helpers of tests that assert for them."""


@dataclass
class Function:
    """A function of the tests: where it is, and what it says. `calls`: the names of what it calls."""

    place: str
    name: str
    has_assert: bool = False
    calls: set[str] = field(default_factory=set)

    def asserts(self, checks: set[str]) -> bool:
        return self.has_assert or not self.calls.isdisjoint(checks)


def _functions(path: Path) -> list[Function]:
    """The functions of a file. What stands in one counts for those around it too. Each node is visited once."""
    found: list[Function] = []
    waiting: list[tuple[ast.AST, tuple[Function, ...]]] = [(ast.parse(path.read_text()), ())]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(Function(f"{_id(path)}:{node.lineno}", node.name))
            around = (*around, found[-1])
        elif isinstance(node, ast.Assert):
            for function in around:
                function.has_assert = True
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for function in around:
                function.calls.add(called)
        waiting.extend((child, around) for child in ast.iter_child_nodes(node))
    return found


def test_each_test_asserts_an_outcome() -> None:
    """By itself or by a helper: a test that only hangs or raises does not say what was expected."""
    functions = [each for path in sorted((ROOT / "tests").rglob("*.py")) for each in _functions(path)]
    helpers = [each for each in functions if CHECKS.match(each.name)]
    checks = set(OUTCOMES)
    while added := {each.name for each in helpers if each.asserts(checks)} - checks:
        checks |= added
    tests = [each for each in functions if each.name.startswith("test_") and "/test_" in each.place]
    assert len(tests) > 2_000
    assert [f"{each.place} {each.name}" for each in tests if not each.asserts(checks)] == []


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "helpers", "manager", "base", "common", "misc"}
    assert [_id(path) for path in [*FILES, ROOT / "worker.py"] if path.stem in drawers] == []


def test_no_function_is_longer_than_a_screen() -> None:
    """ruff holds complexity, parameters and statements; this holds the lines, without the docstring's."""
    assert [
        (_id(path), node.name, lines)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (lines := _length(node)) > MAX_FUNCTION_LINES
    ] == []


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function, without its docstring."""
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    of_docstring = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
    return (node.end_lineno or 0) - node.lineno + 1 - of_docstring


def test_no_file_is_a_crumb() -> None:
    """A short file that one other file uses belongs in that file."""
    importers: dict[str, set[str]] = {}
    for module, targets in graph().items():
        for target in targets:
            importers.setdefault(target, set()).add(module)
    crumbs = {
        _id(path): importers[module]
        for module, path in MODULES.items()
        if path.name != "__init__.py"
        and len(path.read_text().splitlines()) < MIN_FILE_LINES
        and len(importers.get(module, ())) == 1
        and module not in SEPARATE_PROGRAMS | REGISTRIES
        and not (_id(path).startswith(ONE_OF_A_ROW) and not path.name.startswith("_"))
    }
    assert crumbs == {}


def test_no_two_files_have_the_same_name() -> None:
    """But for `__init__.py`, the commands and the facades, whose files are named as they are, and the parts of a feature."""
    facades = {MODULES[name] for name in FACADES}
    names = Counter(path.stem for path in FILES if path.parent != ROOT / "mulligan/cli" and path not in facades)
    assert {name for name, count in names.items() if count > 1} - {*FEATURES} == {"__init__"}


def feature_of(module: str) -> str | None:
    """The feature whose part a module is: its file, or a file in its folder, has the name."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in FEATURES else None


def test_nothing_but_a_feature_imports_its_parts() -> None:
    """Only the package's exports do: what else needs a feature finds it by its name, in a room (`parts`)."""
    assert [
        (module, target)
        for module, targets in graph().items()
        for target in targets
        if (feature := feature_of(target)) and feature_of(module) != feature and module not in FACADES
    ] == []


def test_the_page_says_in_which_rooms_a_feature_has_a_part() -> None:
    rooms = ["workflows", "activities"]
    rooms += sorted(_id(each) for each in (ROOT / "mulligan").iterdir() if each.is_dir() and not each.is_symlink())
    has = {
        name: [f"`{room}`" for room in rooms if (ROOT / room / name).is_dir() or (ROOT / room / f"{name}.py").is_file()]
        for name in FEATURES
    }
    page = (ROOT / "docs/features.md").read_text()
    rows = dict(
        re.findall(r"^\| `(\w+)` \| ((?:`(?:workflows|activities|mulligan)[\w/]*`(?:, )?)+) \|$", page, re.MULTILINE)
    )
    assert rows == {name: ", ".join(rooms) for name, rooms in has.items()}


def test_the_ground_floor_has_what_users_import() -> None:
    """A file of mulligan/ defines a name of `mulligan.__all__`, or is one of the few that several rooms need."""
    exported = {_defining_module("mulligan", name) for name in mulligan.__all__}
    own_files = {path.stem for path in (ROOT / "mulligan").glob("*.py")} - {"__init__", "__main__"}
    assert own_files == {name for name in own_files if f"mulligan.{name}" in exported} | GROUND_FLOOR


def test_each_exported_name_can_be_imported() -> None:
    """Also those that are imported at their first use."""
    assert [name for name in mulligan.__all__ if getattr(mulligan, name) is None] == []


ALLOWED_IMPORT = re.compile(r"(?:from|import) mulligan\.(?!tools\b|testing\b|providers\b|feature\b)")


def test_readers_of_docs_and_examples_import_five_modules() -> None:
    """`mulligan`, `mulligan.tools`, `mulligan.testing`, `mulligan.providers`, `mulligan.feature`, and nothing deeper."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    pages += [*(ROOT / "deploy/example").rglob("*.py"), *(ROOT / "mulligan/cli/new_project").glob("*.py")]
    assert len(pages) > 20
    assert [_id(path) for path in pages if ALLOWED_IMPORT.search(path.read_text())] == []


BARE = re.compile(r"^\s*(?:>>> )?(?:from|import) (?:workflows|activities|tools|worker)\b", re.MULTILINE)
"""An import by the name of a folder of the checkout: it makes a second copy of the module beside that of `mulligan.…`."""


@pytest.mark.parametrize("suffix", ["py", "md"])
def test_no_file_imports_by_a_bare_name(suffix: str) -> None:
    """Whoever installs Mulligan has `mulligan` alone, and may have folders of these names of their own."""
    tracked = subprocess.run(["git", "ls-files", f"*.{suffix}"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [ROOT / name for name in tracked.stdout.split()]
    assert len(files) > 20
    assert not [path for path in files if path.is_file() and BARE.search(path.read_text())]


def test_the_package_takes_in_the_folders_beside_it() -> None:
    """The same files under both names, and none twice."""
    for room in LINKED:
        link = ROOT / "mulligan" / room
        assert link.is_symlink()
        assert link.readlink() == Path("..") / room


def test_no_root_module_shadows_the_library() -> None:
    """A root module named like one of the standard library's would be imported in its place."""
    roots = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not roots & sys.stdlib_module_names
