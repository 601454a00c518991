"""Run the tests that what has changed since the last commit may break: `make test-changed`. For developers, never for CI.

Selected are the files of `make test` that reach a changed file by imports or name it (tests/support/import_graph.py), and always
the core. What only other floors reach is said, with the command that runs them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.floors import FLOORS, floor_of, is_below
from tests.support.import_graph import ImportGraph
from tests.support.imported_modules import NoCheckoutError, files_of, git

ROOT = Path(__file__).parents[1]
CORE = (
    "tests/unit/test_continue_as_new.py",
    "tests/unit/test_conversation.py",
    "tests/unit/test_durable_agent.py",
    "tests/unit/test_feedback.py",
    "tests/unit/test_legal_calls.py",
    "tests/unit/test_lost_calls.py",
    "tests/unit/test_parsed_arguments.py",
    "tests/unit/test_people.py",
    "tests/unit/test_policy.py",
    "tests/unit/test_prepare_call.py",
    "tests/unit/test_repairs.py",
    "tests/unit/test_repeats.py",
    "tests/promise/test_durable_agent.py",
    "tests/promise/test_people.py",
    "tests/promise/test_recovery.py",
)
"""The loop, the decisions on a model's mistakes, the conversation and people: run whatever has changed."""
ALL_FROM = 0.7
"""If more of the files than this are selected, all are run: a later change of the same hour selects no other ones."""
FOR_ALL = ("pyproject.toml", "uv.lock")
"""Files that no test imports and that decide how each one runs."""
ORDER_ONLY = "tests/durations.json"
"""Read by the order of all tests: it changes no outcome."""
MOST_NAMES = 6


@dataclass
class Selection:
    """What has changed and which tests are run for it."""

    changed: list[str]
    tests: list[str] = field(default_factory=list)
    """Of `make test`, with the core; empty if all are run."""
    is_all: bool = False
    reached: int = 0
    """How many of the tests reach a changed file."""
    of_all: int = 0
    elsewhere: dict[str, list[str]] = field(default_factory=dict)
    """The files of other floors that reach what has changed, by target."""
    unreached: list[str] = field(default_factory=list)
    """Changed files that no test reaches but those of the house."""


def changed_files(root: Path) -> tuple[set[str], set[str]]:
    """The files that differ from HEAD, and those of them that are gone. Of a renamed one, both paths.

    Raises:
        NoCheckoutError: the folder is no checkout of git, or has no commit.
    """
    git(root, "rev-parse", "--verify", "HEAD")
    top = Path(git(root, "rev-parse", "--show-toplevel").removesuffix("\n"))
    if top.resolve() != root.resolve():
        raise NoCheckoutError(f"{root} is not a git checkout of its own: what has changed is not known.")
    # Without the search for renames each path is on a line of its own: one that is gone, one that is new.
    lines = git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames").split("\0")
    changed = {line[3:] for line in lines if line}
    return changed, changed - {*files_of(root)}


def select(graph: ImportGraph, changed: Iterable[str], core: Sequence[str] = CORE) -> Selection:
    """The tests for some changed files, by what each test reaches."""
    selection = Selection(sorted(changed))
    reached = {test: graph.reached(test) for test in graph.files_of_tests}
    present = {test for test in reached if (graph.root / test).is_file()}
    deciding = {*selection.changed} - {ORDER_ONLY}
    for_it = {test for test in present if not reached[test].isdisjoint(deciding)}
    ours = {test for test in present if floor_of(test) == "test"}
    # Whoever changes what decides how tests are run has changed each of them.
    house = {test for test in ours if _is_of_the_house(test)}
    found = ours if not {*FOR_ALL}.isdisjoint(selection.changed) else for_it & ours | (house if deciding else set())
    selection.reached, selection.of_all = len(found), len(ours)
    selection.is_all = len(found) > ALL_FROM * len(ours)
    selection.tests = [] if selection.is_all else sorted(found | {*core} & present)
    for name in [*FLOORS][1:]:
        if others := sorted(test for test in for_it if floor_of(test) == name):
            selection.elsewhere[name] = others
    known = set().union(*({test} if _is_of_the_house(test) else files for test, files in reached.items()))
    selection.unreached = [name for name in selection.changed if name not in known | {*FOR_ALL}]
    return selection


def _is_of_the_house(test: str) -> bool:
    """Whether it reads all files: that says nothing of what it tries."""
    return is_below(test, ("tests/house",))


def told(selection: Selection) -> list[str]:
    """What has been selected, and why, in as many lines as there are answers."""
    if not selection.changed:
        return [f"Nothing differs from HEAD: the core alone, {counted(len(selection.tests), 'file')} of tests."]
    lines = [
        f"{counted(len(selection.changed), 'file')} {'differs' if len(selection.changed) == 1 else 'differ'} from HEAD: {some(selection.changed)}"
    ]
    reach = f"{selection.reached} of {selection.of_all} files of `make test` reach them"
    lines.append(
        f"{reach}: all are run." if selection.is_all else f"{reach}; with the core {len(selection.tests)} are run."
    )
    if selection.elsewhere:
        each = (
            f"{counted(len(files), 'file')} of {command_for(name, files)}"
            for name, files in selection.elsewhere.items()
        )
        lines.append(f"Not run, but reach them as well: {'; '.join(each)}")
    if selection.unreached:
        lines.append(f"No test but those of tests/house reaches {some(selection.unreached)}.")
    return lines


def command_for(target: str, files: Sequence[str]) -> str:
    """The target that runs some files of another floor, and if they are few, what runs them alone."""
    groups = "--group system --group docs " if target == "test-system" else ""
    alone = f" (uv run {groups}pytest -n auto {' '.join(files)})" if len(files) <= MOST_NAMES else ""
    return f"`make {target}`{alone}"


def some(names: Sequence[str]) -> str:
    """The names, or the first ones."""
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def counted(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def command_of(selection: Selection, options: Sequence[str]) -> list[str]:
    """The command of `make test`, for the selected files."""
    processes = (
        [] if {"-n", "--numprocesses"} & {each.partition("=")[0] for each in options} else ["--numprocesses", "auto"]
    )
    return [
        *(sys.executable, "-m", "pytest", "-q", *processes, "--durations", "10", "--durations-min", "1"),
        *("--inline-snapshot", "disable", *(selection.tests or FLOORS["test"]), *options),
    ]


def main(options: Sequence[str]) -> int:
    """Returns the exit code of pytest, or 2 where it is not known what has changed."""
    try:
        changed, gone = changed_files(ROOT)
        graph = ImportGraph(ROOT, gone=gone, kept=ROOT / ".pytest_cache" / "import_graph.json")
        selection = select(graph, changed)
        graph.keep()
    except NoCheckoutError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*told(selection), sep="\n", flush=True)
    return subprocess.run(command_of(selection, options), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
