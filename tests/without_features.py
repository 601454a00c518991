"""Run the core's unit tests on a copy of the product that has no feature: `make test-without-features`.

Tests of features are left out: those whose file has a feature's name, or imports a feature's part or declaration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import mulligan.features
from mulligan.features import FEATURES
from tests.system.test_features_can_be_removed import ROOT, without

DECLARATIONS = [
    "".join(word.title() for word in name.split("_"))
    for name in FEATURES
    if (Path(mulligan.features.__file__).parent / f"{name}.py").exists()
]
NEEDED = re.compile(
    rf"mulligan\.\w+\.({'|'.join(FEATURES)})\b|\b({'|'.join(DECLARATIONS)})\b"
    r"|needs_approval|asks_person|as_tool\(|deferred=True|once=|undo=|McpServer|model=\["
    r"|docs/models\.md|from benchmarks|\.ci/|shop\.batch"
)
"""What a file of tests has in its text that cannot be collected, or declared, without features: a page's example as well.

The results of benchmarks and `.ci` are not copied.
"""


@cache
def is_of_core(path: Path) -> bool:
    """Whether the tests of a file, and what they import of other files of tests, need no feature."""
    text = path.read_text()
    modules = [*re.findall(r"^ *from tests\.([\w.]+) import", text, re.MULTILINE)]
    modules += [
        f"support.{name}"
        for names in re.findall(r"from tests\.support import (.+)", text)
        for name in names.split(", ")
    ]
    files = [ROOT / "tests" / f"{module.replace('.', '/')}.py" for module in modules]
    is_own = not any(name in path.stem for name in FEATURES) and NEEDED.search(text) is None
    return is_own and all(is_of_core(file) for file in files if file.is_file())


def main() -> int:
    """Returns the exit code of pytest."""
    with tempfile.TemporaryDirectory() as name:
        copy = without(FEATURES, Path(name))
        for folder in ("tests", "docs", "examples"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, copy / file)
        files = [
            str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/unit").glob("test_*.py")) if is_of_core(path)
        ]
        print(f"{len(files)} files of tests without features", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", *files, *sys.argv[1:]]
        return subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
