"""`labels.toml`: names for versions of agents, and how large a share of the conversations works by each."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.activities.agent_files.yaml_fields import FileFault
from mulligan.wire.agent_version import CURRENT, DIGITS

LABELS_FILE, DEFAULT = "labels.toml", "production"
"""The file, and the label of the conversations that are in no share."""
MOST_LABELS_BYTES = 200_000
_LABEL = re.compile(r"[^\W_][\w.-]{0,63}")
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
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        at = re.search(r"at line (\d+)", str(error))
        reason = re.sub(r" \(at .*\)", "", str(error))
        raise FileFault(int(at[1]) if at else text.count("\n") + 1, f"it is no TOML: {reason}") from None
    labels: dict[str, list[Label]] = {}
    for agent, table in tables.items():
        if not isinstance(table, dict):
            raise FileFault(
                _line(text, agent), f'"{agent[:80]}" is no table; write `[AGENT]`, and a label on each line'
            )
        labels[agent] = [_label(text, agent, name, value) for name, value in table.items()]
        if (total := round(sum(each.percent for each in labels[agent]), 6)) > 100:
            raise FileFault(_line(text, agent), f"the shares of {agent[:80]!r} are {total:g}% together")
    return labels


def _label(text: str, agent: str, name: str, value: Any) -> Label:
    line = _line(text, agent, name)
    if not _LABEL.fullmatch(name) or DIGITS.fullmatch(name) or name == CURRENT:
        raise FileFault(line, f"{name[:80]!r} cannot be a label: a name that is no digest, and not {CURRENT!r}")
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {"version": value}
    version, share = fields.get("version"), fields.get("share", "")
    if fields.keys() - {"version", "share"} or not isinstance(version, str) or not DIGITS.fullmatch(version):
        raise FileFault(
            line, f'{name!r} must be a digest of `mulligan agents --versions`, or {{version = "DIGEST", share = "5%"}}'
        )
    if share != "" and (not isinstance(share, str) or not _SHARE.fullmatch(share)):
        raise FileFault(line, f'the share of {name!r} must be a text such as "5%"')
    return Label(name, version, share, line)


def _line(text: str, agent: str, label: str | None = None) -> int:
    """The line of an agent's table, or of a label in it; 1 if it is written in an unusual way."""
    own, table = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*[\"']?(.*?)[\"']?\s*\]", line):
            table = header[1].partition(".")[0] if label is None else header[1]
        if table == agent or table == f"{agent}.{label}":
            own = own or number
            if label is not None and re.match(rf"\s*[\"']?{re.escape(label)}[\"']?\s*=", line):
                return number
    return own or 1


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
