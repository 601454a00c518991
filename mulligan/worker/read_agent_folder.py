"""What stands in a folder of agents: `NAME.md` for each, and `labels.toml`."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.activities.agent_files.agent_file import MOST_BYTES
from mulligan.activities.agent_files.labels import LABELS_FILE, MOST_LABELS_BYTES
from mulligan.schema.open_file import read_bytes, state_of
from mulligan.schema.yaml_fields import FileFault

SUFFIX = ".md"
MOST_FILES = 1_000
Look = Mapping[str, tuple[int, ...]]
"""The files of a folder by their names, each with what changes as it does."""


@dataclass(frozen=True)
class AgentFolderContents:
    """The contents of a folder.

    Attributes:
        files: The bytes of each agent's file, by the agent's name.
        labels: Those of the labels; None if there are none.
        faults: Why other files cannot be read, by their names.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    labels: bytes | None = None
    faults: dict[str, FileFault] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The names of the agents that have a file, whether it can be read or not."""
        return {*self.files, *(name.removesuffix(SUFFIX) for name in self.faults if name.endswith(SUFFIX))}


def look_at(folder: Path) -> Look:
    """Look at the files of a folder without reading them.

    Raises:
        OSError: there is no such folder, or it cannot be read.
    """
    seen: dict[str, tuple[int, ...]] = {}
    for name in sorted(os.listdir(folder)):
        if name != LABELS_FILE and (not name.endswith(SUFFIX) or name.startswith(".")):
            continue
        try:
            seen[name] = state_of(folder / name)
        except OSError:
            seen[name] = ()
    return seen


def read_agent_folder(folder: Path) -> AgentFolderContents:
    """Read the files of a folder.

    Raises:
        OSError: there is no such folder, or it cannot be read.
        FileFault: it has too many files.
    """
    names = list(look_at(folder))
    if len(names) > MOST_FILES:
        raise FileFault(1, f"the folder has {len(names):,} agents; the limit is {MOST_FILES:,}")
    contents, labels = AgentFolderContents(), None
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    for name in names:
        others = [each for each in same[unicodedata.normalize("NFKC", name).casefold()] if each != name]
        try:
            if others:
                raise FileFault(1, f"{others[0]!r} has the same name, but for its letters' case or form; rename one")
            data = read_bytes(folder / name, MOST_LABELS_BYTES if name == LABELS_FILE else MOST_BYTES)
        except FileFault as fault:
            contents.faults[name] = fault
            continue
        except OSError as error:
            contents.faults[name] = FileFault(1, f"the file cannot be read: {error.strerror}")
            continue
        if name == LABELS_FILE:
            labels = data
        else:
            contents.files[name.removesuffix(SUFFIX)] = data
    return AgentFolderContents(contents.files, labels, contents.faults)
