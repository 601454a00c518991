"""`Skills`: folders with instructions for kinds of tasks, which the model reads when it needs them (agentskills.io)."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, JsonValue

from mulligan.extras import require_extra
from mulligan.features.agent_feature import AgentFeature, Needs
from mulligan.schema.open_file import open_file, read_bytes, state_of
from mulligan.schema.well_formed import well_formed
from mulligan.schema.yaml_fields import FileFault, find_front_matter, read_yaml
from mulligan.tool import Tool, ToolContext, ToolError, tool

if TYPE_CHECKING:
    from mulligan.agent import Agent

READ_SKILL, SKILL_FILE = "read_skill", "SKILL.md"
MOST_SKILLS, MOST_FILES, MOST_BYTES, LONGEST_FRONT_MATTER = 100, 1_000, 1_000_000_000, 16_384
"""Skills of an agent, files and folders of a skill, their bytes, and bytes of a skill's front matter."""
LONGEST_DESCRIPTION = 1_024
"""Characters of a description, as agentskills.io has it."""
PIECE = 30_000
"""Bytes of a file that one call returns."""
FILES_SHOWN = 100
_NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")


class SkillFault(Exception):
    """A folder is no skill. The message says where, why, and what to do."""


@dataclass(frozen=True)
class Skill:
    """A skill: its name, its description, and its files by their names, relative to its folder."""

    name: str
    description: str
    files: Mapping[str, Path]

    @property
    def digest(self) -> str:
        """A digest of the names and the bytes of all files."""
        digest = hashlib.sha256()
        for name, path in self.files.items():
            digest.update(f"{name}\x1f{_digest_of(path, state_of(path))}\x1e".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Skills(AgentFeature):
    """The model is told the names and descriptions of skills, and reads one with the tool `read_skill` (docs/skills.md).

    It needs the extra `skills`: `uv add 'mulligan[skills]'`.

    Args:
        path: The folder with a folder for each skill, which contains a file `SKILL.md`.
    """

    path: str | os.PathLike[str]

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check that each folder is a skill. `agent`: whose feature it is."""
        require_extra("skills", f"{agent.source}: agent {agent.name!r}: Skills(…)")
        if not isinstance(self.path, str | os.PathLike):
            return {f"Skills: path is {self.path!r}; it must be the path of a folder": True}
        try:
            for skill in self._skills().values():
                _ = skill.digest
        except (SkillFault, OSError) as fault:
            return {f"Skills: {str(fault).rstrip('.')}": True}
        return {}

    def needs(self, models: Sequence[str]) -> Needs:
        """The instructions say which skills there are, whatever the `models` are."""
        return Needs(instructions=self._instructions)

    def _instructions(self) -> str:
        """The names and descriptions of the skills."""
        listed = [f"- `{skill.name}`: {' '.join(skill.description.split())}" for skill in self._skills().values()]
        return (
            f"# Skills\n\nThese skills are instructions for kinds of tasks. Before a task of that kind, read the skill "
            f"with `{READ_SKILL}`:\n\n" + "\n".join(listed)
        )

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """The digest of each skill. `models`: the run's."""
        return {"digests": {name: skill.digest for name, skill in self._skills().items()}}

    def added_tools(self, agent: Agent) -> Sequence[Tool]:
        """The tool `read_skill`. `agent`: whose feature it is."""

        def read_skill(
            name: Annotated[str, Field(description="The skill's name.", max_length=64)],
            ctx: ToolContext,
            file: Annotated[str, Field(description="The name of a file of the skill.", max_length=1_000)] = SKILL_FILE,
            start: Annotated[int, Field(description="The byte to begin at, for a long file.", ge=0)] = 0,
        ) -> str:
            """Read a skill, or another file of it."""
            return self._read(name, file, start, ctx.pinned)

        return (tool(name=READ_SKILL, timeout=20)(read_skill),)

    def _skills(self) -> dict[str, Skill]:
        """The skills, by their names.

        Raises:
            SkillFault: one cannot be used.
            OSError: a file cannot be read.
        """
        root = Path(self.path)
        if not root.is_dir():
            raise SkillFault(f"{root.absolute()} is not a folder; name the folder that contains the skills.")
        folders = sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
        if not folders or len(folders) > MOST_SKILLS:
            raise SkillFault(f"{root.absolute()} contains {len(folders)} skills; it must be 1 to {MOST_SKILLS}.")
        return {folder.name: _skill_of(folder) for folder in folders}

    def _read(self, name: str, file: str, start: int, pinned: Mapping[str, Any]) -> str:
        """A piece of a file, for the model.

        Raises:
            ToolError: there is no such skill or file, it is no text, or it has changed since the run began.
        """
        digests = pinned["digests"]
        if name not in digests:
            raise ToolError(f"There is no such skill. The skills are: {', '.join(f'`{each}`' for each in digests)}.")
        try:
            skill = self._skills().get(name)
            if skill is None or skill.digest != digests[name]:
                raise ToolError(
                    f"The skill `{name}` was changed after this run had begun, so it is not read. Do without it, and say so."
                )
            path = skill.files.get(str(PurePosixPath(file)))
            if path is None:
                raise ToolError(f"The skill `{name}` has no such file.{_listed(skill)}")
            text = _piece(path, start)
        except (SkillFault, OSError):
            raise ToolError(f"The skill `{name}` cannot be read now. Do without it, and say so.") from None
        return text + (_listed(skill) if (str(PurePosixPath(file)), start) == (SKILL_FILE, 0) else "")


def _skill_of(folder: Path) -> Skill:
    """The skill in a folder.

    Raises:
        SkillFault: it is none.
        OSError: a file cannot be read.
    """
    where = folder / SKILL_FILE
    files = dict(sorted(_files(folder)))
    if SKILL_FILE not in files:
        raise SkillFault(f"{folder} has no file {SKILL_FILE}; add one, or move the folder elsewhere.")
    name, description = _name_and_description(where, state_of(where))
    if name != folder.name or not _NAME.fullmatch(folder.name):
        raise SkillFault(
            f"{where}: name is {_shown(name)}; it must be the folder's name, {folder.name!r}, of 1 to 64 small letters, "
            "digits and single hyphens between them."
        )
    if not isinstance(description, str) or not 1 <= len(description.strip()) <= LONGEST_DESCRIPTION:
        raise SkillFault(
            f"{where}: description is {_shown(description)}; it must be a text of 1 to {LONGEST_DESCRIPTION:,} characters."
        )
    return Skill(folder.name, description, files)


@lru_cache(maxsize=1_000)
def _name_and_description(where: Path, state: tuple[int, ...]) -> tuple[Any, Any]:
    """What a skill says of itself. `state`: changes as the file does, so that it is parsed once.

    Raises:
        SkillFault: its front matter is wrong.
        OSError: it cannot be read.
    """
    del state
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(read_bytes(where, LONGEST_FRONT_MATTER))
    except UnicodeDecodeError:
        raise SkillFault(f"{where} is not UTF-8 text; save it as UTF-8.") from None
    front_matter = find_front_matter(text.replace("\r\n", "\n").replace("\r", "\n"))
    if front_matter is None:
        raise SkillFault(
            f"{where} has no front matter, or one of more than {LONGEST_FRONT_MATTER:,} bytes; begin it with a line `---`, "
            f"`name: {where.parent.name}`, `description: …`, and a line `---`."
        )
    try:
        fields, _ = read_yaml(front_matter[1], 2)
    except FileFault as fault:
        raise SkillFault(f"{where}, line {fault.line}: {fault.text}.") from None
    return fields.get("name"), fields.get("description")


def _shown(name: Any) -> str:
    return "missing" if name is None else "a list or a mapping" if isinstance(name, list | dict) else repr(name)[:80]


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The regular files of a folder, by their names relative to it.

    Raises:
        SkillFault: a link leads out of the folder, a name is no text, or there are too many files, or too large ones.
    """
    root, count, size = folder.resolve(), 0, 0
    for here, folders, names in os.walk(folder):
        folders.sort()
        count += len(folders) + len(names)
        if count > MOST_FILES:
            raise SkillFault(f"{folder} has more than {MOST_FILES:,} files; remove those that the skill does not need.")
        for name in (*folders, *names):
            path = Path(here, name)
            if well_formed(name) != name:
                raise SkillFault(f"{str(path)!a} has a name that is not UTF-8; rename it.")
            if path.is_symlink() and not _leads_into(path, root):
                raise SkillFault(
                    f"{path} is a link that leads out of the skill's folder; copy what it leads to, or remove it."
                )
        for name in names:
            path = Path(here, name)
            if path.exists() and stat.S_ISREG((state := path.stat()).st_mode):
                size += state.st_size
                if size > MOST_BYTES:
                    raise SkillFault(f"{folder} has more than {MOST_BYTES:,} bytes; keep large files elsewhere.")
                yield path.relative_to(folder).as_posix(), path


def _leads_into(link: Path, root: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links that lead to each other
        return False


@lru_cache(maxsize=10_000)
def _digest_of(path: Path, state: tuple[int, ...]) -> str:
    """The digest of a file's bytes. `state`: changes as the file does, so that it is read once."""
    digest, left = hashlib.sha256(), state[1]
    with open_file(path) as file:
        while left and (piece := file.read(min(left, 1_000_000))):  # it may grow meanwhile, without an end
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _piece(path: Path, start: int) -> str:
    """A part of a file that begins at a byte, with a note of how much is left.

    Raises:
        ToolError: it is no text.
        OSError: it cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        piece = file.read(PIECE)
    # The start may be in the middle of a character.
    skipped = len(piece) - len(piece.lstrip(bytes(range(0x80, 0xC0)))) if start else 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(piece[skipped:])
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolError(f"The file is not text: it has {size:,} bytes of binary data.")
    end = start + len(piece) - len(decoder.getstate()[0])
    if start == 0 and end >= size:
        return text
    more = f"; go on with start={end}" if end < size else ""
    return f"{text}\n[bytes {start:,} to {end:,} of {size:,}{more}]"


def _listed(skill: Skill) -> str:
    names = [name for name in skill.files if name != SKILL_FILE]
    if not names:
        return ""
    more = f" and {len(names) - FILES_SHOWN} more" if len(names) > FILES_SHOWN else ""
    return f"\n[Its other files: {', '.join(f'`{name}`' for name in names[:FILES_SHOWN])}{more}]"
