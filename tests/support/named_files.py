"""Which files of a checkout a Python file names: as paths, with their folder, by patterns, or as modules in texts."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath as Path

IMPORT = re.compile(r"^\s*(?:>>> )?(?:from ([\w.]+) import \(?([\w, ]+)|import ([\w.]+))", re.MULTILINE)
IS_TEST = re.compile(r"(^|/)test_\w+\.py$")
FOLDER = re.compile(r"\.?\w[\w./-]*")
"""Not a dot alone, which separates words: below the checkout itself is everything."""
DOTTED = re.compile(r"\b[a-z]\w*(?:\.\w+)+")


class Checkout:
    """The paths of a checkout's files, and the folders that have them."""

    def __init__(self, files: Iterable[str], links: Mapping[str, str]) -> None:
        self.files = {name for name in files if name not in links}
        self.links = links
        self._below: defaultdict[str, set[str]] = defaultdict(set)
        self.by_name: defaultdict[str, set[str]] = defaultdict(set)
        for name in self.files:
            self.by_name[name.rpartition("/")[2]].add(name)
            for folder in Path(name).parents:
                self._below[str(folder)].add(name)

    def real(self, path: str) -> str:
        """The path of a file or folder that is named by a link."""
        for link, folder in self.links.items():
            if path == link or path.startswith(f"{link}/"):
                return f"{folder}{path.removeprefix(link)}"
        return path

    def below(self, folder: str) -> set[str]:
        """All files below a folder; none if there is no such folder."""
        return self._below.get(self.real(folder), set())

    def is_package(self, folder: str) -> bool:
        """Whether it has modules that are imported by its name."""
        return f"{folder}/__init__.py" in self.files

    def matching(self, folder: str, pattern: str, *, deep: bool) -> set[str]:
        """The files below a folder that `glob`, or `rglob` if `deep`, finds."""
        folder = self.real(folder)
        start = "" if folder == "." else f"{folder}/"
        found = set()
        for name in self.below(folder):
            rest = name.removeprefix(start)
            wide = deep or "**" in pattern
            last = pattern.rpartition("/")[2]
            if fnmatchcase(rest.rpartition("/")[2] if wide else rest, last if wide else pattern) and (
                wide or rest.count("/") == pattern.count("/")
            ):
                found.add(name)
        return found


def texts_of(below: Iterable[ast.AST]) -> Iterator[str]:
    """The constant texts, and the beginnings of texts that are put together, without docstrings."""
    seen = list(below)
    docstrings = {id(node.value) for node in seen if isinstance(node, ast.Expr)}
    for node in seen:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def imports_in(text: str) -> Iterator[tuple[str, str]]:
    """The modules that code in a text imports, as (module, name); also such as are none of this checkout."""
    for module, names, plain in IMPORT.findall(text):
        yield from ((module or plain, name.split()[0]) for name in names.split(",") if name.strip())
        yield (module or plain, "")


def modules_in(text: str) -> Iterator[tuple[str, str]]:
    """The modules that a text names, in the same form."""
    yield from ((name, "") for name in DOTTED.findall(text))


