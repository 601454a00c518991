"""`InterpreterNews`: what a script has done since its worker asked, as its interpreter's process tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class CallMade(NamedTuple):
    """A call that the script has made: the tool, and its arguments as JSON text."""

    tool: str
    arguments: str


class Ending(NamedTuple):
    """A failure of the script: as of a ScriptError."""

    message: str
    detail: str
    kind: str


@dataclass
class InterpreterNews:
    """What a script has done.

    Attributes:
        calls: The calls that it has made.
        printed: What it has printed, without what exceeds the limit.
        is_over: Whether it has ended; `value` is then that of its last expression, as text; "" if it has none.
        failure: How it has failed.
        memory: Bytes that the interpreter and its process hold.
        is_refused: Whether it does not wait for the call whose result it was given.
    """

    calls: list[CallMade] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    is_over: bool = False
    value: str = ""
    failure: Ending | None = None
    memory: int = 0
    is_refused: bool = False
