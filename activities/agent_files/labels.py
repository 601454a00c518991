"""`labels.toml`: names for versions of agents, and how large a share of the conversations works by each."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.schema.cut_text import beginning
from mulligan.schema.yaml_fields import FileFault
from mulligan.wire.agent_version import CURRENT, DIGITS

LABELS_FILE, DEFAULT = "labels.toml", "production"
"""The file, and the label of the conversations that are in no share."""
MOST_LABELS_BYTES, LONGEST_LINE, MOST_LABELS = 200_000, 1_000, 100
"""Bytes of the file, characters of a line, and labels of an agent."""
_LABEL = re.compile(r"[^\W_][\w.-]{0,63}")
_AROUND_NAME = " \t\"'"
_SHARE = re.compile(r"\d{1,3}(\.\d{1,6})?%")


@dataclass(frozen=True)
class Label:
    """A name for a version. `version`: its digest, or the beginning of it. `share`: such as `5%`; "" if it has none.

    `line`: of the file.
    """

    name: str
    version: str
    share: str
    line: int

    @property
    def listed(self) -> dict[str, str]:
        """The label as JSON, for a list of agents."""
        return {"label": self.name, "version": self.version, **({"share": self.share} if self.share else {})}

    @property
    def percent(self) -> float:
        """The share as a number from 0 to 100."""
        return float(self.share.removesuffix("%") or 0)


def is_version(text: str) -> bool:
    """Whether a text names a version by itself, without a label."""
    return text == CURRENT or DIGITS.fullmatch(text) is not None


def parse_labels(text: str) -> dict[str, list[Label]]:
    """The labels of each agent, in the order of the file.

    Raises:
        FileFault: the file is wrong.
    """
    tables, lines = _parse_toml(text), _lines(text)
    labels: dict[str, list[Label]] = {}
    for agent, table in tables.items():
        line = lines.get((agent,), 1)
        if not isinstance(table, dict):
            raise FileFault(line, f'"{agent[:80]}" is no table; write `[AGENT]`, and a label on each line')
        if len(table) > MOST_LABELS:
            raise FileFault(line, f"{agent[:80]!r} has {len(table):,} labels; the limit is {MOST_LABELS}")
        labels[agent] = [
            _label(lines.get((agent, name)) or lines.get((f"{agent}.{name}",), line), name, value)
            for name, value in table.items()
        ]
        if (total := round(sum(each.percent for each in labels[agent]), 6)) > 100:
            raise FileFault(line, f"the shares of {agent[:80]!r} are {total:g}% together")
    return labels


def _parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text.

    Raises:
        FileFault: it is no TOML, or one of its lines is too long: the time for a key grows with the square of its parts.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            raise FileFault(number, f"it has {len(line):,} characters; the limit for a line is {LONGEST_LINE:,}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FileFault(1, "it is nested too deeply; write a table for each agent, with a label on each line") from None
    except ValueError as error:
        at = re.search(r"at line (\d+)", str(error))
        reason = re.sub(r" \(at .*\)", "", str(error))
        raise FileFault(
            int(at[1]) if at else text.count("\n") + 1, f"it is no TOML: {beginning(reason, 200)}"
        ) from None


def _label(line: int, name: str, value: Any) -> Label:
    if not _LABEL.fullmatch(name) or DIGITS.fullmatch(name) or name == CURRENT:
        raise FileFault(line, f"{name[:80]!r} cannot be a label: a name that is no digest, and not {CURRENT!r}")
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {"version": value}
    version, share = fields.get("version"), fields.get("share", "")
    if fields.keys() - {"version", "share"} or not isinstance(version, str) or not DIGITS.fullmatch(version):
        raise FileFault(
            line,
            f"{name!r} is {repr(value)[:80]}; it must be a digest of `mulligan agents --versions`, or "
            '{version = "DIGEST", share = "5%"}',
        )
    if share != "" and (not isinstance(share, str) or not _SHARE.fullmatch(share)):
        raise FileFault(line, f'the share of {name!r} is {str(share)[:80]!r}; it must be a text such as "5%"')
    return Label(name, version, share, line)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The lines of the tables, by their names, and of their labels, by both names; without those written in unusual ways."""
    lines, table = dict[tuple[str, ...], int](), ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            table = bare[1:].partition("]")[0].strip(_AROUND_NAME)
            lines.setdefault((table,), number)
            lines.setdefault((table.partition(".")[0],), number)
        elif "=" in bare:
            name = bare.partition("=")[0].strip(_AROUND_NAME)
            lines.setdefault((table, name) if table else (name.partition(".")[0],), number)
    return lines


def label_of(agent: str, labels: Sequence[Label], conversation: str) -> Label | None:
    """The label that a conversation works by; None: the file as it is.

    It is the same for all turns of the conversation, and stays so while the shares before its own do not change.

    Args:
        agent: The agent's name: its shares are independent of those of other agents.
        labels: Of the agent.
        conversation: The key of the conversation.
    """
    digest = hashlib.sha256(f"{agent}\0{conversation}".encode(errors="replace")).digest()
    point, end = int.from_bytes(digest[:8]) / 2**64 * 100, 0.0
    for label in labels:
        end += label.percent
        if point < end:
            return label
    return next((each for each in labels if each.name == DEFAULT and not each.share), None)
