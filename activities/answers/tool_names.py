"""The names that a model may call, and which of them it means by a name that it spells differently."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PREFIX = re.compile(r"\A(?:functions?|tools?|default_api)[.:/]")
"""What models write before names, as their prompts show tools in a namespace of that name."""


class ToolNames:
    """The names of the tools and types of output that may be called."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._by_letters: dict[str, list[str]] = {}
        for name in self._names:
            self._by_letters.setdefault(_letters(name), []).append(name)

    def meant(self, name: str) -> str | None:
        """Return the name that a model means; None if there is none, or more than one.

        It is the name itself, or the only one that differs from it in upper and lower case, in underscores and hyphens, or
        in a prefix such as `functions.`, and in nothing else. Not in spaces: titles and menus are written so.
        """
        if name in self._names:
            return name
        near = self._by_letters.get(_letters(name), [])
        return near[0] if len(near) == 1 else None


def _letters(name: str) -> str:
    return re.sub(r"[_-]", "", _PREFIX.sub("", name)).lower() or name
