"""What each Python file of a checkout imports, read from its source: for the rules of the house and for `make test-changed`."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

LEAVES = (ast.Constant, ast.alias, ast.Pass, ast.expr_context, ast.operator, ast.cmpop)
"""Nodes without others in them, which are three quarters of all."""


class NoCheckoutError(Exception):
    """The folder is not a checkout of git; the text says so."""


def git(root: Path, *words: str) -> str:
    """What git prints of a checkout.

    Raises:
        NoCheckoutError: there is none, or no git.
    """
    try:
        ran = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoCheckoutError("git is not installed: what has changed is not known.") from None
    if ran.returncode:
        raise NoCheckoutError(f"{root} is not a git checkout with a commit: what has changed is not known.")
    return ran.stdout


def files_of(root: Path) -> list[str]:
    """The paths of a checkout's files and links, untracked ones included, ignored ones not."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted({name for name in listed if name and os.path.lexists(root / name)})


def links_of(root: Path, files: Iterable[str]) -> dict[str, str]:
    """The links to folders of the same checkout, and those folders: `mulligan/workflows` is `workflows`."""
    links = [name for name in files if (root / name).is_symlink() and (root / name).is_dir()]
    return {name: os.path.relpath((root / name).resolve(), root.resolve()) for name in links}


@cache
def tree(path: Path) -> ast.Module:
    """A file's source, parsed once."""
    return ast.parse(path.read_text())


def nodes(node: ast.AST, *, lazy: bool = True) -> list[ast.AST]:
    """All nodes below a node, each before those in it, without `if TYPE_CHECKING:` blocks; without `lazy`, those of functions
    neither."""
    found: list[ast.AST] = []
    waiting = [*ast.iter_child_nodes(node)][::-1]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test):
            continue
        if not lazy and isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        found.append(each)
        if not isinstance(each, LEAVES):
            waiting += [*ast.iter_child_nodes(each)][::-1]
    return found


def names_in(below: Iterable[ast.AST], package: str = "") -> Iterator[tuple[str, str]]:
    """What these nodes import, as (module, name); the name is empty for `import module`.

    `package`: that of the file, for relative imports.
    """
    for node in below:
        if isinstance(node, ast.Import):
            # `import mulligan` by itself is not a dependency: Python imports the package before each of its modules.
            yield from ((alias.name, "") for alias in node.names if alias.name != "mulligan")
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


class Modules:
    """The modules of a checkout. A file below a link has one path and one name: those in the package that takes it in."""

    def __init__(self, root: Path, files: Iterable[str], links: Mapping[str, str], facades: Iterable[str] = ()) -> None:
        self.root = root
        self.files = {self._name(name, links): name for name in files if name.endswith(".py")}
        self.names = {file: module for module, file in self.files.items()}
        self._facades = set(facades)
        self._given: dict[str, dict[str, tuple[str, str]]] = {}

    @staticmethod
    def _name(file: str, links: Mapping[str, str]) -> str:
        for link, folder in links.items():
            if file.startswith(f"{folder}/"):
                file = f"{link}/{file.removeprefix(f'{folder}/')}"
        return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    def package_of(self, file: str) -> str:
        """The package whose modules a file's relative imports name."""
        module = self.names.get(file, "")
        return module if file.endswith("__init__.py") else module.rpartition(".")[0]

    def handed_on(self, package: str) -> dict[str, tuple[str, str]]:
        """The names that an `__init__.py` or a facade hands on, lazily or not, and where it has them from."""
        if package not in self._given:
            self._given[package] = self._hands_on(package)
        return self._given[package]

    def _hands_on(self, package: str) -> dict[str, tuple[str, str]]:
        path = self.root / self.files[package]
        if path.name != "__init__.py" and package not in self._facades:
            return {}
        stub = path.with_suffix(".pyi")
        found = ast.walk(tree(stub if stub.exists() else path))
        imported = [node for node in found if isinstance(node, ast.ImportFrom) and node.module != package]
        return {
            alias.name: (f"{package}.{node.module}" if node.level else str(node.module), alias.name)
            for node in imported
            if node.module  # otherwise it is a module of the package
            for alias in node.names
        }

    def defining(self, module: str, name: str) -> str | None:
        """The module of the checkout that an import of (module, name) needs; None for other libraries."""
        if module not in self.files:
            return None
        if name in (handed_on := self.handed_on(module)):
            return self.defining(*handed_on[name])
        return f"{module}.{name}" if f"{module}.{name}" in self.files else module
