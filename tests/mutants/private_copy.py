"""A copy of the project in which every drawn fault is there, and all are off: each can be turned on while a process runs.

In place of an expression E stands `(FAULT if __is_mutant__(N) else E)`, on the same line. So files are written, compiled and
imported once for all faults; a process that has collected the tests forks for each; processes that tests start have the faults
as well; and which test reaches which fault is seen, not guessed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import switch
from tests.mutants.draw import ROOT, Mutant, replaced


class PrivateCopy:
    """A folder with the files that git knows, and an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = folder / ".uv"  # a folder that git ignores
        self.packages = folder / ".venv/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def write(self, mutants: Sequence[Mutant]) -> None:
        """Write the files as they are now, with all faults, each under its number in `mutants`."""
        if not self.folder.exists():
            _run("git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(self.folder))
        for name in _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0"):
            source, target = ROOT / name, self.folder / name
            if name and (source.is_symlink() or source.is_file()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        for file in {each.file for each in mutants}:
            lines = (ROOT / file).read_text().split("\n")
            for number, each in enumerate(mutants):
                if each.file == file:
                    lines[each.change.line - 1] = _switched(lines[each.change.line - 1], each, number)
            (self.folder / file).write_text("\n".join(lines))
        _run("git", "add", "--all", cwd=self.folder)  # tests ask it which files there are
        self._make_environment()

    def _make_environment(self) -> None:
        if not self.packages.exists():
            uv = os.environ.get("UV") or shutil.which("uv") or "uv"
            without = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
            _run(uv, "sync", "--quiet", "--python", sys.executable, cwd=self.folder, env=without)
        shutil.copyfile(switch.__file__, self.packages / "mulligan_mutants_switch.py")
        (self.packages / "mulligan_mutants.pth").write_text("import mulligan_mutants_switch\n")
        switch.create(str(self.packages / switch.FILE))

    def turn_on(self, fault: int | None) -> None:
        """Turn one fault on, or none, for processes that start."""
        switch.Switch(str(self.packages / switch.FILE)).turn_on(fault)

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / ".venv/bin/python")

    def environment(self) -> dict[str, str]:
        """What its processes get: temporary files in a folder that is emptied after each fault."""
        temporary = self.own / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "VIRTUAL_ENV"))}
        return {**kept, "TMPDIR": str(temporary)}


def _switched(line: str, mutant: Mutant, number: int) -> str:
    change = mutant.change
    original = line.encode()[change.begin : change.end].decode()
    return replaced(line, change, f"(({change.text}) if __is_mutant__({number}) else ({original}))")


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout
