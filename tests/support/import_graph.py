"""Which files of the checkout each test file reaches: what it imports, at whatever depth, and what it names in texts.

Exact where the house's rules make it so: what a facade hands on counts as imported from where it is defined, and what only type
checkers import does not count. Too much where Python decides at run time: each module of a package of which one is imported by a
computed name, each module and file that a test names in a text.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from mulligan.features.feature_parts import KINDS
from tests.support.imported_modules import Modules, files_of, links_of, names_in, nodes, tree
from tests.support.kept_reaches import KeptReaches, Reach
from tests.support.named_files import Checkout, NamedFiles, imports_in, modules_in, texts_of

FEATURES = "mulligan.features"
LISTS = {"OWN", "installed_parts", "option_class", "option_classes"}
"""Of that module: who has one of these loads the features' parts of the kinds that it names."""
TESTS = "tests/"
PARENT = "^"
"""Before the path of an `__init__.py` that Python runs because a module of its package is imported."""
PROGRAMS = (TESTS, "benchmarks/", "examples/", ".ci/", "docs/")
"""What is not the product: here texts name modules and files. Texts of the product do where they are a module's whole name."""
CODE = ("import_graph", "imported_modules", "kept_reaches", "named_files")
"""The modules beside this one, and this one, that decide what a file reaches."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class ImportGraph:
    """The files of a checkout and what they reach. `gone`: paths that are no longer there, but may be imported or named.

    `kept`: a file of what was read, for the next run.
    """

    def __init__(
        self, root: Path, files: Iterable[str] | None = None, gone: Iterable[str] = (), kept: Path | None = None
    ) -> None:
        self.root = root
        present = files_of(root) if files is None else sorted(files)
        self._links = links_of(root, present)
        self.files = sorted({*present, *gone})
        self._checkout = Checkout(self.files, self._links)
        self._modules = Modules(root, self.files, self._links)
        self._packages: dict[str, set[str]] = {}
        for file, module in self._modules.names.items():
            self._packages.setdefault(module.rpartition(".")[0], set()).add(file)
        self._features = self._names_of_features()
        self._reach: dict[str, Reach] = {}
        self._kept = KeptReaches(root, kept, self._about_all() if kept else "")

    def keep(self) -> None:
        """Write down what was read."""
        self._kept.write()

    def _about_all(self) -> str:
        """A digest of what decides about each file beside its own content: the other names, what packages hand on, this code."""
        deciding = [self.root / each for each in self.files if each.endswith(("/__init__.py", "/__init__.pyi"))]
        deciding += [Path(__file__).with_name(f"{each}.py") for each in CODE]
        digest = sha256(repr((sys.version, self.files, self._links)).encode())
        for path in deciding:
            digest.update(path.read_bytes() if path.is_file() else b"")
        return digest.hexdigest()

    @property
    def files_of_tests(self) -> list[str]:
        """The files of tests, of all floors."""
        return [name for name in self.files if name.startswith(TESTS) and is_test_file(name)]

    def reached(self, test_file: str) -> set[str]:
        """The files whose change may change what the tests of a file do, itself included."""
        conftests = [f"{folder}/conftest.py" for folder in map(str, Path(test_file).parents)]
        waiting = [test_file, *(name for name in conftests if name in self._checkout.files)]
        seen: set[str] = set()
        used: set[str] = set()
        while waiting:
            while waiting:
                if (name := waiting.pop()) not in seen:
                    seen.add(name)
                    waiting += self.direct(name).always - seen
            fixtures = [self.direct(name) for name in seen]
            used |= {name for each in fixtures for name in each.used}
            while (
                more := {need for each in fixtures for name in used & each.needs.keys() for need in each.needs[name]}
                - used
            ):
                used |= more
            waiting = [
                name for each in fixtures for key in used & each.of_fixtures.keys() for name in each.of_fixtures[key]
            ]
            waiting = [name for name in waiting if name not in seen]
        return {name.removeprefix(PARENT) for name in seen}

    def direct(self, file: str) -> Reach:
        """What a file reaches by itself."""
        if file not in self._reach:
            self._reach[file] = self._kept.find(file) or self._read_anew(file)
        return self._reach[file]

    def _read_anew(self, file: str) -> Reach:
        path = file.removeprefix(PARENT)
        reach = self._read(file) if path == file else self._as_parent(path)
        reach.read.add(path)
        self._kept.keep(file, reach)
        return reach

    def _read(self, file: str) -> Reach:
        path = self.root / file
        if not path.is_file():
            return Reach()
        if file.endswith(".md"):
            blocks = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
            return Reach(self._files_of(imports_in(blocks)))
        if not file.endswith(".py"):
            return Reach()
        try:
            module = tree(path)
        except SyntaxError:
            return Reach()
        reach = Reach(self._parents(file))
        all_nodes = nodes(module)
        inner: list[ast.AST] = []
        if file.startswith(TESTS):
            inner = self._fixtures(file, all_nodes, reach)
            tests = (each for each in all_nodes if isinstance(each, Function) and each.name.startswith("test_"))
            reach.used |= {name for each in tests for name in parameters(each)} | named_fixtures(all_nodes)
        elif file.endswith("__init__.py"):
            inner = [each for each in module.body if isinstance(each, Function) and each.name == "__getattr__"]
        left_out = {id(each) for function in inner for each in ast.walk(function)}
        rest = [each for each in all_nodes if id(each) not in left_out]
        reach.always |= self._targets(file, rest)
        if file.startswith(PROGRAMS):
            reach.always |= self._named_files(file, all_nodes, reach).found()
        reach.always.discard(file)
        return reach

    def _targets(self, file: str, below: list[ast.AST]) -> set[str]:
        """The files of the modules that these nodes of a file import, or name."""
        found = self._imported(file, below) | self._computed(file, below)
        if not file.startswith(PROGRAMS):
            return found | self._named_by_the_product(file, below)
        texts = list(texts_of(below))
        if "mulligan" in texts and ("-m" in texts or any(is_executable(each) for each in below)):
            found |= {name for name in ("mulligan/__main__.py",) if name in self._checkout.files}
        return found | self._named_in(texts)

    def _parents(self, file: str) -> set[str]:
        """The `__init__.py` of the packages around a file, and the stub from which one hands on."""
        module = self._modules.names.get(file, "")
        stubs = {f"{file}i"}
        parents = set()
        while module := module.rpartition(".")[0]:
            if name := self._modules.files.get(module):
                parents.add(f"{PARENT}{name}")
                stubs.add(f"{name}i")
        return parents | stubs & self._checkout.files

    def _as_parent(self, file: str) -> Reach:
        """What the `__init__.py` of a package imports before each module of it is imported: not what its functions do."""
        try:
            below = nodes(tree(self.root / file), lazy=False)
        except (FileNotFoundError, SyntaxError):
            below = []
        return Reach(self._parents(file) | self._imported(file, below))

    def _file_of(self, module: str, name: str) -> str | None:
        """The file that an import of (module, name) needs, or the nearest package around it."""
        while module not in self._modules.files:
            module, _, name = module.rpartition(".")
            if not module:
                return None
        found = self._modules.defining(module, name) or module
        return self._modules.files[found]

    def _imported(self, file: str, below: list[ast.AST]) -> set[str]:
        pairs = [*names_in(below, self._modules.package_of(file))]
        pairs += [dotted(each) for each in below if isinstance(each, ast.Attribute) and dotted(each)[0] == "mulligan"]
        pairs = [(module, name) for module, name in pairs if (module, name) != ("mulligan", "")]
        return {found for module, name in pairs if (found := self._file_of(module, name))}

    def _computed(self, file: str, below: list[ast.AST]) -> set[str]:
        """The modules of which some are imported by a name that is computed: all of their package."""
        found: set[str] = set()
        imported = {*names_in(below)}
        for call in (each for each in below if isinstance(each, ast.Call)):
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            first = call.args[0] if call.args else None
            if function == "import_module" and isinstance(first, ast.JoinedStr) and first.values:
                start = first.values[0]
                package = (
                    str(start.value).rstrip(".") if isinstance(start, ast.Constant) else self._modules.package_of(file)
                )
                found |= self._packages.get(package, set())
            elif function in ("iter_modules", "walk_packages") and file.startswith(TESTS):
                packages = [
                    self._modules.names[each] for each in self._imported(file, below) if each.endswith("__init__.py")
                ]
                found |= {each for package in packages for each in self._packages.get(package, ())}
        if {(FEATURES, name) for name in LISTS} & imported or file == self._modules.files.get(FEATURES):
            kinds = KINDS.keys() & {each.attr for each in below if isinstance(each, ast.Attribute)}
            found |= {each for kind in kinds for each in self._parts(KINDS[kind][0])}
        return found

    def _names_of_features(self) -> list[str]:
        file = self._modules.files.get(FEATURES)
        listed = ast.walk(tree(self.root / file)) if file and (self.root / file).is_file() else ()
        rows = [each for each in listed if isinstance(each, ast.Call) and ast.unparse(each.func) == "FeatureParts"]
        return [str(ast.literal_eval(row.args[0])) for row in rows]

    def _parts(self, room: str) -> Iterator[str]:
        """The files of the features' parts in a room."""
        for name in self._features:
            for module in (f"mulligan.{room}.{name}", f"mulligan.{room}.{name}.{name}"):
                if module in self._modules.files:
                    yield self._modules.files[module]

    def _named_in(self, texts: Iterable[str]) -> set[str]:
        """The modules that texts name: `tests.support.shop_agents`, `mulligan.extras.find_spec`, code of a page."""
        return self._files_of(pair for text in texts for pair in (*imports_in(text), *modules_in(text)))

    def _files_of(self, pairs: Iterable[tuple[str, str]]) -> set[str]:
        found = {self._file_of(module, name) for module, name in pairs}
        return {name for name in found if name and name != "mulligan/__init__.py" and "/" in name}

    def _named_by_the_product(self, file: str, below: list[ast.AST]) -> set[str]:
        """Modules by their whole names, and what stands beside the modules of a package: templates, tables."""
        found: set[str] = set()
        folder = str(Path(file).parent)
        for text in texts_of(below):
            module = text.partition(":")[0]
            if module.count(".") > 1 and module in self._modules.files:
                found.add(self._modules.files[module])
                if (named := self._modules.files[module]).endswith("__init__.py"):
                    found |= {
                        name for name in self._checkout.below(str(Path(named).parent)) if not name.endswith(".py")
                    }
            if text and "\n" not in text and not text.startswith((".", "/")):
                beside = f"{folder}/{text}"
                found |= {beside} & self._checkout.files
                if not self._checkout.is_package(beside):
                    found |= self._checkout.below(beside)
        return found

    def _named_files(self, file: str, below: list[ast.AST], reach: Reach | None = None) -> NamedFiles:
        """What a program names. Paths as `ROOT` may be imported from another one, which `reach` then depends on."""
        paths: dict[str, str] = {}
        for owner, name in names_in(below, self._modules.package_of(file)) if reach else ():
            other = self._modules.files.get(owner, "")
            if reach and name.isupper() and other.startswith(PROGRAMS) and (self.root / other).is_file():
                reach.read.add(other)
                known = self._named_files(other, nodes(tree(self.root / other))).paths
                paths |= {name: known[name] for name in {name} & known.keys()}
        return NamedFiles(self._checkout, file, below, paths)

    def _fixtures(self, file: str, all_nodes: list[ast.AST], reach: Reach) -> list[ast.AST]:
        """Note what the fixtures of a file reach. Returns the nodes that count for those who use them only.

        What a conftest's other functions import starts servers for all: a test that uses one has it from a fixture.
        """
        is_conftest = file.endswith("conftest.py")
        apart: list[ast.AST] = []
        for function in (each for each in all_nodes if isinstance(each, Function)):
            names = fixture_names(function)
            for name, is_for_all in names.items():
                below = [*nodes(function)]
                reach.of_fixtures.setdefault(name, set()).update(self._targets(file, below))
                reach.needs.setdefault(name, set()).update(parameters(function))
                reach.used |= {name} if is_for_all else set()
            if names or is_conftest:
                apart.append(function)
        if not is_conftest:
            return apart
        own = {each.id for each in all_nodes if isinstance(each, ast.Name)}
        in_functions = {id(each) for function in apart for each in ast.walk(function)}
        for node in (each for each in all_nodes if isinstance(each, ast.ImportFrom) and id(each) not in in_functions):
            if own.isdisjoint(alias.asname or alias.name for alias in node.names):
                # Fixtures that are handed on to the tests of a folder.
                apart.append(node)
                for alias in node.names:
                    reach.of_fixtures.setdefault(alias.name, set()).update(self._targets(file, [node]))
                    if file_of := self._file_of(str(node.module), alias.name):
                        reach.read.add(file_of)
                        reach.used |= self.direct(file_of).used & {alias.name}
        return apart


