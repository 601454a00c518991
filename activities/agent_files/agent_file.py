"""`NAME.md`: an agent as a file. Its version is the digest of its bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mulligan.activities.agent_files.front_matter import FrontMatter, parse_front_matter
from mulligan.activities.agent_files.instructions_template import InstructionsTemplate, parse_instructions
from mulligan.schema.yaml_fields import FieldPath, FileFault, Place, find_front_matter, read_yaml

MOST_BYTES = 200_000
"""Bytes of a file: without a content storage, the run has it beside its definition in one result of 2 MB."""
DIGEST = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[^\W_][\w.-]{0,63}")
_EXAMPLE = "begin it with a line `---`, `model: provider:NAME`, and a line `---`"


@dataclass(frozen=True)
class AgentFile:
    """A version of an agent's file.

    Attributes:
        name: The agent's name.
        text: The file as it is.
        digest: The version: the SHA-256 of the file, as 64 hexadecimal digits.
        front_matter: Its fields.
        places: Where they stand.
        instructions: The text below.
    """

    name: str
    text: str
    digest: str
    front_matter: FrontMatter
    places: Mapping[FieldPath, Place]
    instructions: InstructionsTemplate

    def line_of(self, sentence: str, under: str | None = None) -> int:
        """The line of the innermost field whose key or text a sentence has, or 1. `under`: only of this field."""
        for path, place in sorted(self.places.items(), key=lambda each: -len(each[0])):
            words = {path[-1], place.text} if path and under in (None, path[0]) else ()
            if any(isinstance(each, str) and _has_word(sentence, each) for each in words):
                return place.line
        return 1


def parse_agent_file(name: str, data: bytes) -> AgentFile:
    """Read an agent's file. It needs the extra `agents`.

    Raises:
        FileFault: the name cannot be an agent's, or the file is wrong.
    """
    if not NAME.fullmatch(name):
        raise FileFault(1, f"{name[:80]!r} cannot be an agent's name: letters, digits, `_`, `-` and `.`, 64 at most")
    if len(data) > MOST_BYTES:
        raise FileFault(1, f"the file has {len(data):,} bytes; the limit is {MOST_BYTES:,}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FileFault(data.count(b"\n", 0, error.start) + 1, "the file is no text in UTF-8") from None
    if "\0" in text:
        raise FileFault(text.count("\n", 0, text.index("\0")) + 1, "the file has a NUL character")
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    match = find_front_matter(lines)
    if match is None:
        has_begun = lines.startswith("---")
        raise FileFault(
            1, f"the front matter does not end; {_EXAMPLE}" if has_begun else f"no front matter; {_EXAMPLE}"
        )
    fields, places = read_yaml(match[1], 2)
    front_matter = parse_front_matter(fields, places)
    below = lines[match.end() :]
    skipped = len(below) - len(below.lstrip())
    first_line = lines.count("\n", 0, match.end() + skipped) + 1
    instructions = parse_instructions(name, below.strip(), first_line)
    return AgentFile(name, text, digest_of(data), front_matter, places, instructions)


def _has_word(sentence: str, word: str) -> bool:
    return word in sentence and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", sentence) is not None


def digest_of(data: bytes) -> str:
    """The version of a file with these bytes."""
    return hashlib.sha256(data).hexdigest()
