"""Which test files reach a file of the product by their imports: for faults that are evaluated when a file is imported."""

from __future__ import annotations

from functools import cache
from itertools import chain, islice

from tests.mutants.draw import ROOT
from tests.support.import_graph import ImportGraph

MOST_FILES = 20
"""They are collected anew for each fault."""


def files_that_import(file: str, folders: tuple[str, ...]) -> list[str]:
    """Some test files of these folders: those that name its package as a whole, that import it themselves, that reach it."""
    graph = _graph()
    package = f"{file.rpartition('/')[0]}/__init__.py"
    tests = [each for each in graph.files_of_tests if each.startswith(tuple(f"{folder}/" for folder in folders))]
    near = [each for each in tests if file in graph.direct(each).always]
    near.sort(key=lambda each: package not in graph.direct(each).always)
    far = (each for each in tests if each not in near and file in graph.reached(each))
    return [*islice(chain(near, far), MOST_FILES)]


@cache
def _graph() -> ImportGraph:
    return ImportGraph(ROOT)