class NamedFiles:
    """What one file of tests names. `names`: paths that other modules define, as `ROOT`."""

    def __init__(self, checkout: Checkout, file: str, below: list[ast.AST], imported: Mapping[str, str]) -> None:
        self._checkout = checkout
        self._file = file
        self._folder = str(Path(file).parent)
        self._nodes = below
        self._texts = [*texts_of(below)]
        self._paths = {"__file__": file, **imported}
        for node in below:
            self._assign(node)

    def _assign(self, node: ast.AST) -> None:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        for target in targets:
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for each, given in pairs:
                if isinstance(each, ast.Name) and given is not None and (path := self._path(given)) is not None:
                    self._paths[each.id] = path

    @property
    def paths(self) -> Mapping[str, str]:
        """The paths that the file gives names to."""
        return self._paths

    def _path(self, node: ast.expr) -> str | None:
        """The path of the checkout that an expression of `pathlib` makes; None if it is none or is not known."""
        match node:
            case ast.Name(id=name):
                return self._paths.get(name)
            case ast.Call(func=ast.Name(id="Path" | "str"), args=[inner]):
                return self._path(inner)
            case ast.Call(func=ast.Attribute(attr="absolute" | "resolve", value=inner)):
                return self._path(inner)
            case ast.Attribute(attr="parent", value=inner) if (path := self._path(inner)) is not None:
                return str(Path(path).parent)
            case ast.Subscript(value=ast.Attribute(attr="parents", value=inner), slice=ast.Constant(value=int(number))):
                path = self._path(inner)
                parents = Path(path).parents if path is not None else ()
                return str(parents[number]) if number < len(parents) else None
            case ast.Call(func=ast.Attribute(attr="with_name", value=inner), args=[ast.Constant(value=str(name))]):
                return str(Path(path).with_name(name)) if (path := self._path(inner)) is not None else None
            case ast.BinOp(op=ast.Div(), left=left, right=ast.Constant(value=str(name))):
                return str(Path(path) / name) if (path := self._path(left)) is not None else None
        return None

    def found(self) -> set[str]:
        """The files that are named, or that a pattern of the file finds."""
        files: set[str] = set()
        parts: set[int] = set()
        for node in self._nodes:
            if not isinstance(node, ast.expr) or id(node) in parts:
                continue
            if (path := self._path(node)) is not None:
                parts |= {id(each) for each in ast.walk(node)}
                files |= self._at(path)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                files |= self._by_pattern(node, node.func, parts)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                files |= self._joined(node)
        for text in self._texts:
            files |= self._by_text(text)
        return files - {self._file}

    def _at(self, path: str) -> set[str]:
        """The file at a path, or all below a folder, unless that is the checkout or has modules."""
        path = self._checkout.real(path)
        if path in self._checkout.files:
            return {path}
        if path == "." or self._checkout.is_package(path) or "/" not in path:
            return set()
        return self._checkout.below(path)

    def _by_pattern(self, call: ast.Call, function: ast.Attribute, parts: set[int]) -> set[str]:
        """What `ROOT.glob("*.md")` finds, and `(ROOT / folder).rglob("*.py")` for each folder that the file names."""
        if function.attr not in ("glob", "rglob", "iterdir"):
            return set()
        pattern = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else "*"
        folders = set()
        if (path := self._path(function.value)) is not None:
            folders = {path}
            parts |= {id(each) for each in ast.walk(function.value)}
        elif isinstance(function.value, ast.BinOp) and (base := self._path(function.value.left)) is not None:
            folders = {str(Path(base) / text) for text in self._texts if FOLDER.fullmatch(text)}
        return {
            found
            for folder in folders
            for found in self._checkout.matching(folder, str(pattern), deep=function.attr == "rglob")
        }

    def _joined(self, node: ast.BinOp) -> set[str]:
        """What stands below `ROOT / "docs" / name`, of whose names only the first ones are known."""
        text = node.right.values[0] if isinstance(node.right, ast.JoinedStr) and node.right.values else None
        start = str(text.value) if isinstance(text, ast.Constant) else ""
        if (path := self._path(node.left)) is None or (path == "." and "/" not in start):
            return set()
        full = start if path == "." else f"{path}/{start}"
        return {name for name in self._checkout.below(str(Path(full).parent)) if name.startswith(full)} - (
            {name for name in self._checkout.files if name.endswith(".py")}
        )

    def _by_text(self, text: str) -> set[str]:
        """A path from the checkout's folder or from the file's own, or the name of a file that no other one has."""
        if len(text) > 200 or "\n" in text or not text.strip("./") or IS_TEST.search(text):
            return set()  # a file of tests that is named, as in the order of tests, is not part of another one
        for path in (text, str(Path(self._folder) / text)):
            path = self._checkout.real(path.strip("/"))
            if path in self._checkout.files:
                return {path}
            if "/" in path and self._checkout.below(path) and not self._checkout.is_package(path):
                return self._checkout.below(path)
        same = self._checkout.by_name.get(text.rpartition("/")[2], set()) if not text.endswith(".py") else set()
        return {name for name in same if name.endswith(f"/{text}")} if "." in text and len(same) == 1 else set()
