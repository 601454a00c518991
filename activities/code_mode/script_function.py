"""`ScriptFunction`: a function that a script can call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScriptFunction:
    """A function that a script can call: the tool, and the names of its parameters in their order.

    Without names, its one parameter is an object with all arguments, if `takes_object`.
    """

    tool: str
    parameters: list[str]
    takes_object: bool = False

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The tool's arguments.

        Raises:
            TypeError: the function has no such parameters.
        """
        names = ["arguments"] if self.takes_object else self.parameters
        if len(args) > len(names):
            raise TypeError(f"takes {len(names)} positional arguments, but {len(args)} were given")
        bound = dict(zip(names, args, strict=False))
        if twice := sorted(bound.keys() & kwargs.keys()):
            raise TypeError(f"got several values for {twice[0]!r}")
        bound |= kwargs
        if not self.takes_object:
            return bound
        value = bound.get("arguments")
        if list(bound) != ["arguments"] or not isinstance(value, dict):
            raise TypeError("takes one object")
        return value
