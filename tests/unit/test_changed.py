"""What `make test-changed` selects, on small checkouts: what reaches a file by imports, what names it, and what is gone."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.changed import changed_files, command_of, select, told
from tests.support import import_graph
from tests.support.import_graph import ImportGraph
from tests.support.imported_modules import NoCheckoutError

FILES = {
    ".gitignore": ".pytest_cache/",
    "mulligan/__init__.py": "import lazy_loader",
    "mulligan/__init__.pyi": "from .agent import Agent as Agent\nfrom .tool import tool as tool",
    "mulligan/agent.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mulligan.wire.only_types import Type",
    "mulligan/tool.py": "",
    "mulligan/__main__.py": "from mulligan.cli.app import main",
    "mulligan/features/__init__.py": 'OWN = (FeatureParts("undo", "words"), FeatureParts("rules", "words"))',
    "mulligan/wire/__init__.py": "",
    "mulligan/wire/only_types.py": "",
    "mulligan/wire/undo.py": "",
    "mulligan/wire/rules/rules.py": "",
    "mulligan/cli/__init__.py": "def serve():\n    import mulligan.served",
    "mulligan/served.py": "",
    "mulligan/cli/app.py": "from mulligan.features import OWN\nNAMES = [each.words for each in OWN]",
    "mulligan/adopt/adopt.py": 'def adopt(name):\n    return import_module(f"mulligan.adopt.{name}")',
    "mulligan/adopt/of_one.py": "",
    "mulligan/prices.py": 'files("mulligan").joinpath("prices.json")',
    "mulligan/prices.json": "{}",
    "workflows/__init__.py": "",
    "workflows/loop.py": "from .waits import Wait",
    "workflows/waits.py": "",
    "docs/tools.md": "```python\nfrom mulligan import tool\n```",
    "docs/other.md": "",
    "tests/__init__.py": "",
    "tests/conftest.py": (
        "import pytest\nfrom tests.support.order import in_order\nin_order()\n"
        "def pytest_configure(config):\n    import tests.support.started\n"
        "@pytest.fixture\ndef server(port):\n    from tests.support.server import Server\n"
        '@pytest.fixture(name="port")\ndef _port():\n    import tests.support.port\n'
        "@pytest.fixture(autouse=True)\ndef always():\n    import tests.support.always\n"
    ),
    "tests/support/__init__.py": "",
    "tests/support/order.py": 'FIRST = ("tests/unit/test_loop.py",)',
    "tests/support/started.py": "",
    "tests/support/server.py": "",
    "tests/support/port.py": "",
    "tests/support/always.py": "",
    "tests/support/agents.py": "import mulligan\nagent = mulligan.Agent()",
    "tests/support/lab_fixtures.py": "import pytest\n@pytest.fixture\ndef lab(server): ...",
    "tests/live/conftest.py": "from tests.support.lab_fixtures import lab",
    "tests/live/test_lab.py": "def test_it(lab): ...",
    "tests/live/test_none.py": "def test_it(): ...",
    "tests/unit/test_loop.py": "def test_it():\n    from mulligan.workflows.loop import run",
    "tests/unit/test_served.py": "def test_it(server): ...",
    "tests/unit/test_named.py": 'def test_it():\n    load(["tests.support.agents"])',
    "tests/unit/test_command.py": 'def test_it():\n    run(sys.executable, "-m", "mulligan")',
    "tests/unit/test_patch.py": 'def test_it(monkeypatch):\n    monkeypatch.setattr("mulligan.tool.tool", None)',
    "tests/unit/test_adopt.py": "from mulligan.adopt.adopt import adopt",
    "tests/unit/test_prices.py": "from mulligan.prices import prices",
    "tests/unit/test_page.py": (
        'from pathlib import Path\nROOT = Path(__file__).parents[2]\nPAGE = ROOT / "docs" / "tools.md"\n'
        'CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))'
    ),
    "tests/unit/cases/one.json": "",
    "tests/unit/cases/one.txt": "",
    "tests/house/test_house.py": (
        'from pathlib import Path\nALL = sorted(Path(__file__).parents[2].rglob("*.md"))\ndef test_it(): ...'
    ),
    "tests/unit/test_rooms.py": (
        "from pathlib import Path\nROOT = Path(__file__).parents[2]\ndef test_it():\n"
        '    for room in ("docs", "deploy"):\n        sorted((ROOT / room).rglob("*.yaml"))\n    "a.b".split(".")'
    ),
    "deploy/rules.yaml": "",
    "benchmarks/rules.yaml": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with these files, of which one folder is linked."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "mulligan/workflows").symlink_to("../workflows")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], cwd=root, check=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "-qm", "x", "--no-verify")


def reaching(root: Path, file: str) -> set[str]:
    """The names of the tests that reach a file."""
    graph = ImportGraph(root)
    return {Path(test).stem.removeprefix("test_") for test in graph.files_of_tests if file in graph.reached(test)}


EVERY = {"loop", "served", "named", "command", "patch", "adopt", "prices", "page", "rooms", "house", "lab", "none"}


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("workflows/waits.py", {"loop"}),  # by a link, an import in a function, and a relative one
        ("workflows/__init__.py", {"loop"}),
        ("mulligan/agent.py", {"named"}),  # by the name that the package hands on
        ("mulligan/wire/only_types.py", set()),
        ("mulligan/cli/__init__.py", {"command"}),  # which is not used, only imported: none of its functions is called
        ("mulligan/served.py", set()),
        ("mulligan/wire/undo.py", {"command"}),  # the part of a feature
        ("mulligan/wire/rules/rules.py", {"command"}),
        ("mulligan/adopt/of_one.py", {"adopt"}),  # by a computed name
        ("mulligan/tool.py", {"patch", "page", "house"}),  # by a text, and by a page that is named
        ("mulligan/prices.json", {"prices"}),
        ("docs/tools.md", {"page", "house"}),
        ("docs/other.md", {"house"}),
        ("deploy/rules.yaml", {"rooms"}),
        ("benchmarks/rules.yaml", set()),  # a dot that separates words names no folder
        ("tests/unit/cases/one.json", {"page"}),
        ("tests/unit/cases/one.txt", {"page"}),
        ("tests/support/agents.py", {"named"}),
        ("tests/support/server.py", {"served", "lab"}),  # by a fixture, and by a fixture of a fixture
        ("tests/support/port.py", {"served", "lab"}),
        ("tests/support/always.py", EVERY),
        ("tests/support/order.py", EVERY),
        ("tests/conftest.py", EVERY),
        ("tests/support/started.py", set()),
        ("tests/support/lab_fixtures.py", {"lab"}),
        ("tests/unit/test_loop.py", {"loop"}),  # its name in the order of tests is no use of it
    ],
)
def test_a_file_is_reached_by_the_tests_that_import_or_name_it(root: Path, file: str, tests: set[str]) -> None:
    assert reaching(root, file) == tests


def chosen(root: Path) -> tuple[set[str], list[str]]:
    """The tests that are selected, without the house, and what is said."""
    changed, gone = changed_files(root)
    selection = select(ImportGraph(root, gone=gone), changed, core=["tests/unit/test_loop.py"])
    return {Path(name).stem for name in selection.tests} - {"test_house"}, told(selection)


def test_on_a_clean_tree_the_core_alone_is_run(root: Path) -> None:
    assert chosen(root) == ({"test_loop"}, ["Nothing differs from HEAD: the core alone, 1 file of tests."])


def test_who_imports_a_renamed_a_deleted_or_a_staged_file_is_selected(root: Path) -> None:
    """Under both names of the renamed one: what still imports the old one fails, and that is the reason to run it."""
    git(root, "mv", "mulligan/prices.py", "mulligan/costs.py")
    (root / "tests/unit/test_prices.py").rename(root / "tests/unit/test_costs.py")
    (root / "tests/unit/test_costs.py").write_text("from mulligan.costs import prices")
    (root / "tests/support/agents.py").unlink()
    (root / "mulligan/adopt/of_one.py").write_text("one = 1")
    git(root, "add", "mulligan/adopt")
    tests, _ = chosen(root)
    assert tests == {"test_loop", "test_costs", "test_named", "test_adopt"}
    git(root, "mv", "mulligan/costs.py", "mulligan/costs_of_models.py")
    assert "test_costs" in chosen(root)[0]


def test_untracked_files_count_and_ignored_ones_do_not(root: Path) -> None:
    (root / ".gitignore").write_text("made.py\n")
    commit(root)
    (root / "tests/unit/a b").mkdir()
    (root / "tests/unit/a b/test_ünd.py").write_text("")
    (root / "mulligan/tool").mkdir()
    (root / "mulligan/tool/made.py").write_text("")
    tests, lines = chosen(root)
    assert tests == {"test_loop", "test_ünd"}
    assert lines[0] == "1 file differs from HEAD: tests/unit/a b/test_ünd.py"


def test_what_other_floors_reach_is_said_with_the_command_that_runs_it(root: Path) -> None:
    """It is not run. A file that no test reaches is named: the house reads all files, which tries nothing."""
    (root / "tests/support/lab_fixtures.py").write_text("import pytest\n@pytest.fixture\ndef lab(): ...")
    (root / "docs/other.md").write_text("new")
    (root / "tests/house/test_house.py").write_text(FILES["tests/house/test_house.py"] + "\n")
    tests, lines = chosen(root)
    assert tests == {"test_loop"}
    assert lines[1:] == [
        "1 of 10 files of `make test` reach them; with the core 2 are run.",
        "Not run, but reach them as well: 1 file of `make test-live` (uv run pytest -n auto tests/live/test_lab.py)",
        "No test but those of tests/house reaches docs/other.md.",
    ]


@pytest.mark.parametrize("file", ["tests/conftest.py", "pyproject.toml"])
def test_if_most_files_are_reached_all_are_run(root: Path, file: str) -> None:
    """So too if what decides how tests are run has changed."""
    (root / file).write_text("\n")
    changed, gone = changed_files(root)
    selection = select(ImportGraph(root, gone=gone), changed)
    assert selection.is_all
    assert command_of(selection, ["-x"])[-5:] == ["tests/unit", "tests/house", "tests/replay", "tests/promise", "-x"]
    assert "10 of 10 files of `make test` reach them: all are run." in told(selection)


def reached_by_all(graph: ImportGraph) -> dict[str, set[str]]:
    return {test: graph.reached(test) for test in graph.files_of_tests}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("workflows/loop.py", ""),  # a file alone
        ("tests/unit/test_loop.py", "def test_it(server): ..."),  # its fixtures
        ("tests/unit/test_page.py", 'PAGE = "docs/other.md"'),  # what it names
        ("tests/support/lab_fixtures.py", "import pytest\n@pytest.fixture(autouse=True)\ndef lab(server): ..."),
        ("mulligan/__init__.pyi", "from .tool import Agent as Agent\nfrom .tool import tool as tool"),
        ("mulligan/features/__init__.py", 'FEATURES = ("undo",)\ndef parts(room): ...'),
        ("tests/support/served_by_name.py", ""),  # a new file, which a text may have named before
        ("docs/tools.md", "```python\nfrom mulligan import Agent\n```"),
    ],
)
def test_what_is_kept_of_an_earlier_run_says_the_same_as_reading_anew(root: Path, file: str, text: str) -> None:
    """Whatever has changed meanwhile."""
    kept = root / ".pytest_cache/graph.json"
    before = ImportGraph(root, kept=kept)
    first = reached_by_all(before)
    before.keep()
    assert reached_by_all(ImportGraph(root, kept=kept)) == first
    (root / file).write_text(text)
    assert reached_by_all(ImportGraph(root, kept=kept)) == reached_by_all(ImportGraph(root))
    kept.write_text("{")
    assert reached_by_all(ImportGraph(root, kept=kept)) == reached_by_all(ImportGraph(root))


def test_files_that_have_not_changed_are_not_parsed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = root / ".pytest_cache/graph.json"
    graph = ImportGraph(root, kept=kept)
    reached_by_all(graph)
    graph.keep()
    (root / "workflows/waits.py").write_text("import mulligan.tool")
    parsed: set[str] = set()

    def noted(path: Path) -> ast.Module:
        parsed.add(str(path.relative_to(root)))
        return ast.parse(path.read_text())

    monkeypatch.setattr(import_graph, "tree", noted)
    assert "mulligan/tool.py" in reached_by_all(ImportGraph(root, kept=kept))["tests/unit/test_loop.py"]
    assert parsed == {"mulligan/features/__init__.py", "workflows/waits.py"}


def test_without_a_checkout_a_sentence_says_so(tmp_path: Path, root: Path) -> None:
    """Neither a folder without git's, nor one inside of another checkout, nor one without a commit has a HEAD of its own."""
    with pytest.raises(NoCheckoutError, match="is not a git checkout of its own"):
        changed_files(root / "tests")
    (root / ".git").rename(root / "git")
    with pytest.raises(NoCheckoutError, match="is not a git checkout with a commit"):
        changed_files(root)
    git(root, "init", "-q")
    with pytest.raises(NoCheckoutError, match="is not a git checkout with a commit"):
        changed_files(root)