def is_test_file(name: str) -> bool:
    """Whether pytest collects it."""
    return Path(name).name.startswith("test_") and name.endswith(".py")


def parameters(function: Function) -> set[str]:
    """The names of a function's parameters."""
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def fixture_names(function: Function) -> dict[str, bool]:
    """The name of a fixture and whether each test uses it; none if it is no fixture."""
    for decorator in function.decorator_list:
        if ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).endswith("fixture"):
            given = {each.arg: each.value for each in decorator.keywords} if isinstance(decorator, ast.Call) else {}
            name, is_for_all = given.get("name"), given.get("autouse")
            own = str(name.value) if isinstance(name, ast.Constant) else function.name
            return {own: isinstance(is_for_all, ast.Constant) and bool(is_for_all.value)}
    return {}


def named_fixtures(below: Iterable[ast.AST]) -> set[str]:
    """The fixtures that tests use by a text."""
    calls = (each for each in below if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute))
    given = (each.args for each in calls if each.func.attr in ("usefixtures", "getfixturevalue"))  # type: ignore[attr-defined]
    return {str(text.value) for args in given for text in args if isinstance(text, ast.Constant)}


def dotted(node: ast.Attribute) -> tuple[str, str]:
    """`mulligan.tools.read_file` as (module, name), or two empty texts if it is of something that is computed."""
    names: list[str] = []
    each: ast.expr = node
    while isinstance(each, ast.Attribute):
        names.append(each.attr)
        each = each.value
    if not isinstance(each, ast.Name):
        return "", ""
    return ".".join([each.id, *reversed(names[1:])]), names[0]


def is_executable(node: ast.AST) -> bool:
    """Whether it is `sys.executable`."""
    return isinstance(node, ast.Attribute) and dotted(node) == ("sys", "executable")


def reachers(graph: ImportGraph, tests: Iterable[str]) -> Mapping[str, set[str]]:
    """The test files that reach each file."""
    found: dict[str, set[str]] = {}
    for test in tests:
        for name in graph.reached(test):
            found.setdefault(name, set()).add(test)
    return found


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    graph = ImportGraph(root)
    for name, found in sorted(reachers(graph, graph.files_of_tests).items()):
        print(len(found), name)
