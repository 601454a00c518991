"""What each file of a checkout reaches directly, kept between runs: to read all of them takes a dozen seconds of CPU."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any


@dataclass
class Reach:
    """What a file reaches directly."""

    always: set[str] = field(default_factory=set)
    of_fixtures: dict[str, set[str]] = field(default_factory=dict)
    """What a fixture imports, by its name: only tests that use it reach that."""
    needs: dict[str, set[str]] = field(default_factory=dict)
    """The fixtures that a fixture uses."""
    used: set[str] = field(default_factory=set)
    """The fixtures that the file's tests use, and those that are used by all."""
    read: set[str] = field(default_factory=set)
    """The files that this was read from."""


class KeptReaches:
    """A file of what was read. An entry counts while the files that it was read from have the same content.

    `path`: None: nothing is kept. `about_all`: a digest of whatever else decides; with another one no entry counts.
    """

    def __init__(self, root: Path, path: Path | None, about_all: str) -> None:
        self._root, self._path, self._about_all = root, path, about_all
        self._entries: dict[str, Any] = {}
        self._digests: dict[str, str] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(path.read_bytes()) if path else {}
            self._entries = kept["entries"] if kept.get("about_all") == about_all else {}

    def find(self, name: str) -> Reach | None:
        """What was read for a name; None: nothing, or of other contents."""
        entry = self._entries.get(name)
        if entry is None or any(self._digest(file) != known for file, known in entry["read"].items()):
            return None
        of_fixtures, needs = (
            {fixture: set(of) for fixture, of in entry[each].items()} for each in ("of_fixtures", "needs")
        )
        return Reach(set(entry["always"]), of_fixtures, needs, set(entry["used"]), set(entry["read"]))

    def keep(self, name: str, reach: Reach) -> None:
        """Note what was read."""
        if self._path is not None:
            sets = {
                "always": [*reach.always],
                "used": [*reach.used],
                "read": {each: self._digest(each) for each in reach.read},
            }
            by_fixture = {
                each: {name: [*of] for name, of in vars(reach)[each].items()} for each in ("of_fixtures", "needs")
            }
            self._entries[name] = sets | by_fixture

    def write(self) -> None:
        """Write the file. Where that fails, the next run reads anew."""
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.write_text(json.dumps({"about_all": self._about_all, "entries": self._entries}))

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            path = self._root / file
            self._digests[file] = sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""
        return self._digests[file]
